package chart_test

import (
	"strings"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
)

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
