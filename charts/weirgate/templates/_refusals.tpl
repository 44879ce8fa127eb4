{{/* What cannot work, said before anything is installed. Each sentence names the value and the way out. */}}

{{- define "weirgate.refusals" -}}
{{- $v := .Values -}}
{{- $postgresql := eq $v.database.engine "postgresql" -}}
{{- if not $v.image.repository -}}
{{- fail "image.repository: name your image; none is published (docker build -t REGISTRY/weirgate:TAG .)" -}}
{{- end -}}
{{- if eq $v.image.tag "latest" -}}
{{- fail "image.tag: latest is another image every day, and a rollback has none to go back to; name a version or a digest" -}}
{{- end -}}
{{- if not $v.config.upstreams -}}
{{- fail "config.upstreams: name at least one provider, such as main: {base_url: https://api.example.com/v1}" -}}
{{- end -}}
{{- if not (or $v.config.keys $v.storedKeys) -}}
{{- fail "config.keys: the gateway serves other machines to known keys only; add one, or say storedKeys: true if they are in the database" -}}
{{- end -}}
{{- if not $postgresql -}}
{{- if gt (include "weirgate.replicas" . | int) 1 -}}
{{- fail (printf "replicas: %v pods cannot share one SQLite file; set database.engine: postgresql, or replicas: 1" $v.replicas) -}}
{{- end -}}
{{- if $v.autoscaling.enabled -}}
{{- fail "autoscaling: several pods cannot share one SQLite file; set database.engine: postgresql, or autoscaling.enabled: false" -}}
{{- end -}}
{{- if and $v.storedKeys (not $v.config.keys) (not $v.persistence.enabled) -}}
{{- fail "storedKeys: the keys would go with the pod; set persistence.enabled: true, or state config.keys" -}}
{{- end -}}
{{- end -}}
{{- if $postgresql -}}
{{- if not (or $v.database.existingSecret $v.existingSecret) -}}
{{- fail "database: name the Secret that holds PostgreSQL's address: database.existingSecret, or existingSecret" -}}
{{- end -}}
{{- if $v.persistence.existingClaim -}}
{{- fail "persistence.existingClaim: with database.engine: postgresql nothing is kept on a volume; leave it empty" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (not (kindIs "invalid" $v.replicas)) -}}
{{- fail "replicas: autoscaling decides how many pods there are; leave replicas empty, or set autoscaling.enabled: false" -}}
{{- end -}}
{{- if and $v.autoscaling.enabled (gt (int $v.autoscaling.minReplicas) (int $v.autoscaling.maxReplicas)) -}}
{{- fail "autoscaling: minReplicas is larger than maxReplicas" -}}
{{- end -}}
{{- end -}}
{{- if and $v.ingress.enabled (not $v.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host" -}}
{{- end -}}
{{- if and $v.httpRoute.enabled (not $v.httpRoute.parentRefs) -}}
{{- fail "httpRoute.parentRefs: name at least one Gateway" -}}
{{- end -}}
{{- include "weirgate.refusedSecrets" . -}}
{{- include "weirgate.refusedReferences" . -}}
{{- end -}}

{{/* A ConfigMap is no place for a secret. */}}
{{- define "weirgate.refusedSecrets" -}}
{{- $stated := dict -}}
{{- range $name, $upstream := .Values.config.upstreams -}}
{{- $_ := set $stated (printf "config.upstreams.%s.api_key" $name) (default "" $upstream.api_key) -}}
{{- range $header, $value := $upstream.headers -}}
{{- if regexMatch "(?i)(key|token|secret|auth|cookie)" $header -}}
{{- $_ := set $stated (printf "config.upstreams.%s.headers.%s" $name $header) $value -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $position, $key := .Values.config.keys -}}
{{- $_ := set $stated (printf "config.keys[%d].secret" $position) $key.secret -}}
{{- end -}}
{{- with .Values.config.admin -}}
{{- $_ := set $stated "config.admin.secret" (default "" .secret) -}}
{{- end -}}
{{- range $place, $text := $stated -}}
{{- if and $text (not (regexMatch "^([$][{](env|file):|os[.]environ/)" $text)) -}}
{{- fail (printf "%s: holds a secret in plain text, and a ConfigMap hides nothing; put it into existingSecret and write ${env:NAME} with NAME under secretEnv" $place) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Every variable that config names must come from somewhere. Of extraEnvFrom nobody knows here what it holds. */}}
{{- define "weirgate.refusedReferences" -}}
{{- $given := keys .Values.secretEnv -}}
{{- range .Values.extraEnv -}}
{{- $given = append $given .name -}}
{{- end -}}
{{- range $name, $key := .Values.secretEnv -}}
{{- if and (kindIs "string" $key) (not $.Values.existingSecret) -}}
{{- fail (printf "existingSecret: name the Secret that holds the key %s of secretEnv.%s" $key $name) -}}
{{- end -}}
{{- end -}}
{{- if not .Values.extraEnvFrom -}}
{{- range $reference := regexFindAll "(^|[^$])[$][{]env:[A-Za-z_][A-Za-z0-9_]*[}]|\"os[.]environ/[A-Za-z_][A-Za-z0-9_]*" (toJson .Values.config) -1 -}}
{{- $name := regexFind "[A-Za-z_][A-Za-z0-9_]*$" (trimSuffix "}" $reference) -}}
{{- if not (has $name $given) -}}
{{- fail (printf "config: ${env:%s} is set by neither secretEnv nor extraEnv, so the gateway would not start" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
