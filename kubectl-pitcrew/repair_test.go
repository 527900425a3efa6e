package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

// faulty gives a node its fault at testNow, in its present boot.
func faulty(n *corev1.Node, message string) *corev1.Node {
	at := metav1.NewTime(testNow)
	n.Status.Conditions = []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastHeartbeatTime: at, LastTransitionTime: at},
		{Type: "GPUXidError", Status: corev1.ConditionTrue, Message: message, LastHeartbeatTime: at, LastTransitionTime: at},
	}
	return n
}

// clinic is a cluster with a node that waits for its repair, and what a repair needs.
func clinic(n *corev1.Node) []client.Object {
	template := func(name string, args ...string) *corev1.PodTemplate {
		return &corev1.PodTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name},
			Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Args: args}}}},
		}
	}
	pod := func(name string, spec corev1.PodSpec) *corev1.Pod {
		spec.NodeName = n.Name
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name}, Spec: spec, Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	}
	gpu := corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": apiresource.MustParse("8")}}
	return []client.Object{
		n, template("reset-gpu", "reset-gpu", "-gpu=$(GPUS)"), template("reboot", "reboot", "-boot-id=$(BOOT_ID)"), template("check", "check"),
		pod("train-0", corev1.PodSpec{Containers: []corev1.Container{{Name: "main", Resources: gpu}}}), pod("web-0", corev1.PodSpec{}),
	}
}

// byNode lets pods be listed by their node, as the API server does.
func byNode(o client.Object) []string { return []string{o.(*corev1.Pod).Spec.NodeName} }

