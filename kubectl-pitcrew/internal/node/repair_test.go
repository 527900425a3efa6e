package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// faulty gives a node its fault at testNow, in its present boot.
func faulty(n *corev1.Node, message string) *corev1.Node {
	at := metav1.NewTime(clitest.Now)
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

func TestRepairShowsWhatWouldBeDone(t *testing.T) {
	const resetable = "ResetGPU gpu 0000:4e:00: Xid 48 double bit ECC error"
	reset := func() *corev1.Node {
		return faulty(clitest.QuarantinedBy(t, "gpu-1", "gpu", conditions.ResetGPU), resetable)
	}
	auto := strings.Replace(clitest.RepairPolicy, "mode: approve", "mode: auto\n    scope: pool\n    maxPerDay: 10", 1)
	const node = "Node:     gpu-1, quarantined: GPUXidError: " + clitest.Lost + "\n"
	const actions = "Actions:  reset-gpu (at most 10m), then reboot (at most 20m) for class ResetGPU\n          then the check check -level 3 (at most 45m)\n"
	limits := "Limits:   0 of 1 nodes are repaired or validated now; 0 repairs within 24 h of 20\n"
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
		"a reboot": {node: faulty(clitest.QuarantinedBy(t, "gpu-1", "gpu", conditions.Reboot), clitest.Lost), policy: auto, want: node + "Repair:   repair begins (by POLICY)\n" +
			"Actions:  reboot (at most 20m) for class Reboot\n          then the check check -level 3 (at most 45m)\n" +
			"Limits:   0 of 1 nodes are repaired or validated now, of those with pool=gpu; 0 repairs within 24 h of 10\nPods:     in the way: ml/train-0, ml/web-0\n"},
		"the template is missing": {node: reset(), lacks: "reset-gpu", want: node +
			"Repair:   reset-gpu is next for GPUXidError; it waits for `kubectl pitcrew repair gpu-1 --approve` (by POLICY)\n" + actions + limits +
			"Pods:     not known: there is no PodTemplate reset-gpu in namespace pitcrew-repair\n"},
		"after a reset": {node: clitest.Visited(reset(), &visit.Record{Repairs: []visit.Action{{At: clitest.Now, Template: "reset-gpu", Quarantine: "q1"}}, Last: []visit.Visit{
			{ID: "v", Kind: visit.Repair, Phase: visit.Failed, Quarantine: "q1", StartedAt: clitest.Now, PhaseSince: clitest.Now, EndedAt: clitest.Now, Outcome: "given up: pod ml/train-0 has not ended"},
		}}), want: node +
			"Repair:   none: repair, given up: pod ml/train-0 has not ended; `kubectl pitcrew repair gpu-1 --approve` tries again what is left (by POLICY)\n" +
			"Actions:  reboot (at most 20m) for class ResetGPU\n          then the check check -level 3 (at most 45m)\n" +
			"Limits:   0 of 1 nodes are repaired or validated now; 1 repairs within 24 h of 20\nPods:     in the way: ml/train-0, ml/web-0\n" +
			"Visited:  repair, 2026-11-20T12:00:00Z, 0s ago: Failed: given up: pod ml/train-0 has not ended\n"},
		"stopped": {node: clitest.Visited(reset(), &visit.Record{Stopped: "q1", Request: &visit.Request{Kind: visit.RequestStop, Quarantine: "q1", At: clitest.Now, User: "ann", Reason: "mine"}}), want: node +
			"Repair:   none in this quarantine: stopped by ann: mine (by POLICY)\n" + actions + limits + "Pods:     in the way: ml/train-0\n" +
			"Asked:    stop, by ann: mine, 2026-11-20T12:00:00Z, 0s ago\n" +
			"Stopped:  no repair begins in this quarantine until `kubectl pitcrew repair gpu-1 --approve`\n"},
		"not off":       {node: reset(), policy: strings.Replace(clitest.RepairPolicy, "mode: approve", "mode: off", 1), want: "Repair:   none: the policy repairs no nodes (by POLICY)\n"},
		"in service":    {node: clitest.NodeNamed("gpu-1"), want: "Repair:   none: the node is not quarantined (by POLICY)\n"},
		"for a person":  {node: faulty(clitest.QuarantinedBy(t, "gpu-1", "gpu", conditions.Inspect), clitest.Lost), want: "Repair:   none: no cause of class ResetGPU or Reboot is there (by POLICY)\n"},
		"a lemon":       {node: clitest.Visited(reset(), &visit.Record{Repairs: []visit.Action{{At: clitest.Now, Template: "a", Quarantine: "1"}, {At: clitest.Now, Template: "a", Quarantine: "2"}, {At: clitest.Now, Template: "a", Quarantine: "3"}}}), want: "Repair:   none: repair.lemon reached: 3 repairs in 30 days did not fix the node (by POLICY)\n"},
		"validated":     {node: clitest.Visited(clitest.QuarantinedBy(t, "gpu-1", "gpu", conditions.Reboot), &visit.Record{Checked: &visit.Checked{At: clitest.Now, BootID: "b1", Quarantine: "q1"}}), want: "Repair:   none: the node has passed its check (by POLICY)\n"},
		"is unreadable": {node: func() *corev1.Node { n := reset(); n.Annotations[conditions.AnnotationRepair] = "{"; return n }(), want: "Repair:   annotation pitcrew.dev/repair cannot be read"},
	} {
		t.Run(name, func(t *testing.T) {
			if test.policy == "" {
				test.policy = clitest.RepairPolicy
			}
			file := clitest.PolicyFile(t, test.policy)
			var objects []client.Object
			for _, o := range clinic(test.node) {
				if o.GetName() != test.lacks {
					objects = append(objects, o)
				}
			}
			api := fake.NewClientBuilder().WithObjects(objects...).WithIndex(&corev1.Pod{}, "spec.nodeName", byNode).Build()
			c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { return clitest.Now }}
			var out bytes.Buffer
			if err := showRepair(t.Context(), c, &out, api, "gpu-1", file); err != nil {
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
	c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { return clitest.Now }}
	if err := showRepair(t.Context(), c, &out, api, "gpu-1", clitest.PolicyFile(t, clitest.RepairPolicy)); err != nil || !strings.Contains(out.String(), "Pods:     not known: list the pods on node gpu-1: pods is forbidden") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestReleaseAsksForTheCheckOfTheRule(t *testing.T) {
	remediator := func(args ...string) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "r", Labels: map[string]string{cli.LabelName: quarantine.ControllerName}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "remediator", Args: args}},
				Volumes:    []corev1.Volume{{VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "p"}}}}},
			},
		}
	}
	const on, checks = "-repair-namespace=pitcrew-repair", "Release node a after its check: "
	validating := clitest.QuarantinedBy(t, "a", "gpu", conditions.Reboot)
	checked := func(boot, quarantineID string) *corev1.Node {
		return clitest.Visited(validating.DeepCopy(), &visit.Record{Checked: &visit.Checked{At: clitest.Now, BootID: boot, Quarantine: quarantineID}})
	}
	cleared := validating.DeepCopy()
	record, err := causes.RecordOf(cleared)
	if err != nil {
		t.Fatal(err)
	}
	record.Causes[0].HealthySince = clitest.Now
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
		"the rule asks":             {validating, remediator(on), clitest.RepairPolicy, false, checks + "the policy validates it first (--without-validation releases it at once); it does not return before GPUXidError has cleared\n", false},
		"the fault has cleared":     {cleared, remediator(on), clitest.RepairPolicy, false, "releases it at once)\n", false},
		"another rule does not":     {clitest.QuarantinedBy(t, "a", "plain", conditions.Inspect), remediator(on), clitest.RepairPolicy, false, "Release node a: remove taint", false},
		"a rule that was renamed":   {clitest.QuarantinedBy(t, "a", "gone", conditions.Inspect), remediator(on), clitest.RepairPolicy, false, checks, false},
		"it was checked":            {checked("b1", "q1"), remediator(on), clitest.RepairPolicy, false, "Release node a: remove taint", false},
		"in another boot":           {checked("b0", "q1"), remediator(on), clitest.RepairPolicy, false, checks, false},
		"for another quarantine":    {checked("b1", "q0"), remediator(on), clitest.RepairPolicy, false, checks, false},
		"at once":                   {validating, remediator(on), clitest.RepairPolicy, true, "Release node a: remove taint", false},
		"no remediator is there":    {validating, nil, clitest.RepairPolicy, false, "The policy is not known here, and the remediator decides by it: no pod of the remediator in namespace pitcrew mounts a policy; name one with -f\nRelease node a: remove taint", false},
		"it visits no nodes":        {validating, remediator(), clitest.RepairPolicy, false, "Release node a: remove taint", false},
		"the policy cannot be read": {validating, remediator(on), "kind: RemediationPolicy\nbad", false, "The policy is not known here, and the remediator decides by it: ", false},
		"and the person knows":      {validating, remediator(on), "kind: RemediationPolicy\nbad", true, "Release node a: remove taint", false},
		"the record cannot be read": {unreadable, remediator(on), clitest.RepairPolicy, false, "node a: decode repair record", true},
		"it is not quarantined":     {clitest.NodeNamed("a"), remediator(on), clitest.RepairPolicy, false, "node a is not quarantined", true},
	} {
		t.Run(name, func(t *testing.T) {
			objects := []client.Object{test.node.DeepCopy(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: "p"}, Data: map[string]string{"policy.yaml": test.policy}}}
			if test.pod != nil {
				objects = append(objects, test.pod)
			}
			api := fake.NewClientBuilder().WithObjects(objects...).Build()
			c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { return clitest.Now }}
			var out strings.Builder
			cmd := &cobra.Command{}
			cmd.SetContext(t.Context())
			cmd.SetOut(&out)
			cmd.SetErr(&out)
			changes, err := release(c, cli.Actor{Cmd: cmd, Api: api}, []string{"a"}, releaseOptions{unvalidated: test.atOnce})
			if err == nil {
				err = (&cli.Confirmation{DryRun: true}).Apply(cmd, changes)
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
	api := fake.NewClientBuilder().WithObjects(clitest.QuarantinedBy(t, "a", "gpu", conditions.Reboot)).WithInterceptorFuncs(forbidding).Build()
	c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { return clitest.Now }}
	cmd := &cobra.Command{}
	cmd.SetContext(t.Context())
	cmd.SetErr(io.Discard)
	for want, o := range map[string]releaseOptions{
		"Release node a: remove t":  {},
		"Release node a after its ": {policyFile: clitest.PolicyFile(t, clitest.RepairPolicy)},
		"Release node a: remove ":   {unvalidated: true},
	} {
		changes, err := release(c, cli.Actor{Cmd: cmd, Api: api}, []string{"a"}, o)
		said := fmt.Sprint(err)
		if err == nil {
			said = changes[0].Text
		}
		if err != nil || !strings.Contains(said, want) {
			t.Errorf("%+v: %s, want %q", o, said, want)
		}
	}
}

