package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

const readyPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m}
  rules:
    dead:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: 2m
      restartJobs: true
`

// died is a node whose kubelet and detectors fell silent.
func died(at time.Time) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.", LastTransitionTime: metav1.NewTime(at)},
		{Type: conditions.GPUXidError, Status: corev1.ConditionFalse, Message: "no fault", LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.NewTime(at)},
	}}}
}

func TestStatusSaysThatANodeIsDeadAndNotThatItsDetectorIsSilent(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	const want = "Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.)"
	n := died(at)
	if r := rowOf(n, at.Add(time.Hour)); r.Status != isUnknown || r.Cause != want || !r.Since.Equal(at) {
		t.Errorf("%+v", r)
	}
	n, err := quarantine.QuarantineManually(n, quarantine.Manual{Reason: "smells of smoke"}, at)
	if err != nil {
		t.Fatal(err)
	}
	if r := rowOf(n, at.Add(time.Hour)); r.Status != isQuarantined || r.Cause != "ByHand: smells of smoke | "+want {
		t.Errorf("%+v", r)
	}
	n.Status.Conditions[0].Status = corev1.ConditionTrue
	if r := rowOf(n, at.Add(time.Hour)); r.Cause != "ByHand: smells of smoke" {
		t.Errorf("%+v", r)
	}
}

func TestDescribeSaysWhatHappensNextToADeadNode(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	p, err := policy.Parse([]byte(readyPolicy))
	if err != nil {
		t.Fatal(err)
	}
	without := *p
	without.Rules = nil
	text := func(p *policy.Policy, n *corev1.Node, now time.Time) (string, *corev1.Node) {
		o := simulate.Run(p, []corev1.Node{*n}, "", nil, now)[0]
		return outcomeText(o, p, now), o.After
	}
	n := died(at)
	for _, step := range []struct {
		name  string
		rules *policy.Policy
		now   time.Time
		want  string
	}{
		{"no rule", &without, at.Add(time.Minute), "nothing: Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.), and no rule of the policy acts on that"},
		{"switched off", p, at.Add(8 * 24 * time.Hour), "nothing: Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.), longer than budget.parkedAfter, so the node is taken for switched off"},
		{"before the time", p, at, "at 2026-11-20T12:02:00Z, if the node is not Ready until then: add taint pitcrew.dev/unhealthy=Ready:NoSchedule and restart its jobs"},
		{"at the time", p, at.Add(2 * time.Minute), "NodeQuarantined: Ready is Unknown since 2026-11-20T12:00:00Z (rule dead: Kubelet stopped posting node status.); tainted pitcrew.dev/unhealthy=Ready:NoSchedule; restart the opted-in jobs with pods on it"},
		{"after it", p, at.Add(time.Hour), "the quarantine stands; restart the opted-in jobs with pods on it"},
	} {
		got, after := text(step.rules, n, step.now)
		if got != step.want {
			t.Errorf("%s: %s", step.name, got)
		}
		if !strings.HasPrefix(step.want, "nothing") {
			n = after
		}
	}
	record, err := quarantine.RecordOf(n)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	describeRecord(&out, n, record, "", func(time.Time) string { return "AGO" })
	if want := "Cause:    Ready: Kubelet stopped posting node status.\n          first seen AGO; needs inspection (Inspect); waits for the node to be Ready again\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%s", out.String())
	}
}