func policyFileOf(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

func TestRepairShowsWhatWouldBeDone(t *testing.T) {
	const resetable = "ResetGPU gpu 0000:4e:00: Xid 48 double bit ECC error"
	reset := func() *corev1.Node {
		return faulty(quarantinedBy(t, "gpu-1", "gpu", conditions.ResetGPU), resetable)
	}
	auto := strings.Replace(repairPolicy, "mode: approve", "mode: auto\n    scope: pool\n    maxPerDay: 10", 1)
	const node = "Node:     gpu-1, quarantined: GPUXidError: " + lost + "\n"
	const actions = "Actions:  reset-gpu (at most 10m), then reboot (at most 20m) for class ResetGPU\n          then the check check -level 3 (at most 45m)\n"
	limits := "Limits:   0 of 1 nodes are repaired or validated now; 0 repairs within 24 h\n"
	for name, test := range map[string]struct {
		node   *corev1.Node
		policy string
		lacks  string
		want   string
	}{
		"waits for approval": {node: reset(), want: node +
			"Repair:   reset-gpu is next for GPUXidError; it waits for `kubectl pitcrew repair gpu-1 --approve` (by POLICY)\n" + actions + limits + "Pods:     in the way: ml/train-0\n"},
		"begins by itself": {node: reset(), policy: auto, want: node + "Repair:   repair begins (by POLICY)\n" + actions +
			"Limits:   0 of 1 nodes are repaired or validated now, of those with pool=gpu; 0 repairs within 24 h of 10\nPods:     in the way: ml/train-0\n"},
		"a reboot": {node: faulty(quarantinedBy(t, "gpu-1", "gpu", conditions.Reboot), lost), policy: auto, want: node + "Repair:   repair begins (by POLICY)\n" +
			"Actions:  reboot (at most 20m) for class Reboot\n          then the check check -level 3 (at most 45m)\n" +
			"Limits:   0 of 1 nodes are repaired or validated now, of those with pool=gpu; 0 repairs within 24 h of 10\nPods:     in the way: ml/train-0, ml/web-0\n"},
		"the template is missing": {node: reset(), lacks: "reset-gpu", want: node +
			"Repair:   reset-gpu is next for GPUXidError; it waits for `kubectl pitcrew repair gpu-1 --approve` (by POLICY)\n" + actions + limits +
			"Pods:     not known: there is no PodTemplate reset-gpu in namespace pitcrew-repair\n"},
		"after a reset": {node: visited(reset(), &repair.Record{Repairs: []repair.Action{{At: testNow, Template: "reset-gpu", Quarantine: "q1"}}, Last: []repair.Visit{
			{ID: "v", Kind: repair.Repair, Phase: repair.Failed, Quarantine: "q1", StartedAt: testNow, PhaseSince: testNow, EndedAt: testNow, Outcome: "given up: pod ml/train-0 has not ended"},
		}}), want: node +
			"Repair:   none: repair, given up: pod ml/train-0 has not ended; `kubectl pitcrew repair gpu-1 --approve` tries again what is left (by POLICY)\n" +
			"Actions:  reboot (at most 20m) for class ResetGPU\n          then the check check -level 3 (at most 45m)\n" +
			"Limits:   0 of 1 nodes are repaired or validated now; 1 repairs within 24 h\nPods:     in the way: ml/train-0, ml/web-0\n" +
			"Visited:  repair, 2026-11-20T12:00:00Z, 0s ago: Failed: given up: pod ml/train-0 has not ended\n"},
		"stopped": {node: visited(reset(), &repair.Record{Stopped: "q1", Request: &repair.Request{Kind: repair.RequestStop, Quarantine: "q1", At: testNow, User: "ann", Reason: "mine"}}), want: node +
			"Repair:   none in this quarantine: stopped by ann: mine (by POLICY)\n" + actions + limits + "Pods:     in the way: ml/train-0\n" +
			"Asked:    stop, by ann: mine, 2026-11-20T12:00:00Z, 0s ago\n" +
			"Stopped:  no repair begins in this quarantine until `kubectl pitcrew repair gpu-1 --approve`\n"},
		"not off":       {node: reset(), policy: strings.Replace(repairPolicy, "mode: approve", "mode: off", 1), want: "Repair:   none: the policy repairs no nodes (by POLICY)\n"},
		"in service":    {node: nodeNamed("gpu-1"), want: "Repair:   none: the node is not quarantined (by POLICY)\n"},
		"for a person":  {node: faulty(quarantinedBy(t, "gpu-1", "gpu", conditions.Inspect), lost), want: "Repair:   none: no cause of class ResetGPU or Reboot is there (by POLICY)\n"},
		"a lemon":       {node: visited(reset(), &repair.Record{Repairs: []repair.Action{{At: testNow, Template: "a", Quarantine: "1"}, {At: testNow, Template: "a", Quarantine: "2"}, {At: testNow, Template: "a", Quarantine: "3"}}}), want: "Repair:   none: the node is a lemon: 3 repairs within 30 days have not mended it (by POLICY)\n"},
		"validated":     {node: visited(quarantinedBy(t, "gpu-1", "gpu", conditions.Reboot), &repair.Record{Checked: &repair.Checked{At: testNow, BootID: "b1", Quarantine: "q1"}}), want: "Repair:   none: the node has passed its check (by POLICY)\n"},
		"is unreadable": {node: func() *corev1.Node { n := reset(); n.Annotations[conditions.AnnotationRepair] = "{"; return n }(), want: "Repair:   annotation pitcrew.dev/repair cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.policy == "" {
				test.policy = repairPolicy
			}
			file := policyFileOf(t, test.policy)
			var objects []client.Object
			for _, o := range clinic(test.node) {
				if o.GetName() != test.lacks {
					objects = append(objects, o)
				}
			}
			api := fake.NewClientBuilder().WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", byNode).Build()
			c := &target{namespace: "pitcrew", now: func() time.Time { return testNow }}
			var out bytes.Buffer
			if err := c.showRepair(t.Context(), &out, api, "gpu-1", file); err != nil {
				t.Fatal(err)
			}
			got := strings.ReplaceAll(out.String(), file, "POLICY")
			if strings.HasPrefix(test.want, "Node:") {
				if diff := cmp.Diff(test.want, got); diff != "" {
					t.Error(diff)
				}
			} else if !strings.Contains(got, test.want) {
				t.Errorf("no %q in\n%s", test.want, got)
			}
		})
	}
	forbidding := interceptor.Funcs{List: func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
		if _, pods := list.(*corev1.PodList); pods {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
		}
		return api.List(ctx, list, opts...)
	}}
	api := fake.NewClientBuilder().WithObjects(clinic(reset())...).WithInterceptorFuncs(forbidding).Build()
	var out bytes.Buffer
	c := &target{namespace: "pitcrew", now: func() time.Time { return testNow }}
	if err := c.showRepair(t.Context(), &out, api, "gpu-1", policyFileOf(t, repairPolicy)); err != nil || !strings.Contains(out.String(), "Pods:     not known: list the pods on node gpu-1: pods is forbidden") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestWhatAPersonMayAskFor(t *testing.T) {
	visiting := &repair.Record{Current: &repair.Visit{Kind: repair.Sweep}}
	stands := &quarantine.Record{}
	for name, test := range map[string]struct {
		err  error
		want string
	}{
		"repair a node in service":  {mayRepair(&repair.Record{}, nil), "is not quarantined"},
		"repair":                    {mayRepair(&repair.Record{}, stands), ""},
		"stop nothing":              {mayStop(&repair.Record{}, nil), "there is nothing to stop"},
		"stop a sweep":              {mayStop(visiting, nil), ""},
		"stop a request":            {mayStop(&repair.Record{Request: &repair.Request{}}, nil), ""},
		"stop what may begin":       {mayStop(&repair.Record{}, stands), ""},
		"check a quarantined node":  {mayCheck(&repair.Record{}, stands), "is quarantined"},
		"check one that is visited": {mayCheck(visiting, nil), "is being visited already (sweep)"},
		"check":                     {mayCheck(&repair.Record{}, nil), ""},
	} {
		if got := test.err; (got == nil) != (test.want == "") || got != nil && !strings.Contains(got.Error(), test.want) {
			t.Errorf("%s: %v, want %q", name, got, test.want)
		}
	}
}

