package simulate

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

var now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// cluster is a policy with a budget of one, and nodes with a fault, all at the same moment.
func cluster(t *testing.T, names ...string) (*policy.Policy, []corev1.Node) {
	t.Helper()
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	var nodes []corev1.Node
	for _, name := range names {
		nodes = append(nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
				Type: "GPUXidError", Status: corev1.ConditionTrue, Message: "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error",
				LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
			}}},
		})
	}
	return p, nodes
}

func TestOneDecisionSeesTheOnesBeforeIt(t *testing.T) {
	p, nodes := cluster(t, "c", "a", "b", "skipped")
	nodes[3].Labels = map[string]string{conditions.LabelSkip: "true"}
	got := map[string]string{}
	outcomes := Run(p, nodes, "", Stored{}, now)
	for _, o := range outcomes {
		got[o.Before.Name] = o.After.Labels[conditions.LabelStatus]
		if o.Blocked != nil {
			got[o.Before.Name] += " " + o.Blocked.Reason
		}
	}
	// The budget of one goes to the first by name.
	if diff := cmp.Diff(map[string]string{"a": "quarantined", "b": "suspect budget", "c": "suspect budget", "skipped": ""}, got); diff != "" {
		t.Error(diff)
	}
	for _, n := range nodes {
		if len(n.Spec.Taints) > 0 || n.Annotations != nil {
			t.Errorf("node %s was changed: %+v", n.Name, n)
		}
	}
	for _, o := range Run(p, nodes, "network work", Stored{}, now) {
		if o.After != o.Before {
			t.Errorf("node %s would change while all is paused", o.Before.Name)
		}
	}
}

func TestAValidationIsAwaited(t *testing.T) {
	p, nodes := cluster(t, "a")
	p.Rules[0].Validate = true
	n := *Run(p, nodes, "", Stored{}, now)[0].After
	record, err := causes.RecordOf(&n)
	if err != nil {
		t.Fatal(err)
	}
	later := now.Add(time.Minute)
	n.Status.NodeInfo.BootID = "boot-2"
	n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(later)
	for _, at := range []time.Time{later, later.Add(10 * time.Minute)} {
		n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at)
		n = *Run(p, []corev1.Node{n}, "", Stored{}, at)[0].After
	}
	after := later.Add(10 * time.Minute)
	if o := Run(p, []corev1.Node{n}, "", Stored{}, after)[0]; o.Blocked == nil || o.Blocked.Reason != causes.BlockedByValidation || o.After != o.Before {
		t.Errorf("not validated: %+v", o.Blocked)
	}
	n.Annotations[conditions.AnnotationRepair] = `{"v":1,"nodeUID":"a","checked":{"at":"2026-11-20T12:05:00Z","bootID":"boot-2","quarantine":"` + record.ID + `"}}`
	if o := Run(p, []corev1.Node{n}, "", Stored{}, after)[0]; o.Blocked != nil || o.After.Labels[conditions.LabelStatus] != conditions.StatusHealthy {
		t.Errorf("validated: %+v, %v", o.Blocked, o.After.Labels)
	}
}

func TestAnOpenBreakerBlocks(t *testing.T) {
	p, nodes := cluster(t, "a")
	p.Breaker = &policy.Breaker{MaxNodes: 10, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
	closed, open := &corev1.ConfigMap{}, &corev1.ConfigMap{Data: map[string]string{"state": `{"openedAt":"2026-11-20T11:59:00Z"}`}}
	for want, breaker := range map[string]*corev1.ConfigMap{"": closed, causes.BlockedByBreaker: open} {
		got := ""
		if o := Run(p, nodes, "", Stored{Breaker: breaker}, now)[0]; o.Blocked != nil {
			got = o.Blocked.Reason
		}
		if got != want {
			t.Errorf("breaker %v: held back by %q, want %q", breaker.Data, got, want)
		}
	}
}

func TestTheBreakerOpensOnce(t *testing.T) {
	p, nodes := cluster(t, "a", "b", "c")
	p.Budget = policy.Budget{MaxNodes: 9, MaxPercent: 100}
	p.Breaker = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
	var says []string
	for _, o := range Run(p, nodes, "", Stored{}, now) {
		said := o.After.Labels[conditions.LabelStatus]
		if o.Blocked != nil {
			_, why, _ := strings.Cut(o.Blocked.Message, ", but ")
			said += ", " + why
		}
		says = append(says, said)
	}
	want := []string{"quarantined", "suspect, 1 quarantines began within 1h0m0s: the breaker opens", "suspect, the breaker is open"}
	if diff := cmp.Diff(want, says); diff != "" {
		t.Error(diff)
	}
}

// Attack 22: a time of a node that JSON cannot express ends no run over the whole cluster.
func TestATimeThatCannotBeEncodedPanicsNothing(t *testing.T) {
	far := map[string]string{"year 10000": `"9999-12-31T23:59:59-23:59"`, "year -1": `"0000-01-01T00:00:00+23:59"`}
	for year, text := range far {
		var at metav1.Time
		if err := json.Unmarshal([]byte(text), &at); err != nil {
			t.Fatal(err)
		}
		p, nodes := cluster(t, "a", "b", "c")
		p.Budget, p.Output.AWS = policy.Unlimited, true
		ready := corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: at, LastHeartbeatTime: at}
		for i := range nodes {
			nodes[i].Status.Conditions = append(nodes[i].Status.Conditions, ready)
		}
		nodes[1].Status.Conditions[0].LastTransitionTime = at
		nodes[2].Status.Conditions[0].LastHeartbeatTime = at
		breaker := &corev1.ConfigMap{Data: map[string]string{"state": `{"openedAt":` + text + `}`}}
		p.Breaker = &policy.Breaker{MaxNodes: 10, Window: time.Hour, CoolDown: 1}
		got := map[string]string{}
		for _, o := range Run(p, nodes, "", Stored{Breaker: breaker}, now.Add(time.Second)) {
			got[o.Before.Name] = o.After.Labels[conditions.LabelStatus]
			if _, err := causes.RecordOf(o.After); err != nil {
				t.Errorf("%s: %v", year, err)
			}
		}
		want := map[string]string{"a": "quarantined", "b": "quarantined", "c": ""}
		if year == "year 10000" {
			want["a"], want["b"] = "suspect", "suspect" // the breaker has only just opened
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", year, diff)
		}
	}
}

