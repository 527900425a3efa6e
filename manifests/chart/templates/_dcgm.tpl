{{- /* What the values say of DCGM in the container of the template check: its arguments, image and environment. As YAML. */}}
{{- define "pitcrew.dcgmContainer" -}}
{{- $dcgm := (.Values.repair).dcgm | default dict }}
args:
- check
{{- range $flag, $value := dict "driver-root" $dcgm.driverRoot "dcgm-root" $dcgm.root "dcgm-libraries" $dcgm.libraries "nvvs" $dcgm.nvvs "hostengine" $dcgm.hostengine }}
{{- with $value }}
- -{{ $flag }}={{ . }}
{{- end }}
{{- end }}
{{- with (.Values.repair).driverNamespaces }}
- -driver-namespaces={{ join "," . }}
{{- end }}
{{- with $dcgm.image }}
image: {{ . }}
{{- end }}
{{- if contains "$(NODE_IP)" ($dcgm.hostengine | default "") }}
env:
- {name: NODE_IP, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
{{- end }}
{{- end }}
{{- /* The TCP port of a host engine by its address, 0 for a socket and where there is none. */}}
{{- define "pitcrew.dcgmPort" -}}
{{- if or (not .) (hasPrefix "/" .) }}0{{ else }}{{ regexFind ":[0-9]+$" . | trimPrefix ":" | default "5555" }}{{ end }}
{{- end }}