// What the remediator remembers beside the nodes holds repairs back, and the outlook says so.
func TestRepairShowsWhatTheRemediatorRemembers(t *testing.T) {
	reset := faulty(clitest.QuarantinedBy(t, "gpu-1", "gpu", conditions.ResetGPU), "ResetGPU gpu 0000:4e:00: Xid 48 double bit ECC error")
	auto := strings.Replace(clitest.RepairPolicy, "mode: approve", "mode: auto", 1)
	failed := &breaker.State{}
	var earlier, gone starts.Ring
	for i, node := range []types.UID{"a", "b", "c"} {
		failed.Note(breaker.Action{Template: "reset-gpu", Condition: "GPUXidError"}, breaker.Node{UID: node}, breaker.Failed, clitest.Now)
		of := clitest.NodeNamed("gpu-1") // as it was before it was deleted
		earlier = earlier.With(starts.Of(nil, of, fmt.Sprint("q", i), "reboot", clitest.Now.Add(-time.Hour)), nil, clitest.Now)
		gone = gone.With(starts.Of(nil, clitest.NodeNamed("gone-"+string(node)), "q", "reboot", clitest.Now.Add(-time.Hour)), nil, clitest.Now)
	}
	remembered := func(name, key, text string) *corev1.ConfigMap {
		return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: name}, Data: map[string]string{key: text}}
	}
	for name, test := range map[string]struct {
		has  *corev1.ConfigMap
		want string
	}{
		"an action that failed on three nodes": {remembered(conditions.BreakerConfigMap, breaker.Key, failed.String()), "kubectl pitcrew reset"},
		"three repairs of an earlier Node":     {remembered(conditions.KnownConfigMap, starts.Key, earlier.String()), "repair.lemon reached: 3 repairs in 30 days"},
		"repairs of nodes that are gone":       {remembered(conditions.KnownConfigMap, starts.Key, gone.String()), "now; 3 repairs within 24 h of 20\n"},
	} {
		api := fake.NewClientBuilder().WithObjects(append(clinic(reset.DeepCopy()), test.has)...).WithIndex(&corev1.Pod{}, "spec.nodeName", byNode).Build()
		c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { return clitest.Now }}
		var out bytes.Buffer
		if err := showRepair(t.Context(), c, &out, api, "gpu-1", clitest.PolicyFile(t, auto)); err != nil || !strings.Contains(out.String(), test.want) {
			t.Errorf("%s: %v; no %q in\n%s", name, err, test.want, out.String())
		}
	}
}
