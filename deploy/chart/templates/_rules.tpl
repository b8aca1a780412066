{{/* Rules that several roles have. All other rules are in the role's own file. */}}

{{/* Reconcile the jobs of a namespace: the controller, and programs that run their own jobs.
patch of jobs: their annotations, and what their original controllers fill in.
finalizers: OwnerReferencesPermissionEnforcement asks for it where pods block the deletion of their job. */}}
{{- define "tf-dist.rules.reconcile" -}}
- apiGroups: [kubeflow.org]
  resources: [tfjobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [kubeflow.org]
  resources: [tfjobs/status, tfjobs/finalizers]
  verbs: [update]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [get, list, watch, create, delete]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
- apiGroups: [""]
  resources: [resourcequotas, limitranges]
  verbs: [list, watch]
{{- if .Values.volcanoJobs }}
- apiGroups: [batch.volcano.sh]
  resources: [jobs]
  verbs: [get, list, watch, patch, delete]
- apiGroups: [batch.volcano.sh]
  resources: [jobs/status, jobs/finalizers]
  verbs: [update]
- apiGroups: [bus.volcano.sh]
  resources: [commands]
  verbs: [get, list, watch, delete]
- apiGroups: [""]
  resources: [configmaps]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [networking.k8s.io]
  resources: [networkpolicies]
  verbs: [get, list, watch, create, delete]
# Keys of the ssh plugin.
- apiGroups: [""]
  resources: [secrets]
  verbs: [get, create]
{{- end }}
{{- if include "tf-dist.schedules" (list $ "volcano") }}
- apiGroups: [scheduling.volcano.sh]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete, patch]
{{- end }}
{{- if include "tf-dist.schedules" (list $ "coscheduling") }}
- apiGroups: [scheduling.x-k8s.io]
  resources: [podgroups]
  verbs: [get, list, watch, create, delete, patch]
{{- end }}
{{- if include "tf-dist.schedules" (list $ "kueue") }}
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads]
  verbs: [get, list, watch, create, delete, patch]
- apiGroups: [kueue.x-k8s.io]
  resources: [workloads/status]
  verbs: [patch]
{{- end }}
{{- if include "tf-dist.schedules" (list $ "workload") }}
- apiGroups: [scheduling.k8s.io]
  resources: [podgroups, workloads]
  verbs: [get, list, watch, create, delete, patch]
{{- end }}
{{- end -}}

{{/* What the controller needs of a namespace beyond that. leases: to lead it; who leads the cluster sees who does. */}}
{{- define "tf-dist.rules.controller" -}}
{{ include "tf-dist.rules.reconcile" . }}
- apiGroups: [coordination.k8s.io]
  resources: [leases]
  verbs: {{ if .Values.namespaces }}[get, list, watch, create, update, delete]{{ else }}[list]{{ end }}
{{- if .Values.disruptionBudgets }}
- apiGroups: [policy]
  resources: [poddisruptionbudgets]
  verbs: [get, list, watch, create, delete, patch]
{{- end }}
{{- end -}}

{{/* See the queues that jobs wait in, and what else admission goes by that is in no namespace. */}}
{{- define "tf-dist.rules.queues" -}}
- apiGroups: [tf-dist.dev]
  resources: [queues]
  verbs: [get, list, watch]
- apiGroups: [scheduling.k8s.io]
  resources: [priorityclasses]
  verbs: [get, list, watch]
- apiGroups: [node.k8s.io]
  resources: [runtimeclasses]
  verbs: [get, list, watch]
{{- if .Values.volcanoJobs }}
- apiGroups: [scheduling.volcano.sh]
  resources: [queues]
  verbs: [get, list, watch]
{{- end }}
{{- end -}}
