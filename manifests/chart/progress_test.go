package chart_test

import (
	"strings"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
)

// For one release the chart accepts the value and opens nothing.
func TestPortsOfNCCLRASAreIgnored(t *testing.T) {
	objects := mustRender(t, allPools+"progress: {enabled: true, ncclRASPorts: [28028]}\n")
	if rules := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "pitcrew-remediator").Spec.Egress; len(rules) != 2 {
		t.Errorf("%+v", rules)
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
