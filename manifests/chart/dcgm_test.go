package chart_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
)

// The values that docs/dcgm.md names reach the container of the check, and nothing else on the node changes.
func TestWhereAChecksDCGMIs(t *testing.T) {
	tests := map[string]struct {
		values, image, args string
		ports               []int32
		nodeIP              bool
	}{
		"nothing set": {"{}", "ghcr.io/pitcrew-dev/npd-plugins:", "check", nil, false},
		"an image":    {"{image: registry.example.com/npd-plugins-dcgm:1}", "registry.example.com/npd-plugins-dcgm:1", "check", nil, false},
		"the node": {
			"{root: /host, libraries: /host/opt/lib, nvvs: /host/opt/bin}", "ghcr.io/pitcrew-dev/npd-plugins:",
			"check -dcgm-libraries=/host/opt/lib -dcgm-root=/host -nvvs=/host/opt/bin", nil, false,
		},
		"a driver elsewhere": {"{driverRoot: /host/opt/gpu}", "ghcr.io/pitcrew-dev/npd-plugins:", "check -driver-root=/host/opt/gpu", nil, false},
		"a service": {
			`{hostengine: "nvidia-dcgm.gpu-operator:5555"}`, "ghcr.io/pitcrew-dev/npd-plugins:", "check -hostengine=nvidia-dcgm.gpu-operator:5555",
			[]int32{5555, 53, 53, 5353, 5353}, false,
		},
		"the node's address": {
			`{hostengine: "$(NODE_IP):5556"}`, "ghcr.io/pitcrew-dev/npd-plugins:", "check -hostengine=$(NODE_IP):5556", []int32{5556}, true,
		},
		"a socket": {"{hostengine: /host/run/e.sock}", "ghcr.io/pitcrew-dev/npd-plugins:", "check -hostengine=/host/run/e.sock", nil, false},
		"no port":  {"{hostengine: 10.1.2.3}", "ghcr.io/pitcrew-dev/npd-plugins:", "check -hostengine=10.1.2.3", []int32{5555}, false},
	}
	before := podTemplates(t, mustRender(t, repairEnabled))
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			objects := mustRender(t, "repair: {enabled: true, dcgm: "+test.values+"}")
			templates := podTemplates(t, objects)
			check := templates["check"].Template.Spec.Containers[0]
			if !strings.HasPrefix(check.Image, test.image) || strings.Join(check.Args, " ") != test.args {
				t.Errorf("image %s, args %q", check.Image, check.Args)
			}
			if got := slices.ContainsFunc(check.Env, func(e corev1.EnvVar) bool {
				return e.Name == "NODE_IP" && e.ValueFrom.FieldRef.FieldPath == "status.hostIP"
			}); got != test.nodeIP {
				t.Errorf("env %v", check.Env)
			}
			for name := range templates {
				if diff := cmp.Diff(before[name].Template, templates[name].Template); name != "check" && diff != "" {
					t.Errorf("%s: %s", name, diff)
				}
			}
			var ports []int32
			for _, rule := range find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "pitcrew-repair").Spec.Egress {
				for _, port := range rule.Ports {
					ports = append(ports, port.Port.IntVal)
				}
			}
			if diff := cmp.Diff(test.ports, ports); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The health watches of a host engine need its port, and a library of the node.
func TestHealthWatchesReachTheHostEngine(t *testing.T) {
	objects := mustRender(t, `pools: [{name: a, preset: nvidia, checks: {DCGMDiagFailed: {args: {health: true, hostengine: "nvidia-dcgm.gpu-operator:5557"}}}}]`)
	policy := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "pitcrew-node-problem-detector")
	if !slices.ContainsFunc(policy.Spec.Egress, func(rule networkingv1.NetworkPolicyEgressRule) bool {
		return slices.ContainsFunc(rule.Ports, func(p networkingv1.NetworkPolicyPort) bool { return p.Port.IntVal == 5557 })
	}) {
		t.Errorf("egress %v", policy.Spec.Egress)
	}
	pod := find[appsv1.DaemonSet](t, objects, "DaemonSet", "pitcrew-npd-a").Spec.Template.Spec
	if !slices.ContainsFunc(pod.Containers[0].VolumeMounts, func(m corev1.VolumeMount) bool { return m.MountPath == "/host/root" && m.ReadOnly }) {
		t.Errorf("mounts %v", pod.Containers[0].VolumeMounts)
	}
	monitor := find[corev1.ConfigMap](t, objects, "ConfigMap", "pitcrew-npd-a").Data["DCGMDiagFailed.json"]
	if !strings.Contains(monitor, `"-dcgm-root=/host/root"`) {
		t.Error(monitor)
	}
}
