package nodes

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// wakes are the nodes that would be decided again now.
func (r rig) wakes(t *testing.T, touched ...string) []string {
	t.Helper()
	for _, name := range touched {
		r.pending.Touch(name)
	}
	names, err := r.findRetries(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return names
}

func TestAFreePlaceWakesTheNodesThatWaitForIt(t *testing.T) {
	for what, free := range map[string]func(r rig){
		"a node in service again": func(r rig) { r.client.nodes[0] = *nodeOf(r, "a") },
		"a node less":             func(r rig) { r.client.nodes = r.client.nodes[1:] },
		"a node more": func(r rig) {
			n := nodeOf(r, "d")
			r.client.nodes = append(r.client.nodes, *n)
		},
		"another policy": func(r rig) { *r.policy = *policy.Fixed(new(*r.policy.Policy())) },
	} {
		r := newRig(t, "a", "b", "c")
		for _, name := range []string{"a", "b", "c", "a", "b", "c"} { // a takes the place
			r.reconcile(t, name)
		}
		r.client.nodes[0] = *r.client.live["a"].DeepCopy()
		for _, name := range []string{"a", "b", "c"} {
			r.reconcile(t, name)
		}
		for range 100 { // they stand
			r.clock.SetTime(r.clock.Now().Add(limits.RetryBlocked))
			if got := r.wakes(t, "a", "b", "c"); got != nil {
				t.Fatalf("%s: nothing has changed, and %v are decided again", what, got)
			}
		}
		free(r)
		if diff := cmp.Diff([]string{"b", "c"}, r.wakes(t, "a", "b", "c", "d")); diff != "" {
			t.Errorf("%s: %s", what, diff)
		}
	}
}

// What a node waits for beside a place is often what is reported.
func TestAFreePlaceWakesANodeThatWaitsForSomethingElse(t *testing.T) {
	r := newRig(t, "a", "b")
	for _, name := range []string{"a", "b", "a", "b"} { // a takes the place
		r.reconcile(t, name)
	}
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	r.reconcile(t, "b")
	r.fleet.noteHeld(r.policy.Policy(), "b", quarantine.Decision{Limited: true, Blocked: &causes.Blocked{Reason: causes.BlockedByValidation}})
	if got := r.wakes(t, "a", "b"); got != nil {
		t.Fatalf("nothing has changed, and %v are decided again", got)
	}
	r.client.nodes[0] = *nodeOf(r, "a")
	if diff := cmp.Diff([]string{"b"}, r.wakes(t, "a", "b")); diff != "" {
		t.Error(diff)
	}
}

// nodeOf is a healthy node.
func nodeOf(r rig, name string) *corev1.Node {
	n := r.client.nodes[1].DeepCopy()
	n.Name, n.UID, n.ResourceVersion = name, "new", "9"
	n.Status.Conditions[0].Status = corev1.ConditionFalse
	return n
}

// A heartbeat of a node that waits changes nothing for the others that wait, but for how long an open breaker stays open.
func TestAHeartbeatWakesNoNode(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for range 3 {
		for _, name := range []string{"a", "b", "c"} {
			r.reconcile(t, name)
		}
	}
	for i := range r.client.nodes {
		n := &r.client.nodes[i]
		n.ResourceVersion = "9"
		n.Status.Conditions[0].LastHeartbeatTime.Time = r.clock.Now().Add(time.Minute)
	}
	r.client.nodes[0].Annotations = r.client.live["a"].Annotations
	r.client.nodes[0].Spec.Taints = r.client.live["a"].Spec.Taints
	for i, name := range []string{"b", "c"} {
		r.client.nodes[i+1].Annotations = r.client.live[name].Annotations
	}
	if got := r.wakes(t, "a", "b", "c"); got != nil {
		t.Errorf("%v are decided again", got)
	}
}

// C6: nobody changes a node when a person closes the breaker.
func TestABreakerThatAPersonClosesWakesTheNodesThatWaitForIt(t *testing.T) {
	r := newRig(t, "a", "b")
	p := *r.policy.Policy()
	p.Budget = policy.Unlimited
	p.Breaker = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Hour}
	r.policy = policy.Fixed(&p)
	for _, name := range []string{"a", "b", "a", "b"} {
		r.reconcile(t, name)
	}
	if got := r.wakes(t); got != nil || r.breaker.State(&p) == nil {
		t.Fatalf("%v are decided again, the breaker is %v", got, r.breaker.State(&p))
	}
	r.clock.SetTime(r.clock.Now().Add(limits.RetryBlocked)) // the ConfigMap has no open breaker
	if diff := cmp.Diff([]string{"b"}, r.wakes(t)); diff != "" || r.breaker.State(&p) != nil {
		t.Errorf("%s, the breaker is %v", diff, r.breaker.State(&p))
	}
}