// What the ConfigMap remembers of a node that is gone, or that is skipped, counts as it does for the remediator.
func TestNodesThatAreGoneTakePlaces(t *testing.T) {
	p, nodes := cluster(t, "a", "skipped")
	nodes[1].Labels = map[string]string{conditions.LabelSkip: "true"}
	for name, test := range map[string]struct {
		starts  string
		blocked string
	}{
		"nothing":           {"", ""},
		"a node that left":  {`[{"n":"left","u":"left","r":"gpu","t":"2026-11-20T11:30:00Z"}]`, "left (gone)"},
		"a skipped node":    {`[{"n":"skipped","u":"skipped","r":"gpu","t":"2026-11-20T11:30:00Z"}]`, "skipped (gone)"},
		"the node itself":   {`[{"n":"a","u":"other","r":"gpu","t":"2026-11-20T11:30:00Z"}]`, ""},
		"long ago":          {`[{"n":"left","u":"left","r":"gpu","t":"2026-11-20T11:00:00Z"}]`, ""},
		"nothing to decode": {`{`, ""},
	} {
		breaker := &corev1.ConfigMap{Data: map[string]string{limits.StartsKey: test.starts}}
		blocked := ""
		if b := Run(p, nodes, "", Stored{Breaker: breaker}, now)[0].Blocked; b != nil {
			blocked = b.Message
		}
		if !strings.Contains(blocked, test.blocked) || test.blocked == "" && blocked != "" {
			t.Errorf("%s: blocked %q", name, blocked)
		}
		uses := limits.Uses(p, Peers(p, nodes, breaker, now), now)
		if want := test.blocked != "" || name == "the node itself"; len(uses) != 1 || (uses[0].Used == 1) != want {
			t.Errorf("%s: %+v", name, uses)
		}
	}
}

// Two racks fail at once: what is decided about the first is known to the second, as it is to the remediator.
func TestOneRackAtATimeIsAnIncident(t *testing.T) {
	_, nodes := cluster(t, "a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "c0", "c1", "c2", "c3")
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 12}
  correlated: {maxPercent: 50, minNodes: 3, window: 2m, scopes: [rack]}
  domains: [{label: rack, incidents: {}}]
  rules:
    gpu: {match: {condition: GPUXidError, repair: [ResetGPU]}}
    ports: {match: {condition: HCAPortDown, repair: [Inspect]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	for i := range nodes {
		n := &nodes[i]
		n.Labels = map[string]string{"rack": n.Name[:1]}
		ports := n.Status.Conditions[0]
		ports.Type, ports.Message = conditions.HCAPortDown, "Inspect mlx5_0 port 1: link is down"
		n.Status.Conditions = append(n.Status.Conditions, ports)
		if n.Name[:1] == "c" {
			n.Status.Conditions[0].Status, n.Status.Conditions[1].Status = corev1.ConditionFalse, corev1.ConditionFalse
		}
	}
	for _, o := range Run(p, nodes, "", Stored{}, now) {
		want := map[string]string{"a": "quarantined", "b": "suspect", "c": ""}[o.Before.Name[:1]]
		if got := o.After.Labels[conditions.LabelStatus]; got != want {
			t.Errorf("node %s would be %q, want %q", o.Before.Name, got, want)
		}
		if want == "suspect" && (o.Blocked == nil || !strings.HasSuffix(o.Blocked.Message, "the incident of rack=a is not over, and it is one at a time")) {
			t.Errorf("node %s: %+v", o.Before.Name, o.Blocked)
		}
	}
}

// What an earlier policy has put on a node is taken away with the quarantine, as far as remediators remember it.
func TestTheTaintOfAnEarlierPolicyIsKnown(t *testing.T) {
	p, nodes := cluster(t, "a")
	earlier := *p
	earlier.Rules = slices.Clone(p.Rules)
	earlier.Rules[0].Taint.Key = "example.com/broken"
	known := &corev1.ConfigMap{Data: map[string]string{handoff.KnownKey: handoff.KnownOf(&earlier).String()}}
	n := *Run(&earlier, nodes, "", Stored{}, now)[0].After
	n.Status.NodeInfo.BootID = "boot-2"
	at := now.Add(time.Minute)
	n.Status.Conditions[0].Status, n.Status.Conditions[0].LastTransitionTime = corev1.ConditionFalse, metav1.NewTime(at)
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at)
	n = *Run(&earlier, []corev1.Node{n}, "", Stored{}, at)[0].After
	at = at.Add(10 * time.Minute)
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(at)
	for want, stored := range map[int]Stored{0: {Known: known}, 1: {}} {
		o := Run(p, []corev1.Node{n}, "", stored, at)[0]
		if o.After.Labels[conditions.LabelStatus] != conditions.StatusHealthy || len(o.After.Spec.Taints) != want {
			t.Errorf("%+v: %v, taints %v, want %d", stored, o.After.Labels, o.After.Spec.Taints, want)
		}
	}
}
