{{/* The beginning of all names: the release's name, with the chart's unless it has it already. */}}
{{- define "tf-dist.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains $name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "tf-dist.labels" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/part-of: tf-dist
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* The labels by which the controller's pods are selected. */}}
{{- define "tf-dist.selector" -}}
app.kubernetes.io/name: {{ .Values.nameOverride | default .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: controller
{{- end -}}

{{- define "tf-dist.serviceAccount" -}}
{{- $own := printf "%s-controller" (include "tf-dist.fullname" .) -}}
{{- .Values.serviceAccount.name | default (ternary $own "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{/* The controller's account, as a subject of a binding. */}}
{{- define "tf-dist.controllerSubject" -}}
- kind: ServiceAccount
  name: {{ include "tf-dist.serviceAccount" . }}
  namespace: {{ .Release.Namespace | quote }}
{{- end -}}

{{/* The controller's image, by its digest if there is one. */}}
{{- define "tf-dist.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if jobs may ask for a gang scheduler: list $ NAME. */}}
{{- define "tf-dist.schedules" -}}
{{- $values := (first .).Values -}}
{{- if or (has (last .) $values.gangSchedulers) (eq (last .) $values.defaultScheduler) -}}true{{- end -}}
{{- end -}}

{{/* "true" if the controller leads the whole cluster, by Leases in the system namespace. */}}
{{- define "tf-dist.leadsCluster" -}}
{{- if and .Values.controller (not .Values.namespaces) -}}true{{- end -}}
{{- end -}}

{{/* The Leases by which it leads, one for each kind of jobs. */}}
{{- define "tf-dist.leases" -}}
- tf-dist-controller
{{- if .Values.volcanoJobs }}
- tf-dist-controller-volcano
{{- end }}
{{- end -}}

{{/* "true" if the cluster has a definition of this name that another installation owns. */}}
{{- define "tf-dist.foreign" -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" . -}}
{{- if $found -}}
{{- if ne (get ($found.metadata.labels | default dict) "app.kubernetes.io/part-of") "tf-dist" -}}true{{- end -}}
{{- end -}}
{{- end -}}
