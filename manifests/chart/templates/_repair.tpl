{{- /* The PodTemplates by name: annotations, and the spec of a pod. One of the values takes the place of a shipped one. As YAML. */}}
{{- define "pitcrew.repairTemplates" -}}
{{- $templates := include "pitcrew.shippedTemplates" . | fromYaml }}
{{- range $name, $template := (.Values.repair).templates }}{{ $_ := set $templates $name $template }}{{ end }}
{{- toYaml $templates }}
{{- end }}

{{- /* The flag for the namespaces of the driver's pods, behind other arguments. */}}
{{- define "pitcrew.driverNamespaces" -}}
{{- with (.Values.repair).driverNamespaces }}, {{ printf "-driver-namespaces=%s" (join "," .) | quote }}{{ end }}
{{- end }}

{{- define "pitcrew.shippedTemplates" -}}
{{- $container := dict "image" (include "pitcrew.image" (dict "root" . "name" "npd-plugins" "tag" (.Values.repair).tag)) "imagePullPolicy" .Values.image.pullPolicy "command" (list "/opt/pitcrew/bin/repair") }}
# Its program runs the diagnostics of the plugin dcgm, which then judges the report.
check:
  annotations: {pitcrew.dev/verdict: DCGMDiagFailed}
  spec:
    # To see which processes have a GPU open, and so whether the node is idle.
    hostPID: true
    terminationGracePeriodSeconds: 30
    containers:
    - name: check
      {{- toYaml (merge (include "pitcrew.dcgmContainer" . | fromYaml) $container) | nindent 6 }}
      # The device cgroup denies the GPUs to an unprivileged container, and the links of other pods' processes need CAP_SYS_PTRACE.
      securityContext: {privileged: true, readOnlyRootFilesystem: true}
      volumeMounts:
      - {name: state, mountPath: /run/pitcrew}
      - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
      - {name: pod-logs, mountPath: /var/log/pods, readOnly: true}
      - {name: systemd, mountPath: /run/systemd, readOnly: true}
      - {name: host, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
    volumes: &volumes
    - {name: state, hostPath: {path: {{ .Values.npd.stateDir }}, type: DirectoryOrCreate}}
    # Which pods the kubelet has given a GPU, and their names.
    - {name: pod-resources, hostPath: {path: {{ include "pitcrew.podResources" . }}, type: DirectoryOrCreate}}
    - {name: pod-logs, hostPath: {path: /var/log/pods, type: DirectoryOrCreate}}
    # To stop and start the services that have a GPU open.
    - {name: systemd, hostPath: {path: /run/systemd, type: DirectoryOrCreate}}
    # The driver's libraries and tools, and the node's DCGM.
    - {name: host, hostPath: {path: /, type: Directory}}
reset-gpu:
  # Exporter, device plugin and the like leave the node until the reset is over.
  annotations: {pitcrew.dev/pauses: gpu-operator}
  spec:
    hostPID: true
    # A reset that has begun is ended, and what was stopped is started again.
    terminationGracePeriodSeconds: 330
    containers:
    - name: reset-gpu
      {{- toYaml $container | nindent 6 }}
      args: [reset-gpu, -gpu=$(GPUS){{ include "pitcrew.driverNamespaces" . }}]
      securityContext: {privileged: true, readOnlyRootFilesystem: true}
      volumeMounts:
      - {name: state, mountPath: /run/pitcrew}
      - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
      - {name: pod-logs, mountPath: /var/log/pods, readOnly: true}
      - {name: systemd, mountPath: /run/systemd, readOnly: true}
      # The vendor's tool runs in it.
      - {name: host, mountPath: /host, mountPropagation: HostToContainer}
    volumes: *volumes
reboot:
  spec:
    # To see which processes have a GPU open.
    hostPID: true
    terminationGracePeriodSeconds: 30
    containers:
    - name: reboot
      {{- toYaml $container | nindent 6 }}
      args: [reboot, -boot-id=$(BOOT_ID){{ include "pitcrew.driverNamespaces" . }}]
      # It asks logind over D-Bus. The profiles for containers deny that.
      securityContext:
        runAsUser: 0
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        # Which files the processes of others have open.
        capabilities: {drop: [ALL], add: [DAC_READ_SEARCH, SYS_PTRACE]}
        seccompProfile: {type: RuntimeDefault}
        appArmorProfile: {type: Unconfined}
        seLinuxOptions: {type: spc_t}
      volumeMounts:
      - {name: dbus, mountPath: /run/dbus, readOnly: true}
      - {name: pod-resources, mountPath: /var/lib/kubelet/pod-resources, readOnly: true}
      - {name: pod-logs, mountPath: /var/log/pods, readOnly: true}
    volumes:
    - {name: dbus, hostPath: {path: /run/dbus, type: DirectoryOrCreate}}
    - {name: pod-resources, hostPath: {path: {{ include "pitcrew.podResources" . }}, type: DirectoryOrCreate}}
    - {name: pod-logs, hostPath: {path: /var/log/pods, type: DirectoryOrCreate}}
{{- with (.Values.repair).collect }}{{ if .enabled }}
{{- $evidence := ternary (dict "persistentVolumeClaim" (dict "claimName" .claim)) (dict "hostPath" (dict "path" .hostPath "type" "DirectoryOrCreate")) (ne .claim "") }}
# What a vendor asks for, before a reset or a reboot wipes it. It changes nothing but the directory of the bundles.
collect:
  spec:
    hostPID: true
    # What it has read so far becomes a bundle.
    terminationGracePeriodSeconds: 30
    containers:
    - name: collect
      {{- toYaml $container | nindent 6 }}
      args: [collect, -node=$(NODE), -keep={{ .keep }}, -max-size={{ .maxMiB }}, -min-free={{ .minFreePercent }}, -timeout={{ .timeout }}]
      # The device cgroup denies the GPUs and /dev/kmsg to an unprivileged container.
      securityContext: {privileged: true, readOnlyRootFilesystem: true}
      volumeMounts:
      - {name: state, mountPath: /run/pitcrew}
      - {name: systemd, mountPath: /run/systemd, readOnly: true}
      # The vendor's tools run in it. They write their reports to /run of the node, which is a mount of its own.
      - {name: host, mountPath: /host, readOnly: true, mountPropagation: HostToContainer}
      - {name: evidence, mountPath: /evidence}
    volumes:
    - {name: state, hostPath: {path: {{ $.Values.npd.stateDir }}, type: DirectoryOrCreate}}
    - {name: systemd, hostPath: {path: /run/systemd, type: DirectoryOrCreate}}
    - {name: host, hostPath: {path: /, type: Directory}}
    - {{ set $evidence "name" "evidence" | toJson }}
# `kubectl pitcrew collect` adds the time of the one bundle that it reads.
print-bundle:
  spec:
    terminationGracePeriodSeconds: 0
    containers:
    - name: print-bundle
      {{- toYaml $container | nindent 6 }}
      args: [print-bundle, -node=$(NODE)]
      # The directory of the bundles is root's.
      securityContext:
        runAsUser: 0
        allowPrivilegeEscalation: false
        readOnlyRootFilesystem: true
        capabilities: {drop: [ALL]}
        seccompProfile: {type: RuntimeDefault}
      volumeMounts:
      - {name: evidence, mountPath: /evidence, readOnly: true}
    volumes:
    - {{ set $evidence "name" "evidence" | toJson }}
{{- end }}{{ end }}
{{- end }}
{{- /* The conditions that report what the Jobs of the policy find, with the fields that ask for these Jobs, as YAML. */}}
{{- define "pitcrew.proofs" -}}
{{- $policy := .Values.policy | default dict }}
{{- $jobs := dict }}
{{- range $name, $sweep := $policy.sweeps }}{{ $_ := set $jobs (printf "sweeps.%s" $name) $sweep }}{{ end }}
{{- with $policy.firstCheck }}{{ $_ := set $jobs "firstCheck" . }}{{ end }}
{{- if kindIs "map" $policy.repair }}{{ with $policy.repair.validate }}{{ $_ := set $jobs "repair.validate" . }}{{ end }}{{ end }}
{{- $proofs := dict }}
{{- if (.Values.repair).enabled }}
{{- $templates := include "pitcrew.repairTemplates" . | fromYaml }}
{{- range $field, $job := $jobs }}
{{- if kindIs "map" $job }}
{{- with dig (toString $job.template) "annotations" "pitcrew.dev/verdict" "" $templates }}
{{- range splitList "," . }}
{{- $_ := set $proofs (trim .) (printf "policy.%s has template %s" $field $job.template) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- toYaml $proofs }}
{{- end }}
{{- /* What the detectors of the pools report, for the policy; fails if no pool reports what proves a Job. As YAML. */}}
{{- define "pitcrew.policyPools" -}}
{{- $all := dict }}
{{- $reported := list }}
{{- range (.Values.policy | default dict).pools }}{{ $reported = concat $reported (.conditions | default list) }}{{ end }}
{{- range .Values.pools }}
{{- $is := include "pitcrew.pool" (dict "root" $ "pool" .) | fromYaml }}
{{- $conditions := keys $is.checks | sortAlpha }}
{{- $reported = concat $reported $conditions }}
{{- $_ := set $all .name (dict "nodeSelector" $is.nodeSelector "matchExpressions" $is.matchExpressions "conditions" $conditions) }}
{{- end }}
{{- range $condition, $why := include "pitcrew.proofs" . | fromYaml }}
{{- if and $all (not (has $condition $reported)) }}
{{- fail (printf "%s, which is proven by %s, and no pool reports that: add it to the checks of a pool" $why $condition) }}
{{- end }}
{{- end }}
{{- toYaml $all }}
{{- end }}
{{- /* The namespaces whose reports of preflights count as those of the cluster's admins, as a JSON list. */}}
{{- define "pitcrew.trustedNamespaces" -}}
{{- $trusted := .Values.preflight.trustedNamespaces | default list }}
{{- toJson (uniq $trusted) }}
{{- end }}
