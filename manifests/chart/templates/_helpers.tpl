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

{{- define "pitcrew.policyConfigMap" -}}
{{ default "pitcrew-policy" .Values.remediator.policyConfigMap }}
{{- end }}

{{- /* dict root, pool: what the pool comes to: checks with their arguments, needs, selectors. As YAML. */}}
{{- define "pitcrew.pool" -}}
{{- $known := .root.Files.Get "files/checks.yaml" | fromYaml }}
{{- $preset := dict }}
{{- with .pool.preset }}{{ $preset = get $known.presets . }}{{ end }}
{{- $wanted := dict }}
{{- range $preset.checks }}{{ $_ := set $wanted . (dig "args" . dict $preset) }}{{ end }}
{{- range $type, $check := .pool.checks }}
{{- if dig "enabled" true $check }}{{ $_ := set $wanted $type (merge dict ($check.args | default dict) (get $wanted $type | default dict)) }}{{ else }}{{ $_ := unset $wanted $type }}{{ end }}
{{- end }}
{{- range $proof, $why := include "pitcrew.proofs" .root | fromYaml }}
{{- $beside := false }}
{{- range dig $proof "beside" list $known.checks }}{{ $beside = or $beside (hasKey $wanted .) }}{{ end }}
{{- if and $beside (not (hasKey $wanted $proof)) }}
{{- if hasKey ($.pool.checks | default dict) $proof }}
{{- fail (printf "pool %s: %s is switched off, and %s, which is proven by it" $.pool.name $proof $why) }}
{{- end }}
{{- $_ := set $wanted $proof dict }}
{{- end }}
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
{{- $args = concat $args (.args | default list) }}
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
{{- if eq .name "kubelet-pod-resources" }}{{ $_ := set . "hostPath" (include "pitcrew.podResources" $.root) }}{{ end }}
{{- end }}
{{- $own := or .pool.nodeSelector .pool.matchExpressions }}
{{- dict "checks" $checks "mounts" $mounts "capabilities" $capabilities "libraries" $libraries "privileged" ($privileged | default false)
  "nodeSelector" (.pool.nodeSelector | default dict)
  "matchExpressions" (empty $own | ternary ($preset.matchExpressions | default list) (.pool.matchExpressions | default list)) | toYaml }}
{{- end }}

{{- /* Where the kubelet has its socket for which pods have a device. */}}
{{- define "pitcrew.podResources" -}}{{ trimSuffix "/" .Values.npd.kubeletDir }}/pod-resources{{- end }}

{{- /* dict root, type, args: the monitor of a condition with further arguments; of a flag that is there twice the last one counts. */}}
{{- define "pitcrew.monitor" -}}
{{- $monitor := .root.Files.Get (printf "files/monitors/%s.json" .type) | fromJson }}
{{- $rule := first $monitor.rules }}
{{- $_ := set $rule "args" (concat $rule.args .args | default list) }}
{{- toPrettyJson $monitor }}
{{- end }}

{{- /* dict root, file, namespace, rules, variables: the objects of a plain file, with our labels. What is in namespace pitcrew there is
in the release's, and what is in none of them, in the given one. An admission policy matches also the rules that are there by its name,
and its variables have the expressions that are there by their names. */}}
{{- define "pitcrew.objects" -}}
{{- $root := .root }}
{{- $namespace := .namespace }}
{{- $rules := .rules | default dict }}
{{- $variables := .variables | default dict }}
{{- $labels := include "pitcrew.labels" $root | fromYaml }}
{{- range regexSplit "(?m)^---$" ($root.Files.Get .file) -1 }}
{{- with fromYaml . }}
{{- $_ := set .metadata "labels" (merge $labels (.metadata.labels | default dict)) }}
{{- if eq "pitcrew" (.metadata.namespace | default "") }}{{ $_ := set .metadata "namespace" $root.Release.Namespace }}
{{- else if $namespace }}{{ $_ := set .metadata "namespace" $namespace }}{{ end }}
{{- range .subjects }}
{{- $_ := set . "namespace" (empty .namespace | ternary $namespace $root.Release.Namespace) }}
{{- end }}
{{- if and (eq .kind "ValidatingAdmissionPolicy") (hasKey $rules .metadata.name) }}
{{- $_ := set .spec.matchConstraints "resourceRules" (concat .spec.matchConstraints.resourceRules (get $rules .metadata.name)) }}
{{- end }}
{{- if hasSuffix "AdmissionPolicy" .kind }}
{{- range .spec.variables }}
{{- if hasKey $variables .name }}{{ $_ := set . "expression" (get $variables .name) }}{{ end }}
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

