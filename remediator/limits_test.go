package main

import (
	"fmt"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// rewrite changes a policy file as a whole, as a mounted ConfigMap changes.
func (tm team) rewrite(path, old, new string) {
	tm.Helper()
	text := read(tm.T, path)
	if !strings.Contains(text, old) {
		tm.Fatalf("no %q in\n%s", old, text)
	}
	next := path + ".next"
	if err := os.WriteFile(next, []byte(strings.Replace(text, old, new, 1)), 0o644); err != nil {
		tm.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil { // the remediator may be reading the file
		tm.Fatal(err)
	}
}

func TestARuleObservesUntilItIsSwitchedOnInTheRunningRemediator(t *testing.T) {
	tm := newTeam(t, "observe", 1, nil)
	name := tm.nodes[0]
	policy := tm.policy(1, "restartJobs: true")
	tm.rewrite(policy, "mode: enforce", "mode: observe")
	address := clustertest.FreeAddress(t)
	tm.start(policy, alone, "-metrics-bind-address", address)
	tm.report(name, "True", ecc)
	n, r := tm.becomes(name, causes.Suspect)
	tm.waitForEvent(n.UID, "WouldQuarantine: GPUXidError needs a GPU reset (rule gpu: "+ecc+"); observe mode: would taint "+ourTaint+" and restart its jobs")
	if taints(n) != "" {
		t.Errorf("taints %q", taints(n))
	}

	tm.rewrite(policy, "mode: observe", "mode: enforced")
	tm.until("the broken policy shows", func() error { return tm.shows(address, "pitcrew_policy_valid 0") })
	tm.until("Event PolicyInvalid names the line", func() error {
		for _, e := range tm.events("") {
			if strings.Contains(e, "PolicyInvalid") && strings.Contains(e, "line 5: spec.mode") {
				return nil
			}
		}
		return fmt.Errorf("%q", tm.events(""))
	})
	if taints(tm.get(name)) != "" {
		t.Error("a broken policy acts")
	}

	tm.rewrite(policy, "mode: enforced", "mode: enforce")
	_, now := tm.becomes(name, causes.Quarantined)
	if now.ID != r.ID || !now.Causes[0].FirstSeen.Equal(r.Causes[0].FirstSeen) {
		t.Errorf("switched on, it began again: %s, before %s", now, r)
	}
}

func TestTheBreakerOutlivesTheRemediatorAndAUserClosesIt(t *testing.T) {
	tm := newTeam(t, "breaker", 3, nil)
	stored := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.BreakerConfigMap}}
	policy := tm.policy(3)
	tm.rewrite(policy, "  rules:", "  breaker: {maxNodes: 1, window: 1h, coolDown: 1h, pace: 1h}\n  rules:")
	first := tm.start(policy, alone)
	tm.report(tm.nodes[0], "True", lost)
	tm.becomes(tm.nodes[0], causes.Quarantined)
	tm.report(tm.nodes[1], "True", lost)
	n, _ := tm.becomes(tm.nodes[1], causes.Suspect)
	tm.waitForEvent(n.UID, "1 quarantines began within 1h0m0s: the breaker opens")
	tm.until("the breaker is stored", func() error {
		if err := tm.Client.Get(t.Context(), client.ObjectKeyFromObject(stored), stored); err != nil {
			return err
		}
		if !strings.Contains(stored.Data["state"], "openedAt") {
			return fmt.Errorf("%v", stored.Data)
		}
		return nil
	})
	first.Kill()
	address := clustertest.FreeAddress(t)
	tm.start(policy, alone, "-metrics-bind-address", address)
	tm.report(tm.nodes[2], "True", lost)
	n, _ = tm.becomes(tm.nodes[2], causes.Suspect)
	tm.waitForEvent(n.UID, "but the breaker is open")
	tm.until("the metric of the new remediator shows an open breaker", func() error { return tm.shows(address, "pitcrew_breaker_open 1") })
	// A user closes it and raises the limit in the policy.
	tm.rewrite(policy, "maxNodes: 1, window", "maxNodes: 3, window")
	if err := tm.Client.Delete(t.Context(), stored); err != nil {
		t.Fatal(err)
	}
	tm.becomes(tm.nodes[1], causes.Quarantined)
	tm.becomes(tm.nodes[2], causes.Quarantined)
}

// When a leader loses its lease in the middle of a write, two leaders act for a moment. Each write is valid for one version of the
// node only. The API server refuses the slower write, and no Event reports it.
func TestTwoLeadersAtOnceQuarantineEachNodeOnce(t *testing.T) {
	tm := newTeam(t, "leaders", 8, nil)
	policy := tm.policy(8, "clearAfter: 1s")
	tm.start(policy, alone)
	tm.start(policy, alone)
	for _, name := range tm.nodes {
		tm.report(name, "True", ecc)
	}
	for _, name := range tm.nodes {
		n, _ := tm.becomes(name, causes.Quarantined)
		if got := taints(n); got != ourTaint {
			t.Errorf("node %s: taints %q", name, got)
		}
		tm.waitForEvent(n.UID, "NodeQuarantined")
	}
	for _, name := range tm.nodes {
		tm.report(name, "False", "fine")
	}
	for _, name := range tm.nodes {
		n, r := tm.becomes(name, causes.Released)
		if len(r.Last) != 0 || taints(n) != "" {
			t.Errorf("node %s: %s, taints %q", name, r, taints(n))
		}
		tm.waitForEvent(n.UID, "NodeReleased")
	}
}

func TestARemediatorThatIsKilledRepeatedlyReachesTheSameState(t *testing.T) {
	tm := newTeam(t, "killed", 6, nil)
	policy := tm.policy(6, "clearAfter: 1s")
	for i, name := range tm.nodes {
		p := tm.start(policy, alone)
		tm.report(name, "True", ecc)
		tm.until("the write is done or under way", func() error {
			if tm.get(name).Annotations[conditions.AnnotationQuarantine] == "" {
				return errStill
			}
			return nil
		})
		if i < len(tm.nodes)-1 {
			p.Kill()
		}
	}
	for _, name := range tm.nodes {
		n, r := tm.becomes(name, causes.Quarantined)
		if taints(n) != ourTaint || len(r.Last) != 0 || n.Labels[conditions.LabelStatus] != "quarantined" {
			t.Errorf("node %s: taints %q, labels %v, %s", name, taints(n), n.Labels, r)
		}
	}
}
