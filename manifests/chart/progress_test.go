package chart_test

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

func TestPortsOfNCCLRASAreOpenOnlyToPods(t *testing.T) {
	for values, open := range map[string]bool{
		"progress: {enabled: true, ncclRASPorts: [28028]}\n":  true,
		"progress: {enabled: false, ncclRASPorts: [28028]}\n": false,
		"progress: {enabled: true}\n":                         false,
	} {
		objects := mustRender(t, allPools+values)
		rules := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "pitcrew-remediator").Spec.Egress
		if got := len(rules) == 3; got != open {
			t.Fatalf("%s: %+v", values, rules)
		}
		if open {
			if rule := rules[2]; len(rule.Ports) != 1 || rule.Ports[0].Port.IntValue() != 28028 || len(rule.To) != 1 || rule.To[0].NamespaceSelector == nil || rule.To[0].IPBlock != nil {
				t.Errorf("%+v", rule)
			}
		}
		if rules := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "pitcrew-node-problem-detector").Spec.Egress; len(rules) != 2 {
			t.Errorf("%+v", rules)
		}
	}
	if _, err := render(t, "progress: {ncclRASPorts: [443]}"); err == nil {
		t.Error("a system port is accepted")
	}
}

func TestLogsAreReadOnlyIfAValueSaysSo(t *testing.T) {
	text, err := render(t, "{}")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(text, "pods/log") {
		t.Error("without values the remediator may read logs")
	}
	objects := mustRender(t, "progress: {enabled: true}\n")
	role := find[rbacv1.ClusterRole](t, objects, "ClusterRole", "pitcrew-remediator-progress")
	for _, rule := range role.Rules {
		for _, verb := range rule.Verbs {
			if verb != "get" && verb != "list" && verb != "watch" && rule.Resources[0] != "configmaps" || rule.Resources[0] == "configmaps" && verb != "create" {
				t.Errorf("it may %s %s", verb, rule.Resources)
			}
		}
	}
	binding := find[rbacv1.ClusterRoleBinding](t, objects, "ClusterRoleBinding", role.Name)
	if binding.RoleRef.Name != role.Name || binding.Subjects[0].Name != "pitcrew-remediator" || binding.Subjects[0].Namespace != "pitcrew" {
		t.Errorf("%+v", binding)
	}
}
