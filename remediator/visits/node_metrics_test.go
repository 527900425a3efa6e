package visits

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/common/expfmt"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const attentionPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  repair: {mode: approve, actions: {ResetGPU: [{template: reset-gpu}], Reboot: [{template: reboot}]}}
  firstCheck: {conditions: all}
  sweeps:
    weekly: {every: 168h, template: check, nodeSelector: {pool: gpu}}
    never: {every: 168h, template: check, nodeSelector: {pool: other}}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}}
`

func TestNodesThatWaitForAPersonAreNamed(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	before := now.Add(-time.Hour)
	failed := visit.Visit{ID: "v", Kind: visit.Repair, Phase: visit.Failed, Quarantine: "q", EndedAt: before}
	with := func(change func(*visit.Record)) func(*corev1.Node, *causes.Record, *visit.Record) {
		return func(_ *corev1.Node, _ *causes.Record, r *visit.Record) {
			r.Last = []visit.Visit{failed}
			change(r)
		}
	}
	const (
		approval  = `pitcrew_node_repair_waits{node="n",reason="approval"} 1`
		replace   = `pitcrew_node_repair_failed_timestamp_seconds{advice="replace",kind="repair",node="n"} 1.7951724e+09`
		unadvised = `pitcrew_node_repair_failed_timestamp_seconds{advice="",kind="repair",node="n"} 1.7951724e+09`
		checkFail = `pitcrew_node_repair_failed_timestamp_seconds{advice="",kind="validation",node="n"} 1.7951724e+09`
	)
	tests := map[string]struct {
		change func(*corev1.Node, *causes.Record, *visit.Record)
		want   []string
	}{
		"nothing was done yet": {nil, []string{approval}},
		"a repair is under way": {func(_ *corev1.Node, _ *causes.Record, r *visit.Record) {
			r.Current = &visit.Visit{ID: "v", Kind: visit.Repair, Phase: visit.Emptying, Quarantine: "q"}
		}, nil},
		"it has failed":            {with(func(r *visit.Record) { r.Advice = &visit.Advice{Quarantine: "q", Do: "replace"} }), []string{replace}},
		"it has failed, no advice": {with(func(*visit.Record) {}), []string{unadvised}},
		"old advice":               {with(func(r *visit.Record) { r.Advice = &visit.Advice{Quarantine: "old", Do: "replace"} }), []string{unadvised}},
		"forged advice":            {with(func(r *visit.Record) { r.Advice = &visit.Advice{Quarantine: "q", Do: "x"} }), []string{unadvised}},
		"for another quarantine":   {with(func(r *visit.Record) { r.Last[0].Quarantine = "old" }), []string{approval}},
		"a validation has failed":  {with(func(r *visit.Record) { r.Last[0].Kind = visit.Validation }), []string{approval, checkFail}},
		"a sweep has failed":       {with(func(r *visit.Record) { r.Last[0].Kind, r.Last[0].Quarantine = visit.Sweep, "" }), []string{approval}},
		"it has passed":            {with(func(r *visit.Record) { r.Last[0].Phase = visit.Passed }), []string{approval}},
		"it has passed later": {with(func(r *visit.Record) {
			r.Last = []visit.Visit{{ID: "w", Kind: visit.Repair, Phase: visit.Passed, Quarantine: "q"}, failed}
		}), []string{approval}},
		"it begins again": {with(func(r *visit.Record) {
			r.Current = &visit.Visit{ID: "w", Kind: visit.Repair, Phase: visit.Emptying, Quarantine: "q"}
		}), nil},
		"a person has stopped it":  {with(func(r *visit.Record) { r.Request = &visit.Request{Kind: visit.RequestStop, Quarantine: "q"} }), nil},
		"another node of the name": {with(func(r *visit.Record) { r.NodeUID = "other" }), []string{approval}},
		"released": {func(n *corev1.Node, q *causes.Record, r *visit.Record) {
			q.Phase, q.ReleasedBy, r.Last = causes.Released, causes.ByPerson, []visit.Visit{failed}
		}, nil},
		"the taint is gone": {func(n *corev1.Node, _ *causes.Record, r *visit.Record) {
			n.Spec.Taints, r.Last = nil, []visit.Visit{failed}
		}, nil},
		"approved, and waits until it is Ready": {func(n *corev1.Node, _ *causes.Record, r *visit.Record) {
			n.Status.Conditions[0].Status = corev1.ConditionFalse
			r.Request = &visit.Request{Kind: visit.RequestRepair, Quarantine: "q"}
		}, nil},
		"of class Replace": {func(_ *corev1.Node, q *causes.Record, _ *visit.Record) {
			q.Causes[0].Repair, q.Taint.Repair = conditions.Replace, conditions.Replace
		}, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			node := gpuNode("n", "uid", now)
			taint := &causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: "gpu", Repair: conditions.Reboot, Since: before}
			node.Spec.Taints = []corev1.Taint{taint.NodeTaint()}
			node.Status.Conditions = append(node.Status.Conditions, corev1.NodeCondition{
				Type: "GPUXidError", Status: corev1.ConditionTrue, Message: "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus", LastHeartbeatTime: metav1.NewTime(now),
			})
			q := &causes.Record{V: 1, NodeUID: node.UID, Boot: causes.Boot{ID: "boot", Seen: before}, Quarantine: causes.Quarantine{
				ID: "q", Phase: causes.Quarantined, QuarantinedAt: before, Taint: taint,
				Causes: []causes.Cause{{Condition: "GPUXidError", Rule: "gpu", Repair: conditions.Reboot, Due: true, BootID: "boot", FirstSeen: before}},
			}}
			r := &visit.Record{V: 1, NodeUID: node.UID}
			if test.change != nil {
				test.change(node, q, r)
			}
			annotate(t, node, conditions.AnnotationQuarantine, q)
			annotate(t, node, conditions.AnnotationRepair, r)
			var want string
			for _, line := range test.want {
				want += line + "\n"
			}
			if got := series(t, now, nil, "pitcrew_node_repair", node); got != sorted(want) {
				t.Errorf("got\n%swant\n%s", got, sorted(want))
			}
		})
	}
}

func TestNodesThatASweepIsLateForAreCounted(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const day = 24 * time.Hour
	checked := func(ago time.Duration) *corev1.Node {
		n := gpuNode("n", "uid", now.Add(-30*day))
		annotate(t, n, conditions.AnnotationRepair, &visit.Record{V: 1, NodeUID: n.UID, Checked: &visit.Checked{At: now.Add(-ago), BootID: "boot", Template: "check"}})
		return n
	}
	late, cordoned, other, young := checked(8*day), checked(8*day), checked(8*day), gpuNode("y", "y", now.Add(-day))
	cordoned.Name, cordoned.Spec.Unschedulable = "c", true
	other.Name, other.Labels = "o", nil
	inTime := checked(6 * day)
	inTime.Name = "t"
	never := gpuNode("v", "v", now.Add(-8*day))
	want := "pitcrew_sweep_overdue_nodes{sweep=\"never\"} 0\npitcrew_sweep_overdue_nodes{sweep=\"weekly\"} 2\n"
	if got := series(t, now, nil, "pitcrew_sweep", late, cordoned, other, young, inTime, never); got != want {
		t.Errorf("got\n%s", got)
	}
}

func TestNodesThatWaitLongForTheirFirstCheckAreNamed(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	node := func(name string, age time.Duration) *corev1.Node {
		n := gpuNode(name, name, now.Add(-age))
		n.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
		return n
	}
	young, late, healthy, visited := node("young", time.Minute), node("late", time.Hour), node("healthy", time.Hour), node("visited", time.Hour)
	healthy.Status.Conditions = append(healthy.Status.Conditions, corev1.NodeCondition{
		Type: "GPUXidError", Status: corev1.ConditionFalse, LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	})
	annotate(t, visited, conditions.AnnotationRepair, &visit.Record{V: 1, NodeUID: visited.UID, Current: &visit.Visit{ID: "v", Kind: visit.FirstCheck, Phase: visit.Working}})
	want := "pitcrew_node_first_check_waits{node=\"healthy\",waits_for=\"check\"} 1\npitcrew_node_first_check_waits{node=\"late\",waits_for=\"GPUXidError\"} 1\n"
	if got := series(t, now, nil, "pitcrew_node_first", young, late, healthy, visited); got != want {
		t.Errorf("got\n%s", got)
	}
}

func gpuNode(name, uid string, created time.Time) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid), Labels: map[string]string{"pool": "gpu"}, CreationTimestamp: metav1.NewTime(created), Annotations: map[string]string{}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("8")},
			NodeInfo:    corev1.NodeSystemInfo{BootID: "boot"},
			Conditions:  []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func annotate(t *testing.T, n *corev1.Node, key string, record any) {
	t.Helper()
	text, err := json.Marshal(record)
	if err != nil {
		t.Fatal(err)
	}
	n.Annotations[key] = string(text)
}

// series are the leader's metrics about nodes whose names begin with a prefix.
// A check that waits for a condition which nothing on the node reports is named, unless the alert about new nodes does.
func TestChecksThatWaitForTheirProofAreNamed(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	named := func(name string) *corev1.Node {
		n := gpuNode(name, name, now)
		annotate(t, n, conditions.AnnotationRepair, &visit.Record{V: 1, NodeUID: n.UID})
		return n
	}
	waits, visited, fresh := named("waits"), named("visited"), named("new")
	annotate(t, visited, conditions.AnnotationRepair, &visit.Record{
		V: 1, NodeUID: visited.UID, Current: &visit.Visit{ID: "v", Kind: visit.Repair, Phase: visit.Emptying},
	})
	fresh.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	proof := &repair.Waiting{Reason: repair.WaitsForProof}
	got := series(t, now, map[string]*repair.Waiting{"waits": proof, "visited": proof, "new": proof, "limited": {Reason: "limits"}},
		"pitcrew_node_repair_waits", waits, visited, fresh, named("limited"))
	if want := "pitcrew_node_repair_waits{node=\"waits\",reason=\"proof\"} 1\n"; got != want {
		t.Errorf("got\n%s", got)
	}
}

func series(t *testing.T, now time.Time, waits map[string]*repair.Waiting, prefix string, nodes ...*corev1.Node) string {
	t.Helper()
	p, err := policy.Parse([]byte(attentionPolicy))
	if err != nil {
		t.Fatal(err)
	}
	builder := fake.NewClientBuilder()
	for _, n := range nodes {
		builder.WithObjects(n)
	}
	elected := make(chan struct{})
	close(elected)
	c := &Controller{client: builder.Build(), elected: elected, policy: policy.Fixed(p), records: newRecords(), clock: testclock.NewFakePassiveClock(now)}
	for _, n := range nodes {
		if w := waits[n.Name]; w != nil {
			c.reports.Note(n.Name, w.Reason)
		}
	}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(collector{c})
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&text, f); err != nil {
			t.Fatal(err)
		}
	}
	var found string
	for line := range strings.Lines(text.String()) {
		if strings.HasPrefix(line, prefix) {
			found += line
		}
	}
	return sorted(found)
}

func sorted(lines string) string { return strings.Join(slices.Sorted(strings.Lines(lines)), "") }