// A fault that stands makes less than a request and at most about one decision a minute, whether its node is quarantined, waits for a place, is
// dead or is only observed. [BenchmarkDecision] says what a decision costs.
func TestAFaultThatStandsIsSeldomDecided(t *testing.T) {
	for what, test := range map[string]struct {
		change    func(p *policy.Policy)
		silent    bool
		decisions int // of each node, in an hour
	}{
		"quarantined":           {func(p *policy.Policy) { p.Budget = policy.Unlimited }, false, 12},
		"quarantined and dead":  {func(p *policy.Policy) { p.Budget = policy.Unlimited }, true, 63},
		"waiting for a place":   {func(p *policy.Policy) { p.Budget.MaxNodes = 0 }, false, 62},
		"waiting for a breaker": {func(p *policy.Policy) { p.Budget = policy.Unlimited; p.Breaker = never }, false, 62},
		"observed": {func(p *policy.Policy) {
			for i := range p.Rules {
				p.Rules[i].Observe = true
			}
		}, false, 12},
	} {
		t.Run(what, func(t *testing.T) {
			names := []string{"a", "b", "c"}
			r := newRig(t, names...)
			p := *r.policy.Policy()
			p.Rules = slices.Clone(p.Rules)
			test.change(&p)
			r.policy = policy.Fixed(&p)
			r.breaker = memory.NewBreaker(memory.Options{Client: r.client, Reader: r.client, Clock: r.clock, DryRun: true}) // it stays open
			r.fleet = newFleet(r.Controller)
			start := r.clock.Now()
			due, decisions := map[string]time.Time{}, 0
			show := func(i int) { // the cache shows what was written
				if n := r.client.live[r.client.nodes[i].Name]; n != nil {
					beats := r.client.nodes[i].Status.Conditions
					r.client.nodes[i] = *n.DeepCopy()
					r.client.nodes[i].Status.Conditions = beats
				}
			}
			requests := func() int { return len(r.client.patched) + len(r.client.created) + len(r.restarts.quarantines) }
			var first int
			for r.clock.Now().Before(start.Add(2 * time.Hour)) {
				now := r.clock.Now()
				if now.Equal(start.Add(time.Hour)) { // it stands
					first, decisions = requests(), 0
				}
				for i := range r.client.nodes {
					if !test.silent && now.Sub(start)%(5*time.Minute) == 0 {
						r.client.nodes[i].Status.Conditions[0].LastHeartbeatTime.Time = now
						r.client.nodes[i].ResourceVersion += "+"
						delete(r.client.live, names[i])
					}
				}
				for _, name := range r.wakes(t, names...) {
					due[name] = now
				}
				for i, name := range names {
					if !due[name].After(now) {
						after := r.reconcile(t, name).RequeueAfter
						if due[name] = now.Add(after); after == 0 {
							due[name] = start.Add(24 * time.Hour)
						}
						decisions++
						show(i)
					}
				}
				r.reasons()
				r.clock.SetTime(now.Add(time.Second))
			}
			if most := len(names) * test.decisions; decisions == 0 || decisions > most {
				t.Errorf("%d decisions in an hour, want at most %d", decisions, most)
			}
			if got := requests() - first; got > len(names)*12 {
				t.Errorf("%d requests in an hour", got)
			}
			t.Logf("%d decisions, %d requests", decisions, requests()-first)
		})
	}
}

// never is a breaker that lets no node through.
var never = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: 24 * time.Hour, Pace: 24 * time.Hour}
