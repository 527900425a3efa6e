package node

import (
	"bytes"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/outlook"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
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

func TestDescribeSaysWhatHappensNextToADeadNode(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	p, err := policy.Parse([]byte(readyPolicy))
	if err != nil {
		t.Fatal(err)
	}
	without := *p
	without.Rules = nil
	text := func(p *policy.Policy, n *corev1.Node, now time.Time) (string, *corev1.Node) {
		o := simulate.Run(p, []corev1.Node{*n}, "", simulate.Stored{}, now)[0]
		return outlook.Text(o, p, now), o.After
	}
	n := clitest.Died(at)
	for _, step := range []struct {
		name  string
		rules *policy.Policy
		now   time.Time
		want  string
	}{
		{"no rule", &without, at.Add(time.Minute), "nothing: Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.), and no rule of the policy acts on that"},
		{"switched off", p, at.Add(8 * 24 * time.Hour), "nothing: Ready is Unknown since 2026-11-20T12:00:00Z (Kubelet stopped posting node status.), longer than budget.parkedAfter, so the node is taken for switched off"},
		{"before the time", p, at, "at 2026-11-20T12:02:00Z, if the node is not Ready until then and the limits allow it: add taint pitcrew.dev/unhealthy=Ready:NoSchedule and restart its jobs"},
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
	record, err := causes.RecordOf(n)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	describeRecord(&out, n, record, "", func(time.Time) string { return "AGO" })
	if want := "Cause:    Ready: Kubelet stopped posting node status.\n          first seen AGO; needs inspection (Inspect); waits for the node to be Ready again\n"; !strings.Contains(out.String(), want) {
		t.Errorf("%s", out.String())
	}
}
