{{/* What stands in /etc/weirgate: weirgate.yaml, and the files of each folder beside it as name: text. */}}

{{- define "weirgate.port" -}}8400{{- end -}}

{{- define "weirgate.yaml" -}}
{{- $config := deepCopy .Values.config -}}
{{- $server := merge (dict "host" "0.0.0.0" "port" (include "weirgate.port" . | int)) (default dict $config.server) -}}
{{- $url := ternary "${env:WEIRGATE_DATABASE_URL}" "sqlite:////var/lib/weirgate/weirgate.db" (eq .Values.database.engine "postgresql") -}}
{{- $store := merge (dict "url" $url) (default dict $config.store) -}}
{{/* Where a Job brings the schema up to date, no pod does. */}}
{{- if and (eq .Values.database.engine "postgresql") .Values.migration.enabled (not (hasKey $store "migrate")) -}}
{{- $_ := set $store "migrate" false -}}
{{- end -}}
{{- $_ := set $config "server" $server -}}
{{- $_ := set $config "store" $store -}}
{{- if include "weirgate.folder" (dict "root" . "folder" "policies") | fromJson -}}
{{- $_ := set $config "policies" "policies" -}}
{{- end -}}
{{- range $key, $value := $config -}}
{{- if empty $value -}}{{- $_ := unset $config $key -}}{{- end -}}
{{- end -}}
{{- toYaml $config -}}
{{- end -}}

{{/* Files of one folder, as JSON of name: text. Shipped policies give way to a file of the same name. */}}
{{- define "weirgate.folder" -}}
{{- $files := dict -}}
{{- if eq .folder "policies" -}}
{{- if .root.Values.policies.shipped -}}
{{- range $path, $_ := .root.Files.Glob "files/policies/*.yaml" -}}
{{- $_ := set $files (base $path) ($.root.Files.Get $path) -}}
{{- end -}}
{{- end -}}
{{- range $name, $policy := .root.Values.policies.files -}}
{{- $_ := set $files $name (toYaml $policy) -}}
{{- end -}}
{{- else if eq .folder "agents" -}}
{{- range $name, $agent := .root.Values.agents -}}
{{- $_ := set $files $name (toYaml $agent) -}}
{{- end -}}
{{- else -}}
{{- range $name, $text := .root.Values.prompts -}}
{{- $_ := set $files $name $text -}}
{{- end -}}
{{- end -}}
{{- toJson $files -}}
{{- end -}}

{{- define "weirgate.replicas" -}}
{{- if kindIs "invalid" .Values.replicas -}}
{{- ternary 2 1 (eq .Values.database.engine "postgresql") -}}
{{- else -}}
{{- int .Values.replicas -}}
{{- end -}}
{{- end -}}

{{/* Both phases of the gateway's own leaving, in whole seconds; the defaults are those of weirgate.yaml. */}}
{{- define "weirgate.drainDelay" -}}
{{- default dict .Values.config.server | dig "drain_delay" 0 | ceil | int -}}
{{- end -}}
{{- define "weirgate.drain" -}}
{{- default dict .Values.config.server | dig "drain" 300 | ceil | int -}}
{{- end -}}

{{/* Seconds from the order to stop until nothing can run any more: the hook, both phases, and 15 for the last error
frames, the last rows and the store. */}}
{{- define "weirgate.grace" -}}
{{- add (int .Values.preStopSeconds) (include "weirgate.drainDelay" . | int) (include "weirgate.drain" . | int) 15 -}}
{{- end -}}