{{- /* The labels of the presets, negated, and that of the AMD GPU operator. A node without such a label matches, too. */}}
{{- define "pitcrew.withoutAccelerators" -}}
{{- $without := list (dict "key" "feature.node.kubernetes.io/amd-gpu" "operator" "NotIn" "values" (list "true")) }}
{{- range $name, $preset := (.Files.Get "files/checks.yaml" | fromYaml).presets }}
{{- /* The first is that of the accelerator; a network adapter alone is on other nodes, too. */}}
{{- with first $preset.matchExpressions }}
{{- $not := dict "key" .key "operator" "NotIn" "values" .values }}
{{- if eq .operator "Exists" }}{{ $not = dict "key" .key "operator" "DoesNotExist" }}{{ end }}
{{- $without = append $without $not }}
{{- end }}
{{- end }}
{{- toYaml (uniq $without) }}
{{- end }}
{{- /* Fails for a rule in the values that changes no rule of the shipped policy and is none of the user's own: its name is misspelt. */}}
{{- define "pitcrew.checkRules" -}}
{{- $shipped := .shipped }}
{{- range $name, $rule := .rules }}
{{- if not (or (hasKey $shipped $name) (and (kindIs "map" $rule) (hasKey $rule "match"))) }}
{{- $near := list }}
{{- $forms := include "pitcrew.withoutALetter" $name | fromJsonArray }}
{{- range $known, $_ := $shipped }}
{{- range include "pitcrew.withoutALetter" $known | fromJsonArray }}
{{- if has . $forms }}{{ $near = append $near $known }}{{ end }}
{{- end }}
{{- end }}
{{- $hint := printf "the rules are %s" (keys $shipped | sortAlpha | join ", ") }}
{{- with $near }}{{ $hint = printf "did you mean %s?" (uniq . | join " or ") }}{{ end }}
{{- fail (printf "policy.rules: no rule %s; %s (a rule of your own needs a match)" $name $hint) }}
{{- end }}
{{- end }}
{{- end }}
{{- /* A word, and the word without each of its letters: words that differ by a letter, or by two that changed places, have one of these
in common. */}}
{{- define "pitcrew.withoutALetter" -}}
{{- $word := . }}
{{- $all := list $word }}
{{- range $i := until (len $word) }}
{{- $all = append $all (printf "%s%s" (substr 0 $i $word) (substr (int (add $i 1)) (len $word) $word)) }}
{{- end }}
{{- toJson $all }}
{{- end }}
{{- /* dict policy: what of it needs repair.enabled, as a JSON list. YAML reads off as false. */}}
{{- define "pitcrew.repairs" -}}
{{- $wants := list }}
{{- if kindIs "map" .repair }}{{ if not (has (toString (dig "mode" "approve" .repair)) (list "off" "false")) }}{{ $wants = append $wants "repair" }}{{ end }}{{ end }}
{{- if .sweeps }}{{ $wants = append $wants "sweeps" }}{{ end }}
{{- if kindIs "map" .firstCheck }}{{ $wants = append $wants "firstCheck" }}{{ end }}
{{- range $name, $rule := .rules }}
{{- if and (kindIs "map" $rule) (get $rule "validate") }}{{ $wants = append $wants (printf "rules.%s.validate" $name) }}{{ end }}
{{- end }}
{{- toJson $wants }}
{{- end }}
{{- /* dict root, policy: fails if the policy wants what is not installed. */}}
{{- define "pitcrew.checkRepair" -}}
{{- with include "pitcrew.repairs" .policy | fromJsonArray }}
{{- if not ($.root.Values.repair).enabled }}
{{- fail (printf "policy.%s needs repair.enabled=true: without it there are no Jobs on nodes" (first .)) }}
{{- end }}
{{- end }}
{{- end }}