func TestOnlyARemediatorThatVisitsNodesIsAsked(t *testing.T) {
	deployed := func(args ...string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "r", Labels: map[string]string{labelName: quarantine.ControllerName}},
			Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "remediator", Args: args}}},
		}
	}
	off := strings.Replace(repairPolicy, "mode: approve", "mode: off", 1)
	none := strings.Split(repairPolicy, "  repair:")[0] + "  rules: {}\n"
	for name, test := range map[string]struct {
		pod         client.Object
		policy      string
		want, warns string
	}{
		"none is known":         {nil, repairPolicy, "", "is not known"},
		"with the flag":         {deployed("-repair-namespace=pitcrew-repair"), repairPolicy, "", ""},
		"in two arguments":      {deployed("-policy=x", "--repair-namespace", "pitcrew-repair"), repairPolicy, "", ""},
		"without the flag":      {deployed("-policy=x"), repairPolicy, "repairs and checks no nodes", ""},
		"with an empty one":     {deployed("-repair-namespace="), repairPolicy, "repairs and checks no nodes", ""},
		"off in the policy":     {deployed("-repair-namespace=pitcrew-repair"), off, "the policy repairs no nodes", ""},
		"missing in the policy": {deployed("-repair-namespace=pitcrew-repair"), none, "the policy repairs no nodes", ""},
	} {
		builder := fake.NewClientBuilder()
		if test.pod != nil {
			builder.WithObjects(test.pod)
		}
		c := &target{namespace: "pitcrew", now: time.Now}
		var warned strings.Builder
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		cmd.SetErr(&warned)
		err := c.wouldRepair(cmd, builder.Build(), policyFileOf(t, test.policy))
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) || (warned.Len() > 0) != (test.warns != "") || !strings.Contains(warned.String(), test.warns) {
			t.Errorf("%s: %v, warned %q", name, err, warned.String())
		}
	}
}

