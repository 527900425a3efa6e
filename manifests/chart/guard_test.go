package chart_test

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"
)

const allPools = "pools: [{name: p, preset: nvidia}]\n"

// Without values a namespace that is not the monitoring's cannot connect, and the pods cannot connect to what is not the API
// server, DNS or a web server.
func TestNetworkPoliciesAreClosedByDefault(t *testing.T) {
	monitoring := []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "monitoring"}}}}
	dns := networkingv1.NetworkPolicyEgressRule{Ports: []networkingv1.NetworkPolicyPort{
		openPort(corev1.ProtocolUDP, 53), openPort(corev1.ProtocolTCP, 53), openPort(corev1.ProtocolUDP, 5353), openPort(corev1.ProtocolTCP, 5353),
	}}
	for name, metrics := range map[string]int{"pitcrew-remediator": 8080, "pitcrew-node-problem-detector": 20257} {
		got := find[networkingv1.NetworkPolicy](t, mustRender(t, allPools), "NetworkPolicy", name)
		want := networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": name}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress, networkingv1.PolicyTypeEgress},
			Ingress:     []networkingv1.NetworkPolicyIngressRule{{Ports: []networkingv1.NetworkPolicyPort{openPort(corev1.ProtocolTCP, metrics)}, From: monitoring}},
			Egress:      []networkingv1.NetworkPolicyEgressRule{dns, {Ports: []networkingv1.NetworkPolicyPort{openPort(corev1.ProtocolTCP, 443), openPort(corev1.ProtocolTCP, 6443)}}},
		}
		if diff := cmp.Diff(want, got.Spec); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	if text, err := render(t, "networkPolicies: {enabled: false}"); err != nil || strings.Contains(text, "NetworkPolicy") {
		t.Errorf("switched off: %v", err)
	}
}

func openPort(protocol corev1.Protocol, port int) networkingv1.NetworkPolicyPort {
	return networkingv1.NetworkPolicyPort{Protocol: &protocol, Port: ptr.To(intstr.FromInt(port))}
}

func TestNetworkPoliciesAreNarrowed(t *testing.T) {
	const block = "[{ipBlock: {cidr: 10.0.0.1/32}}]"
	objects := mustRender(t, allPools+`policy: {webhooks: {a: {url: "https://a:8443/x", secretFile: s}, b: {url: "https://b/x", secretFile: s}, c: {url: "http://c", allowHTTP: true, secretFile: s}}}
networkPolicies: {metricsFrom: [], egressPorts: [16443], egressTo: `+block+"}")
	for name, want := range map[string][]int{"pitcrew-remediator": {16443, 8443, 443, 80}, "pitcrew-node-problem-detector": {16443}} {
		policy := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", name)
		if len(policy.Spec.Ingress) != 0 {
			t.Errorf("%s: an empty list of peers lets in %+v", name, policy.Spec.Ingress)
		}
		if len(policy.Spec.Egress) != 2 {
			t.Fatalf("%s: egress %+v", name, policy.Spec.Egress)
		}
		var ports []int
		for _, p := range policy.Spec.Egress[1].Ports {
			ports = append(ports, p.Port.IntValue())
		}
		if !slices.Equal(ports, want) {
			t.Errorf("%s: ports %d, want %d", name, ports, want)
		}
		if diff := cmp.Diff([]networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.1/32"}}}, policy.Spec.Egress[1].To); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// The token of the remediator should not be on a node where a tenant may break out of a container.
func TestTheRemediatorPrefersNodesWithoutAccelerators(t *testing.T) {
	affinity := remediatorAffinity(t, mustRender(t, ""))
	if affinity == nil || affinity.NodeAffinity == nil || affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution != nil {
		t.Fatalf("affinity %+v: there must be a preference, and no requirement, since a cluster may have no other nodes", affinity)
	}
	preferred, err := nodeaffinity.NewPreferredSchedulingTerms(affinity.NodeAffinity.PreferredDuringSchedulingIgnoredDuringExecution)
	if err != nil {
		t.Fatal(err)
	}
	score := func(labels map[string]string) int64 {
		return preferred.Score(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: labels}})
	}
	for name, labels := range map[string]map[string]string{
		"no labels":    nil,
		"another type": {corev1.LabelInstanceTypeStable: "m5.large", "accelerator": "none", "nvidia.com/gpu.present": "false"},
		"RDMA alone":   {"feature.node.kubernetes.io/pci-15b3.present": "true"},
	} {
		if score(labels) == 0 {
			t.Errorf("%s: is not preferred", name)
		}
	}
	text, err := os.ReadFile("files/checks.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var known struct {
		Presets map[string]struct {
			MatchExpressions []corev1.NodeSelectorRequirement `json:"matchExpressions"`
		} `json:"presets"`
	}
	if err := yaml.Unmarshal(text, &known); err != nil || len(known.Presets) == 0 {
		t.Fatal(known, err)
	}
	for name, preset := range known.Presets {
		for _, value := range preset.MatchExpressions[0].Values {
			if score(map[string]string{preset.MatchExpressions[0].Key: value}) != 0 {
				t.Errorf("a node of preset %s (%s=%s) is preferred", name, preset.MatchExpressions[0].Key, value)
			}
		}
	}
	if score(map[string]string{"feature.node.kubernetes.io/amd-gpu": "true"}) != 0 {
		t.Error("a node with AMD GPUs is preferred")
	}
	own := remediatorAffinity(t, mustRender(t, "remediator: {affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: zone}]}}}"))
	if own.NodeAffinity != nil || own.PodAntiAffinity == nil {
		t.Errorf("an affinity of the user's own: %+v", own)
	}
}

func remediatorAffinity(t *testing.T, objects []*unstructured.Unstructured) *corev1.Affinity {
	t.Helper()
	return find[appsv1.Deployment](t, objects, "Deployment", "pitcrew-remediator").Spec.Template.Spec.Affinity
}

// One value switches the policies on the remediator's own account, and a kind that the policy names is matched, too.
func TestAdmissionPoliciesOnTheRemediator(t *testing.T) {
	const name = "pitcrew-remediator-jobs"
	shipped := find[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, ""), "ValidatingAdmissionPolicy", name).Spec.MatchConstraints.ResourceRules
	const gangs = "policy: {jobKinds: [{apiVersion: example.com/v1, kind: Gang, suspendPath: spec.suspend, podLabel: a}, {apiVersion: example.com/v2, kind: Crew, suspendPath: spec.suspend, podLabel: a}]}"
	rules := find[admissionv1.ValidatingAdmissionPolicy](t, mustRender(t, gangs), "ValidatingAdmissionPolicy", name).Spec.MatchConstraints.ResourceRules
	want := append(slices.Clone(shipped), admissionv1.NamedRuleWithOperations{RuleWithOperations: admissionv1.RuleWithOperations{
		Operations: []admissionv1.OperationType{admissionv1.Update},
		Rule:       admissionv1.Rule{APIGroups: []string{"example.com"}, APIVersions: []string{"*"}, Resources: []string{"*/*"}},
	}})
	if diff := cmp.Diff(want, rules); diff != "" {
		t.Error(diff)
	}
	for _, values := range []string{"admissionPolicies: false", "remediator: {enabled: false}"} {
		if text, err := render(t, values); err != nil || strings.Contains(text, "name: pitcrew-remediator-jobs") {
			t.Errorf("%s: the policies are there, or %v", values, err)
		}
	}
}
