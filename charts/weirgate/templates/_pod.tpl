{{/* What every pod of the chart has in common: no rights, no token, nothing written but what is mounted for it. */}}

{{- define "weirgate.podSecurity" -}}
runAsNonRoot: true
{{- with .Values.runAs }}
{{- with .user }}
runAsUser: {{ int64 . }}
{{- end }}
{{- with .group }}
runAsGroup: {{ int64 . }}
{{- end }}
{{- with .fsGroup }}
fsGroup: {{ int64 . }}
fsGroupChangePolicy: OnRootMismatch
{{- end }}
{{- end }}
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{- define "weirgate.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
privileged: false
capabilities:
  drop: [ALL]
{{- end -}}

{{/* Variables that config's references name, and the database's address. */}}
{{- define "weirgate.env" -}}
{{- $secret := .Values.existingSecret -}}
{{- range $name, $key := .Values.secretEnv }}
- name: {{ $name }}
  valueFrom:
    secretKeyRef:
      {{- if kindIs "string" $key }}
      name: {{ $secret }}
      key: {{ $key }}
      {{- else }}
      name: {{ $key.secret }}
      key: {{ $key.key }}
      {{- end }}
{{- end }}
{{- if eq .Values.database.engine "postgresql" }}
{{ include "weirgate.databaseEnv" (dict "root" . "from" dict) }}
{{- end }}
{{- with .Values.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The database's address, `from` another Secret or key where that names one. */}}
{{- define "weirgate.databaseEnv" -}}
{{- $v := .root.Values -}}
- name: WEIRGATE_DATABASE_URL
  valueFrom:
    secretKeyRef:
      name: {{ coalesce .from.existingSecret $v.database.existingSecret $v.existingSecret }}
      key: {{ coalesce .from.secretKey $v.database.secretKey }}
{{- end -}}

{{/* The folder /etc/weirgate: one volume of several ConfigMaps, so that a change of any is swapped in whole. */}}
{{- define "weirgate.configurationVolume" -}}
- name: configuration
  projected:
    sources:
      - configMap:
          name: {{ include "weirgate.fullname" . }}
          items:
            - {key: weirgate.yaml, path: weirgate.yaml}
      {{- range $folder := list "policies" "agents" "prompts" }}
      {{- with include "weirgate.folder" (dict "root" $ "folder" $folder) | fromJson }}
      - configMap:
          name: {{ include "weirgate.fullname" $ }}-{{ $folder }}
          items:
            {{- range $file, $_ := . }}
            - key: {{ $file }}
              path: {{ $folder }}/{{ $file }}
            {{- end }}
      {{- end }}
      {{- end }}
{{- end -}}
