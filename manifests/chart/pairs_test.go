package chart_test

import (
	"slices"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const pairsEnabled = `
repair: {enabled: true, pairs: {enabled: true, args: [-command=all_reduce_perf -b 1G]}}
preflight: {trustedNamespaces: [health]}
policy: {sweeps: {pairs: {every: 24h, template: preflight, pairwise: {}}}}
`

func TestPairs(t *testing.T) {
	objects := mustRender(t, pairsEnabled)
	template := podTemplates(t, objects)["preflight"]
	pod := template.Template.Spec
	first := pod.Containers[0]
	if got, want := strings.Join(first.Args, " "), "-rank=$(RANK) -size=$(SIZE) -leader=$(LEADER) -rounds=$(ROUNDS) -node=$(NODE) -termination-log=/dev/termination-log -command=all_reduce_perf -b 1G"; got != want || first.Command != nil {
		t.Errorf("%q %q", first.Command, got)
	}
	if s := first.SecurityContext; !*s.RunAsNonRoot || *s.RunAsUser != 65532 || *s.AllowPrivilegeEscalation || !*s.ReadOnlyRootFilesystem || s.Privileged != nil || len(pod.Volumes) > 0 || pod.HostPID || pod.HostIPC || !pod.HostNetwork {
		t.Errorf("%+v", pod)
	}
	if pod.ServiceAccountName != "pitcrew-preflight" || *pod.AutomountServiceAccountToken != true || ptr.Deref(pod.TerminationGracePeriodSeconds, 0) > 10 {
		t.Errorf("account %s, token %v", pod.ServiceAccountName, pod.AutomountServiceAccountToken)
	}
	onlyWorkers(t, "preflight", &template.Template)
	args := find[appsv1.Deployment](t, objects, "Deployment", "pitcrew-remediator").Spec.Template.Spec.Containers[0].Args
	if !slices.Contains(args, "-preflight-trusted-namespaces=health,pitcrew-repair") {
		t.Errorf("args %q", args)
	}
	// The account may create reports and read its pod there, and nothing else.
	there := slices.DeleteFunc(slices.Clone(objects), func(o *unstructured.Unstructured) bool { return o.GetNamespace() != conditions.RepairNamespace })
	for _, rule := range find[rbacv1.Role](t, there, "Role", "pitcrew-preflight-report").Rules {
		if got := strings.Join(rule.Resources, ",") + " " + strings.Join(rule.Verbs, ","); got != "configmaps create" && got != "pods get" {
			t.Errorf("right %s", got)
		}
	}
	for _, name := range []string{"pitcrew-preflight-report", "pitcrew-preflight-collect"} {
		find[rbacv1.RoleBinding](t, there, "RoleBinding", name)
	}
	admitsOnly(t, objects, []string{"check", "preflight", "reboot", "reset-gpu"})
}

func TestWithoutPairsThereIsNoAccountWithAToken(t *testing.T) {
	objects := mustRender(t, repairEnabled)
	if _, ok := podTemplates(t, objects)["preflight"]; ok {
		t.Error("there is the template")
	}
	for _, o := range objects {
		if o.GetKind() == "ServiceAccount" && o.GetNamespace() == conditions.RepairNamespace && o.GetName() != "pitcrew-repair" {
			t.Errorf("account %s", o.GetName())
		}
	}
	for _, arg := range find[appsv1.Deployment](t, objects, "Deployment", "pitcrew-remediator").Spec.Template.Spec.Containers[0].Args {
		if strings.HasPrefix(arg, "-preflight") {
			t.Errorf("flag %s", arg)
		}
	}
	if _, err := render(t, strings.Replace(pairsEnabled, "pairs: {enabled: true", "pairs: {enabled: false", 1)); err == nil || !strings.Contains(err.Error(), "policy.sweeps.pairs.pairwise needs repair.pairs.enabled=true") {
		t.Errorf("error %v", err)
	}
	if _, err := render(t, "repair: {pairs: {enabled: true}}"); err == nil || !strings.Contains(err.Error(), "repair.pairs.enabled needs repair.enabled") {
		t.Errorf("error %v", err)
	}
}
