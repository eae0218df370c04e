{{- define "platform.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "platform.selector" -}}
app.kubernetes.io/name: {{ .root.Chart.Name }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "platform.name" -}}
{{ printf "%s-%s" .root.Release.Name .component | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "platform.image" -}}
{{ required "image.repository is required" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "platform.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
{{- end }}

{{- define "platform.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "platform.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector: {{ toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations: {{ toYaml . | nindent 2 }}
{{- end }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- end }}

{{- define "platform.environment" -}}
envFrom:
  - secretRef: {name: {{ required "existingSecret is required" .Values.existingSecret | quote }}}
env:
  - {name: ALLOWED_HOSTS, value: {{ required "hosts is required" (join "," .Values.hosts) | quote }}}
  - {name: PUBLIC_URL, value: {{ printf "https://%s" (first .Values.hosts) | quote }}}
  - {name: SECURE_TLS, value: "1"}
  - {name: TRUSTED_PROXIES, value: {{ .Values.trustedProxies | quote }}}
  - {name: METRICS_HOST, value: 0.0.0.0}
  - {name: METRICS_PORT, value: "9464"}
  {{- if .Values.sandbox.enabled }}
  - {name: SANDBOX_URL, value: {{ printf "%s-sandbox:8090" .Release.Name | quote }}}
  {{- end }}
  {{- range $name, $value := .Values.environment }}
  - {name: {{ $name }}, value: {{ $value | quote }}}
  {{- end }}
{{- end }}

{{- define "platform.volumes" -}}
volumes:
  # On disk: uploads pass through it.
  - {name: tmp, emptyDir: {}}
  {{- if .Values.persistence.existingClaim }}
  - {name: state, persistentVolumeClaim: {claimName: {{ .Values.persistence.existingClaim | quote }}}}
  {{- else }}
  - {name: state, emptyDir: {}}
  {{- end }}
{{- end }}

{{- define "platform.mounts" -}}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  - {name: state, mountPath: /var/lib/platform}
{{- end }}

{{- define "platform.probe" -}}
exec: {command: [/app/.venv/bin/python, manage.py, healthcheck, {{ . }}]}
periodSeconds: 30
timeoutSeconds: 10
failureThreshold: 3
{{- end }}
