{{- define "pitcrew.labels" -}}
app.kubernetes.io/part-of: pitcrew
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- /* dict root, name, tag: a digest serves as a tag. */}}
{{- define "pitcrew.image" -}}
{{- $tag := coalesce .tag .root.Values.image.tag .root.Chart.AppVersion -}}
{{ .root.Values.image.registry }}/{{ .name }}{{ hasPrefix "sha256:" $tag | ternary "@" ":" }}{{ $tag }}
{{- end }}

{{- /* dict root, pool: what the pool comes to: checks with their arguments, needs, selectors. As YAML. */}}
{{- define "pitcrew.pool" -}}
{{- $known := .root.Files.Get "files/checks.yaml" | fromYaml }}
{{- $preset := dict }}
{{- with .pool.preset }}{{ $preset = get $known.presets . }}{{ end }}
{{- $wanted := dict }}
{{- range $preset.checks }}{{ $_ := set $wanted . dict }}{{ end }}
{{- range $type, $check := .pool.checks }}
{{- if dig "enabled" true $check }}{{ $_ := set $wanted $type ($check.args | default dict) }}{{ else }}{{ $_ := unset $wanted $type }}{{ end }}
{{- end }}
{{- if not $wanted }}{{ fail (printf "pool %s: every check is switched off" .pool.name) }}{{ end }}
{{- $checks := dict }}
{{- $needs := list }}
{{- range $type, $values := $wanted }}
{{- $check := get $known.checks $type }}
{{- $needs = concat $needs $check.needs }}
{{- $args := $check.args | default list }}
{{- range $flag, $value := $values }}
{{- with dig "argNeeds" $flag dict $check }}
{{- $needs = concat $needs .needs }}
{{- $args = concat $args .args }}
{{- end }}
{{- $args = append $args (printf "-%s=%s" $flag (kindIs "string" $value | ternary $value (toJson $value))) }}
{{- end }}
{{- $_ := set $checks $type (uniq $args) }}
{{- end }}
{{- $mounts := list (dict "name" "state" "hostPath" .root.Values.npd.stateDir "type" "DirectoryOrCreate" "mountPath" "/run/pitcrew") }}
{{- $capabilities := list }}
{{- $libraries := list }}
{{- $privileged := false }}
{{- range $needs | uniq | sortAlpha }}
{{- $need := get $known.needs . }}
{{- $mounts = concat $mounts $need.mounts }}
{{- $capabilities = concat $capabilities ($need.capabilities | default list) }}
{{- $libraries = concat $libraries ($need.libraries | default list) }}
{{- $privileged = or $privileged $need.privileged }}
{{- end }}
{{- range $mounts }}
{{- if eq .name "driver" }}{{ $_ := set . "hostPath" (coalesce $.pool.driverRoot $preset.driverRoot "/run/nvidia/driver") }}{{ end }}
{{- end }}
{{- $own := or .pool.nodeSelector .pool.matchExpressions }}
{{- dict "checks" $checks "mounts" $mounts "capabilities" $capabilities "libraries" $libraries "privileged" ($privileged | default false)
  "nodeSelector" (.pool.nodeSelector | default dict)
  "matchExpressions" (empty $own | ternary ($preset.matchExpressions | default list) (.pool.matchExpressions | default list)) | toYaml }}
{{- end }}

{{- /* dict root, type, args: the monitor of a condition with further arguments; of a flag that is there twice the last one counts. */}}
{{- define "pitcrew.monitor" -}}
{{- $monitor := .root.Files.Get (printf "files/monitors/%s.json" .type) | fromJson }}
{{- $rule := first $monitor.rules }}
{{- $_ := set $rule "args" (concat $rule.args .args | default list) }}
{{- toPrettyJson $monitor }}
{{- end }}

{{- /* dict root, file, namespace: the objects of a plain file, with our labels. What is in namespace pitcrew there is in the
release's, and what is in none of them, in the given one. The policy for jobs gets the value policy's jobKinds. */}}
{{- define "pitcrew.objects" -}}
{{- $root := .root }}
{{- $namespace := .namespace }}
{{- $labels := include "pitcrew.labels" $root | fromYaml }}
{{- range regexSplit "(?m)^---$" ($root.Files.Get .file) -1 }}
{{- with fromYaml . }}
{{- $_ := set .metadata "labels" (merge $labels (.metadata.labels | default dict)) }}
{{- if eq "pitcrew" (.metadata.namespace | default "") }}{{ $_ := set .metadata "namespace" $root.Release.Namespace }}
{{- else if $namespace }}{{ $_ := set .metadata "namespace" $namespace }}{{ end }}
{{- range .subjects }}
{{- $_ := set . "namespace" (empty .namespace | ternary $namespace $root.Release.Namespace) }}
{{- end }}
{{- /* A jobKind names no resource, so all of its API group are meant. */}}
{{- if and (eq .kind "ValidatingAdmissionPolicy") (eq .metadata.name "pitcrew-job-records") }}
{{- $constraints := .spec.matchConstraints }}
{{- range $root.Values.policy.jobKinds }}
{{- if contains "/" .apiVersion }}
{{- $rule := dict "apiGroups" (list (splitList "/" .apiVersion | first)) "apiVersions" (list "*") "resources" (list "*") "operations" (list "CREATE" "UPDATE") }}
{{- $_ := set $constraints "resourceRules" (append $constraints.resourceRules $rule) }}
{{- end }}
{{- end }}
{{- end }}
{{- $release := and (eq .kind "Namespace") (eq .metadata.name "pitcrew") }}
{{- if $release }}
{{- $_ := set .metadata "name" $root.Release.Namespace }}
{{- if $root.Values.pools }}{{ $_ := set .metadata.labels "pod-security.kubernetes.io/enforce" "privileged" }}{{ end }}
{{- end }}
{{- if or (not $release) $root.Values.createNamespace }}
---
{{ toYaml . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