func TestReleaseAsksForTheCheckOfTheRule(t *testing.T) {
	remediator := func(args ...string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "r", Labels: map[string]string{labelName: quarantine.ControllerName}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "remediator", Args: args}},
				Volumes:    []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "p"}}}}},
			},
		}
	}
	const on, checks = "-repair-namespace=pitcrew-repair", "Release node a after its check: "
	validating := quarantinedBy(t, "a", "gpu", conditions.Reboot)
	checked := func(boot, quarantineID string) *corev1.Node {
		return visited(validating.DeepCopy(), &repair.Record{Checked: &repair.Checked{At: testNow, BootID: boot, Quarantine: quarantineID}})
	}
	cleared := validating.DeepCopy()
	record, err := quarantine.RecordOf(cleared)
	if err != nil {
		t.Fatal(err)
	}
	record.Causes[0].HealthySince = testNow
	cleared.Annotations[conditions.AnnotationQuarantine] = record.String()
	unreadable := validating.DeepCopy()
	unreadable.Annotations[conditions.AnnotationRepair] = "{"
	for name, test := range map[string]struct {
		node   *corev1.Node
		pod    *corev1.Pod
		policy string
		atOnce bool
		want   string
		fails  bool
	}{
		"the rule asks":             {validating, remediator(on), repairPolicy, false, checks + "the policy validates it first (--without-validation releases it at once); it does not return before GPUXidError has cleared\n", false},
		"the fault has cleared":     {cleared, remediator(on), repairPolicy, false, "releases it at once)\n", false},
		"another rule does not":     {quarantinedBy(t, "a", "plain", conditions.Inspect), remediator(on), repairPolicy, false, "Release node a: remove taint", false},
		"a rule that was renamed":   {quarantinedBy(t, "a", "gone", conditions.Inspect), remediator(on), repairPolicy, false, checks, false},
		"it was checked":            {checked("b1", "q1"), remediator(on), repairPolicy, false, "Release node a: remove taint", false},
		"in another boot":           {checked("b0", "q1"), remediator(on), repairPolicy, false, checks, false},
		"for another quarantine":    {checked("b1", "q0"), remediator(on), repairPolicy, false, checks, false},
		"at once":                   {validating, remediator(on), repairPolicy, true, "Release node a: remove taint", false},
		"no remediator is there":    {validating, nil, repairPolicy, false, "No remediator was found in namespace pitcrew that could check a node first\nRelease node a: remove taint", false},
		"it visits no nodes":        {validating, remediator(), repairPolicy, false, "Release node a: remove taint", false},
		"the policy cannot be read": {validating, remediator(on), "kind: RemediationPolicy\nbad", false, "whether the nodes have to be checked first is not known", true},
		"and the person knows":      {validating, remediator(on), "kind: RemediationPolicy\nbad", true, "Release node a: remove taint", false},
		"the record cannot be read": {unreadable, remediator(on), repairPolicy, false, "node a: decode repair record", true},
		"it is not quarantined":     {nodeNamed("a"), remediator(on), repairPolicy, false, "node a is not quarantined", true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{test.node.DeepCopy(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "p"}, Data: map[string]string{"policy.yaml": test.policy}}}
			if test.pod != nil {
				objects = append(objects, test.pod)
			}
			api := fake.NewClientBuilder().WithObjects(objects...).Build()
			c := &target{namespace: "pitcrew", now: func() time.Time { return testNow }}
			var out strings.Builder
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			changes, err := c.release(actor{cmd: cmd, api: api}, []string{"a"}, releaseOptions{unvalidated: test.atOnce})
			if err == nil {
				err = (&confirmation{dryRun: true}).apply(cmd, changes)
			}
			said := out.String()
			if err != nil {
				said += err.Error()
			}
			if (err != nil) != test.fails || !strings.Contains(said, test.want) {
				t.Errorf("%v\n%s", err, said)
			}
		})
	}
}

// The role that releases nodes does not read the remediator's pods.
func TestReleaseWithoutTheRightToReadThePolicy(t *testing.T) {
	forbidding := interceptor.Funcs{List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "", nil)
	}}
	api := fake.NewClientBuilder().WithObjects(quarantinedBy(t, "a", "gpu", conditions.Reboot)).WithInterceptorFuncs(forbidding).Build()
	c := &target{namespace: "pitcrew", now: func() time.Time { return testNow }}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	for want, o := range map[string]releaseOptions{
		"cannot be listed":          {},
		"Release node a after its ": {policyFile: policyFileOf(t, repairPolicy)},
		"Release node a: remove ":   {unvalidated: true},
	} {
		changes, err := c.release(actor{cmd: cmd, api: api}, []string{"a"}, o)
		said := fmt.Sprint(err)
		if err == nil {
			said = changes[0].text
		}
		if !strings.Contains(said, want) || err != nil && !strings.Contains(said, "name the policy with -f; --without-validation releases them at once") {
			t.Errorf("%+v: %s, want %q", o, said, want)
		}
	}
}

