package chart_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
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

// The Job that the remediator makes for a node of a group is admitted, and one that names a leader by name, or runs another command, is not.
func TestTheJobsOfAGroupAreAdmitted(t *testing.T) {
	c := clustertest.Get(t)
	names, err := c.AddNodes(t.Context(), "paired", 1, nil)
	if err != nil {
		t.Fatal(err)
	}
	out, err := render(t, strings.Replace(pairsEnabled, "preflight: {trustedNamespaces: [health]}", "createNamespace: true", 1))
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(file, []byte(out), 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, c, "apply", "--server-side", "--validate=strict", "-f", file)
	defer kubectl(t, c, "delete", "--wait", "-f", file)
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  sweeps: {pairs: {every: 24h, template: preflight, pairwise: {}}}
  rules: {slow: {match: {condition: SlowNode, repair: [Inspect]}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var node corev1.Node
	var template corev1.PodTemplate
	for key, o := range map[client.ObjectKey]client.Object{{Name: names[0]}: &node, {Namespace: conditions.RepairNamespace, Name: "preflight"}: &template} {
		if err := c.Client.Get(t.Context(), key, o); err != nil {
			t.Fatal(err)
		}
	}
	f := repair.Facts{
		Node: &node, Namespace: conditions.RepairNamespace, Template: &template, Has: repair.Needs{Pods: true, Breaker: true, Template: "preflight"},
		Record: &repair.Record{V: 1, NodeUID: node.UID, Current: &repair.Visit{
			ID: "v", Kind: repair.Sweep, Sweep: "pairs", Phase: repair.Emptying, Group: repair.Group{ID: "g", Rank: 2, Size: 3, Leader: "fd00::1"},
		}},
		Members: []repair.Member{{Node: "a", Phase: repair.Emptying}, {Node: "b", Phase: repair.Emptying}},
	}
	now := time.Now()
	begun := repair.Next(p, f, now)
	begun.Apply(&node)
	f.Record = begun.Record
	job := repair.Next(p, f, now.Add(10*time.Second)).Create
	if job == nil {
		t.Fatalf("no Job; record %s", begun.Record)
	}
	dryRun := func(change func(*corev1.PodSpec)) error {
		job := job.DeepCopy()
		change(&job.Spec.Template.Spec)
		return c.Client.Create(t.Context(), job, client.DryRunAll)
	}
	clustertest.Until(t, 3*time.Minute, "the Job is admitted", func() error { return dryRun(func(*corev1.PodSpec) {}) })
	for name, attack := range map[string]func(*corev1.PodSpec){
		"another leader":  func(p *corev1.PodSpec) { p.Containers[0].Args[2] = "-leader=evil" },
		"another size":    func(p *corev1.PodSpec) { p.Containers[0].Args[1] = "-size=3 -check=evil" },
		"another command": func(p *corev1.PodSpec) { p.Containers[0].Args = append(p.Containers[0].Args, "-command=evil") },
		"another account": func(p *corev1.PodSpec) { p.ServiceAccountName = "default" },
	} {
		clustertest.Until(t, 3*time.Minute, name+" is refused", func() error {
			if err := dryRun(attack); err == nil || !strings.Contains(err.Error(), "pitcrew-repair-templates") {
				return fmt.Errorf("not refused: %v", err) //nolint:errorlint // it may be nil
			}
			return nil
		})
	}
	if job.Labels[conditions.LabelGroup] != "g" {
		t.Error(job.Labels)
	}
}
