package quarantine

import (
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// A kubelet that rewrites the start in a record without a taint does not keep a half-open breaker shut.
func TestAForgedStartDoesNotSlowTheBreaker(t *testing.T) {
	f := newFleet(t, 3, "budget: {maxNodes: 100}\nbreaker: {maxNodes: 2, window: 10m, coolDown: 30m, pace: 5m}", "for: 0s")
	evil, victim := f.worlds[0], f.worlds[1]
	f.broken = &limits.BreakerState{OpenedAt: victim.now}
	for range 9 { // 36 minutes
		for _, w := range f.worlds {
			w.now = w.now.Add(4 * time.Minute)
		}
		gpuFine(evil)
		forges(func(r *causes.Record) { r.QuarantinedAt = evil.now })(evil)
		says("GPUXidError", "True", lost)(victim)
		f.decide(1)
	}
	if victim.record().Phase != causes.Quarantined {
		t.Errorf("held back: %+v", victim.last.Blocked)
	}
}

// Only the quarantine under way, beside its taint, proves its start.
func TestATaintProvesAStart(t *testing.T) {
	w := newWorld(t)
	gpu(lost)(w)
	w.decide()
	proven := func() bool { return peers.Of(w.policy, w.node).Starts[0].Proven }
	if !proven() {
		t.Error("not proven beside the taint")
	}
	w.node.Spec.Taints = nil
	if proven() {
		t.Error("proven without the taint")
	}
}