const eccFault = "ResetGPU gpu 0000:4e:00: Xid 48 double bit ECC error"

// A person approves, follows and stops repairs with the built plugin, beside a running remediator.
func TestAPersonSteersRepairs(t *testing.T) {
	p := newPerson(t)
	nodes, err := p.AddNodes(t.Context(), "ward", 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.DeleteNodes(p.Cluster.Context(), nodes...); err != nil {
			t.Error(err)
		}
	})
	p.namespace()
	if err := p.AddNamespace(t.Context(), conditions.RepairNamespace, map[string]string{partOf: pitcrew}); err != nil {
		t.Fatal(err)
	}
	for name, args := range map[string][]string{"reset-gpu": {"-gpu=$(GPUS)"}, "reboot": {"-boot-id=$(BOOT_ID)"}, "check": {"check"}} {
		template := &corev1.PodTemplate{
			ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name},
			Template:   corev1.PodTemplateSpec{Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, Containers: []corev1.Container{{Name: "main", Image: "none", Args: args}}}},
		}
		if err := p.Client.Create(t.Context(), template); err != nil {
			t.Fatal(err)
		}
	}
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "remediator"}}
	for _, r := range toVisit(conditions.RepairNamespace) {
		role.Rules = append(role.Rules, rbacv1.PolicyRule{Verbs: []string{r.verb}, APIGroups: []string{r.group}, Resources: []string{r.resource}})
	}
	for _, object := range []client.Object{role, &rbacv1.RoleBinding{
		ObjectMeta: role.ObjectMeta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "pitcrew", Name: "pitcrew-remediator"}},
	}} {
		if err := p.Client.Create(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	policy := policyFileOf(t, strings.Replace(repairPolicy, "repair: [Reboot]", "repair: [ResetGPU, Reboot]", 1))
	remediator, err := p.StartRemediator(t.Context(), "-policy", policy, "-leader-elect=false", "-repair-namespace", conditions.RepairNamespace)
	if err != nil {
		t.Fatal(err)
	}
	faulty, other := nodes[0], nodes[1]
	with := " -f " + policy
	says := func(args string, wants ...string) {
		t.Helper()
		p.until(fmt.Sprintf("%s says %q", args, wants), func() error {
			out := p.run(strings.Fields(args)...)
			for _, want := range wants {
				if !strings.Contains(out, want) {
					return fmt.Errorf("no %q in\n%s", want, out)
				}
			}
			return nil
		})
	}

	p.reports(faulty, "True", eccFault)
	says("status"+with, "APPROVAL    "+faulty+" waits for approval (ResetGPU): kubectl pitcrew repair "+faulty+" --approve")
	p.says("repair "+faulty+with, "Repair:   reset-gpu is next for GPUXidError; it waits for `kubectl pitcrew repair "+faulty+" --approve`")
	p.says("repair "+faulty+with, "Pods:     none is in the way")
	p.says("describe "+faulty+with, "Repair:   reset-gpu is next for GPUXidError")
	p.fails("repair --approve -y "+other, "node "+other+" is not quarantined")
	p.fails("repair --stop -y "+other, "there is nothing to stop")
	p.fails("repair --approve --stop "+faulty, "none of the others can be")
	p.fails("repair -y nowhere", "there is no node nowhere")
	p.refused("repair --approve " + faulty)
	p.says("repair --approve --dry-run "+faulty, "Have node "+faulty+" repaired\n")
	if n := p.get(faulty); strings.Contains(n.Annotations[conditions.AnnotationRepair], "request") {
		t.Errorf("a dry run has asked: %s", n.Annotations[conditions.AnnotationRepair])
	}

	p.does("repair", "--approve", faulty, "--reason", "night\nshift")
	p.wrote(client.ObjectKey{Name: faulty}, "RepairRequested", "repair requested by person: night shift")
	says("describe "+faulty+with, "Visit:    repair, since ", "Working since ", "1. reset-gpu, ", "under way", "reset-gpu -gpu=0000:4e:00, until ", "Job pitcrew-repair/repair-")
	p.says("status"+with, "VISITS      "+faulty+": repair, reset-gpu, attempt 1, ")
	says("status", faulty+"  repairing")
	p.says("repair "+faulty+with, "Limits:   1 of 1 nodes are repaired or validated now; 1 repairs within 24 h")

	p.refused("repair --stop " + faulty)
	p.does("repair", "--stop", faulty, "--reason", "mine")
	p.wrote(client.ObjectKey{Name: faulty}, "RepairStopRequested", "stop requested by person: mine")
	says("describe "+faulty+with, "Visited:  repair, ", "Failed: stopped manually by person: mine", "Repair:   none in this quarantine: stopped by person: mine")
	p.until("its Job is gone", p.noJobs)
	p.taints(faulty, "pitcrew.dev/unhealthy=GPUXidError:NoSchedule")

	// It is released after its check, or without one.
	p.says("release --dry-run "+faulty+with, "Release node "+faulty+" after its check: ")
	p.says("release --without-validation --dry-run "+faulty+with, "Release node "+faulty+": remove taint")
	p.does("release", faulty, "-f", policy, "--reason", "fixed")
	p.wrote(client.ObjectKey{Name: faulty}, "ReleaseRequested", "release requested by person: fixed")
	says("describe "+faulty+with, "Visit:    validation, since ", "Working since ", "Asked:    release, by person: fixed, ", "check -level 3, until ")
	says("status", faulty+"  validating")
	p.fails("release -y "+faulty+with, "person has asked for this already, ")
	p.does("release", faulty, "-f", policy, "--without-validation")
	p.until("its Job is gone", p.noJobs)
	p.until("the visit is over", func() error {
		if got := taints(p.get(faulty)); got != "" {
			return errors.New(got)
		}
		return nil
	})

	// A check of a node in service.
	p.fails("check -y "+nodes[0]+" "+nodes[1], "accepts 1 arg")
	p.refused("check " + other)
	p.says("check --dry-run "+other, "Have node "+other+" checked\n")
	p.does("check", other, "--reason", "slow yesterday")
	p.wrote(client.ObjectKey{Name: other}, "CheckRequested", "check requested by person: slow yesterday")
	p.does("quarantine", nodes[2])
	p.fails("check -y "+nodes[2], "is quarantined")

	// Outside the cluster it has no Deployment that could be deleted first.
	p.reports(other, "True", eccFault)
	says("status"+with, "kubectl pitcrew repair "+other+" --approve")
	p.does("repair", "--approve", other)
	says("status", other+"  repairing")
	p.until("its Job is there", func() error {
		if p.noJobs() == nil {
			return errors.New("no Jobs")
		}
		return nil
	})
	remediator.Stop(10 * time.Second)
	p.says("uninstall --dry-run", "Delete Job pitcrew-repair/repair-")
	p.says("uninstall --dry-run", "Clean node "+other+": remove taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule, remove taint pitcrew.dev/maintenance=repair:NoSchedule, remove our records and labels")
	p.does("uninstall")
	for _, name := range nodes {
		p.taints(name, "")
		if n := p.get(name); n.Annotations[conditions.AnnotationRepair] != "" {
			t.Errorf("node %s still has %v", name, n.Annotations)
		}
	}
	if err := p.noJobs(); err != nil {
		t.Error(err)
	}
}

// noJobs is an error while there are Jobs of visits.
func (p person) noJobs() error {
	var jobs batchv1.JobList
	if err := p.Client.List(p.Context(), &jobs, client.InNamespace(conditions.RepairNamespace)); err != nil {
		return err
	}
	if len(jobs.Items) > 0 {
		return fmt.Errorf("%d Jobs", len(jobs.Items))
	}
	return nil
}
