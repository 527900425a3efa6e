package node

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/outlook"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

const rulesOfOthers = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    theirs: {match: {condition: AcceleratorReady, status: "False", repair: [Reboot]}}
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}}
`

// described is what describe prints about a node after the remediator has acted.
func described(t *testing.T, n *corev1.Node, rules string, now time.Time) string {
	t.Helper()
	p, err := policy.Parse([]byte(rules))
	if err != nil {
		t.Fatal(err)
	}
	o := simulate.Run(p, []corev1.Node{*n}, "", simulate.Stored{}, now)[0]
	record, err := causes.RecordOf(o.After)
	if err != nil || record == nil {
		t.Fatalf("record %v, %v", record, err)
	}
	var out bytes.Buffer
	describeRecord(&out, o.After, record, "", func(time.Time) string { return "AGO" })
	if err := describeConditions(&out, o.After, record, now); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func nodeWith(c corev1.NodeCondition) *corev1.Node {
	c.LastHeartbeatTime, c.LastTransitionTime = metav1.NewTime(clitest.Now), metav1.NewTime(clitest.Now)
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "u"},
		Status:     corev1.NodeStatus{Conditions: []corev1.NodeCondition{c, {Type: "Others", Status: corev1.ConditionTrue}}, NodeInfo: corev1.NodeSystemInfo{BootID: "b"}},
	}
}

func TestDescribeShowsTheConditionOfOthersThatQuarantined(t *testing.T) {
	out := described(t, nodeWith(corev1.NodeCondition{Type: "AcceleratorReady", Status: corev1.ConditionFalse, Message: "8 GPUs gone"}), rulesOfOthers, clitest.Now)
	for _, want := range []string{
		"Cause:    AcceleratorReady: 8 GPUs gone\n",
		"Release:  automatic, once the causes have been gone for the policy's clearAfter; before that: `kubectl pitcrew release n`\n",
		"Checks:   none: the node has no condition of ours\n",
		"AcceleratorReady  False   Reboot  0s     0s         8 GPUs gone\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "Others") {
		t.Errorf("a condition that no rule is about:\n%s", out)
	}
}

func TestDescribeGivesOneAdviceOnTheRelease(t *testing.T) {
	n, err := quarantine.QuarantineManually(nodeWith(corev1.NodeCondition{Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: clitest.Lost}),
		quarantine.Manual{User: "ann\x1b[2J", Reason: "smells of smoke"}, clitest.Now)
	if err != nil {
		t.Fatal(err)
	}
	out := described(t, n, rulesOfOthers, clitest.Now)
	if strings.Count(out, "kubectl pitcrew release") != 1 || !strings.Contains(out, "Release:  only by `kubectl pitcrew release n`, when the node is fit again\n") ||
		!strings.Contains(out, "Cause:    ByHand: smells of smoke\n          first seen AGO; by ann [2J; needs inspection (Inspect); not released automatically: a user quarantined the node\n") {
		t.Error(out)
	}
	for reason, want := range map[string]string{"": "automatic", causes.BlockedByMissingRule: "only by", causes.BlockedByBudget: "automatic"} {
		if got := howReleased("n", &causes.Record{}, reason); !strings.HasPrefix(got, want) {
			t.Errorf("%s: %s", reason, got)
		}
	}
}

// A victim of another node's broken link names that node, before and after its release.
func TestDescribeNamesTheOriginOfAVictim(t *testing.T) {
	held := &causes.Record{Quarantine: causes.Quarantine{Phase: causes.Quarantined, Taint: &causes.Taint{HeldFor: "origin-1"}}}
	if got := howReleased("n", held, ""); !strings.Contains(got, "once the quarantine of node origin-1 has ended") || !strings.Contains(got, "kubectl pitcrew release n") {
		t.Error(got)
	}
	released := &causes.Record{Quarantine: causes.Quarantine{Phase: causes.Released, ReleasedBy: causes.ByPitcrew}}
	ago := func(time.Time) string { return "AGO" }
	for _, test := range []struct {
		record *causes.Record
		link   causes.Link
		want   string
	}{
		{held, causes.Link{Origin: "origin-1"}, "waits for the repair of node origin-1"},
		{held, causes.Link{SwitchSide: true}, "inspect the switches"},
		{held, causes.Link{}, "waits for the condition to clear"},
		{released, causes.Link{Origin: "origin-1"}, "released AGO with node origin-1"},
		{released, causes.Link{}, "a user released the node"},
	} {
		if got := waits(nodeWith(corev1.NodeCondition{}), test.record, causes.Cause{Link: test.link}, ago); !strings.Contains(got, test.want) {
			t.Errorf("%+v: %s, want %s", test.link, got, test.want)
		}
	}
}

// A node that came back is not judged by what its checks said before.
func TestDescribeWaitsForAHeartbeat(t *testing.T) {
	p, err := policy.Parse([]byte(rulesOfOthers))
	if err != nil {
		t.Fatal(err)
	}
	n := nodeWith(corev1.NodeCondition{Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: clitest.Lost})
	ready := metav1.NewTime(clitest.Now.Add(time.Minute))
	n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{Type: corev1.NodeReady, Status: corev1.ConditionTrue, LastTransitionTime: ready, LastHeartbeatTime: ready})
	now := clitest.Now.Add(2 * time.Minute)
	o := simulate.Run(p, []corev1.Node{*n}, "", simulate.Stored{}, now)[0]
	want := "waiting for a heartbeat of GPUXidError: the last one, at 2026-11-20T12:00:00Z, is from before the node came back at 2026-11-20T12:01:00Z"
	if got := outlook.Text(o, p, now); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	n.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(now)
	if got := quarantine.AwaitsHeartbeat(p, n, now); got != "" {
		t.Errorf("after the heartbeat: %s", got)
	}
	n.Status.Conditions[0].Type = "WithoutRule"
	o = simulate.Run(p, []corev1.Node{*n}, "", simulate.Stored{}, now)[0]
	if got := outlook.Text(o, p, now); got != "nothing: no rule matches its conditions" {
		t.Errorf("without a rule: %s", got)
	}
}

func TestDescribeNamesAllThatBlocks(t *testing.T) {
	p, err := policy.Parse([]byte(rulesOfOthers))
	if err != nil {
		t.Fatal(err)
	}
	o := simulate.Outcome{Before: &corev1.Node{}, Decision: quarantine.Decision{
		Blocked:    &causes.Blocked{Reason: causes.BlockedByBudget, Message: "3 of 3"},
		BlockedToo: []causes.Blocked{{Reason: causes.BlockedByBreaker, Message: "the breaker is open"}},
	}}
	if got, want := outlook.Text(o, p, clitest.Now), "blocked by budget: 3 of 3; also blocked by breaker: the breaker is open"; got != want {
		t.Errorf("got %s", got)
	}
}
