{{/* Written by hand; the other templates are written by tf-dist install --chart. */}}

{{/* The controller's image, by digest if one is given. */}}
{{- define "tf-dist.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}{{- end -}}
{{- end -}}
{{- end -}}

{{/* "true" if jobs may ask for a gang scheduler: dict "root" $ "name" NAME. */}}
{{- define "tf-dist.schedules" -}}
{{- $values := .root.Values -}}
{{- if or (has .name $values.gangSchedulers) (eq .name $values.defaultScheduler) -}}true{{- end -}}
{{- end -}}

{{/* "true" if the cluster has a definition of this name that another installation brought. */}}
{{- define "tf-dist.foreign" -}}
{{- $found := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" . -}}
{{- if $found -}}
{{- $labels := $found.metadata.labels | default dict -}}
{{- if ne (get $labels "app.kubernetes.io/part-of") "tf-dist" -}}true{{- end -}}
{{- end -}}
{{- end -}}

{{/* short_hash of tf_dist/core/api/names.py: dict "text" TEXT "length" NUMBER. The digest's first 16 bytes as a number,
of which only as much is kept as its last digits to the base of 36 need. */}}
{{- define "tf-dist.hash" -}}
{{- $values := dict "a" 10 "b" 11 "c" 12 "d" 13 "e" 14 "f" 15 -}}
{{- $modulus := 1 -}}
{{- range until (int .length) -}}{{- $modulus = mul $modulus 36 -}}{{- end -}}
{{- $number := 0 -}}
{{- range $digit := regexFindAll "." (substr 0 32 (sha256sum .text)) -1 -}}
{{- $value := atoi $digit -}}
{{- if hasKey $values $digit -}}{{- $value = get $values $digit -}}{{- end -}}
{{- $number = mod (add (mul $number 16) $value) $modulus -}}
{{- end -}}
{{- range until (int .length) -}}
{{- $digit := mod $number 36 | int -}}
{{- substr $digit (int (add $digit 1)) "0123456789abcdefghijklmnopqrstuvwxyz" -}}
{{- $number = div $number 36 -}}
{{- end -}}
{{- end -}}

{{/* controller_lease_name of tf_dist/controller/leases/lease.py, of a controller with namespaces of its own. */}}
{{- define "tf-dist.lease" -}}
{{- $several := sortAlpha .Values.namespaces -}}
{{- if eq (len $several) 1 -}}
tf-dist-controller-{{ first $several }}
{{- else -}}
tf-dist-controller-{{ include "tf-dist.hash" (dict "text" (join "\x00" $several) "length" 10) }}
{{- end -}}
{{- end -}}
