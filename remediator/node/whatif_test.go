package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

func TestWhatIfSeesWhatItHasDecidedItself(t *testing.T) {
	r := newRig(t, "c", "a", "b", "skipped")
	r.client.nodes[3].Labels = map[string]string{conditions.LabelSkip: "true"}
	got := map[string]string{}
	outcomes := WhatIf(r.policy.Policy(), r.client.nodes, "", nil, r.now())
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
	for _, n := range r.client.nodes {
		if len(n.Spec.Taints) > 0 || n.Annotations != nil {
			t.Errorf("node %s was changed: %+v", n.Name, n)
		}
	}
	for _, o := range WhatIf(r.policy.Policy(), r.client.nodes, "network work", nil, r.now()) {
		if o.After != o.Before {
			t.Errorf("node %s would change while all is paused", o.Before.Name)
		}
	}
}

func TestWhatIfKnowsTheBreaker(t *testing.T) {
	r := newRig(t, "a")
	p := *r.policy.Policy()
	p.Breaker = &policy.Breaker{MaxNodes: 10, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
	closed, open := &corev1.ConfigMap{}, &corev1.ConfigMap{Data: map[string]string{"state": `{"openedAt":"2026-11-20T11:59:00Z"}`}}
	for want, breaker := range map[string]*corev1.ConfigMap{"": closed, BlockedByBreaker: open} {
		got := ""
		if o := WhatIf(&p, r.client.nodes, "", breaker, r.now())[0]; o.Blocked != nil {
			got = o.Blocked.Reason
		}
		if got != want {
			t.Errorf("breaker %v: held back by %q, want %q", breaker.Data, got, want)
		}
	}
}

func TestWhatIfOpensTheBreakerOnce(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	p := *r.policy.Policy()
	p.Budget = policy.Budget{MaxNodes: 9, MaxPercent: 100}
	p.Breaker = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
	var says []string
	for _, o := range WhatIf(&p, r.client.nodes, "", nil, r.now()) {
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
