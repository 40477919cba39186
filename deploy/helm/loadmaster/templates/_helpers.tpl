{{/* Labels of a component: list of the root context and its name. */}}
{{- define "loadmaster.selectorLabels" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: loadmaster
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "loadmaster.labels" -}}
{{- $root := index . 0 -}}
{{ include "loadmaster.selectorLabels" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "loadmaster.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "loadmaster.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop:
  - ALL
{{- end }}

{{/* "true" if the controllers are installed. */}}
{{- define "loadmaster.hasControllers" -}}
{{- if kindIs "invalid" .Values.controller.enabled -}}
{{- if .Values.plugins.enabled }}true{{ end -}}
{{- else if .Values.controller.enabled -}}true
{{- end -}}
{{- end }}

{{/* "true" if the pods of the scheduler are in the network of their node. */}}
{{- define "loadmaster.hostNetwork" -}}
{{- if or .Values.scheduler.hostNetwork .Values.gpushare.enabled }}true{{ end -}}
{{- end }}

{{/* The extenders, those of the other values included, as an object with one field. */}}
{{- define "loadmaster.extenders" -}}
{{- $all := .Values.extenders -}}
{{- if .Values.gpushare.enabled -}}
{{- $managed := list (dict "name" "aliyun.com/gpu-mem" "ignoredByScheduler" false) -}}
{{- $url := printf "http://127.0.0.1:%d/gpushare-scheduler" (int .Values.gpushare.nodePort) -}}
{{- $all = append $all (dict "urlPrefix" $url "filterVerb" "filter" "bindVerb" "bind" "nodeCacheCapable" true "managedResources" $managed) -}}
{{- end -}}
{{- toYaml (dict "extenders" $all) -}}
{{- end }}

{{/* The KubeSchedulerConfiguration. */}}
{{- define "loadmaster.config" -}}
{{- if .Values.config -}}
{{ toYaml .Values.config }}
{{- else -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: {{ .Values.scheduler.leaderElect }}
  resourceNamespace: {{ .Values.scheduler.lease.namespace | default .Release.Namespace | quote }}
  resourceName: {{ .Values.scheduler.lease.name | default .Values.scheduler.name | quote }}
profiles:
- schedulerName: {{ .Values.scheduler.schedulerName | default .Values.scheduler.name | quote }}
{{- if or .Values.plugins.enabled .Values.plugins.disabled }}
  plugins:
    multiPoint:
{{- with .Values.plugins.enabled }}
      enabled:
{{- range . }}
      - name: {{ title . | quote }}
{{- end }}
{{- end }}
{{- with .Values.plugins.disabled }}
      disabled:
{{- range . }}
      - name: {{ title . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.pluginConfig }}
  pluginConfig:
{{ toYaml . | indent 2 }}
{{- end }}
{{- $extenders := include "loadmaster.extenders" . | fromYaml }}
{{- if $extenders.extenders }}
{{ toYaml $extenders }}
{{- end }}
{{- end -}}
{{- end }}

{{/*
The names of the plugins of a configuration, as an object whose keys they are: list of the configuration and of files/rules.yaml. A default
plugin that is disabled at all extension points is not among them.
*/}}
{{- define "loadmaster.plugins" -}}
{{- $config := index . 0 -}}
{{- $known := index . 1 -}}
{{- $names := dict -}}
{{- range $profile := $config.profiles | default (list (dict)) -}}
{{- $plugins := $profile.plugins | default dict -}}
{{- $disabled := list -}}
{{- range (($plugins.multiPoint | default dict).disabled | default list) -}}
{{- $disabled = append $disabled .name -}}
{{- end -}}
{{- if not (has "*" $disabled) -}}
{{- range $known.default -}}
{{- if not (has . $disabled) -}}{{- $_ := set $names . true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- range $point, $set := $plugins -}}
{{- range ($set.enabled | default list) -}}{{- $_ := set $names .name true -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- toYaml $names -}}
{{- end }}

{{/* The container fields and pod fields that the scheduler and the controllers share: list of the root context and of the component's values. */}}
{{- define "loadmaster.placement" -}}
{{- $root := index . 0 -}}
{{- $values := index . 1 -}}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets:
{{ toYaml . }}
{{- end }}
securityContext:
{{ include "loadmaster.podSecurity" $root | indent 2 }}
{{- with $values.nodeSelector }}
nodeSelector:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with $values.affinity }}
affinity:
{{ toYaml . | indent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations:
{{ toYaml . }}
{{- end }}
{{- end }}
