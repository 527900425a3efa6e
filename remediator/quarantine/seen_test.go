package quarantine

import (
	"fmt"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

// The API server refuses the write of an upgrade, because a kubelet has written in between. It is decided again.
func TestAConflictDoesNotLoseTheRestartOfAnUpgrade(t *testing.T) {
	w := newWorld(t)
	gpu(drain)(w)
	w.decide()
	others(1)(w) // the budget is used up, but the node has its place
	passes(time.Second)(w)
	gpu(lost)(w)
	w.seen = w.look().SeenAfter(w.observe(), w.now)
	passes(20 * time.Millisecond)(w)
	w.decide()
	if !w.last.RestartJobs {
		t.Errorf("no job is restarted: %+v", w.last.Blocked)
	}
}

// A remediator that has just started upgrades what an earlier one has quarantined, and restarts the jobs: our taint is on the
// node, which a kubelet cannot set.
func TestAnUpgradeAfterAChangeOfTheLeaderRestartsTheJobs(t *testing.T) {
	f := newFleet(t, 3, "budget: {maxNodes: 100}\nbreaker: {maxNodes: 2, window: 10m, coolDown: 30m, pace: 5m}",
		"restartJobs: true\n    mild: {match: {condition: GPUXidError, repair: [Inspect]}}")
	w := f.worlds[0]
	gpu(inspect)(w)
	f.decide(0)
	f.broken = &limits.BreakerState{OpenedAt: w.now}
	restarted(w)
	f.decide(0)
	passes(time.Minute)(w)
	gpu(lost)(w)
	f.decide(0)
	if w.record().Taint.Rule != "gpu" || !w.last.RestartJobs {
		t.Errorf("rule %s, restart %t, %+v", w.record().Taint.Rule, w.last.RestartJobs, w.last.Blocked)
	}
}

// Attack 1: whoever changes the id in the record and wipes its notices, again and again, has few more of them sent.
func TestWipedNoticesAreNotMadeAgainForEver(t *testing.T) {
	w := newWorld(t)
	hooks()(w)
	gpu(ecc)(w)
	w.decide()
	record := *w.record()
	made := map[string]bool{}
	for i := range 300 {
		w.now = w.now.Add(time.Second)
		forged := record
		forged.ID, forged.Notices, forged.LastNotified = fmt.Sprint("forged", i), nil, ""
		w.node.Annotations[conditions.AnnotationQuarantine] = forged.String()
		d := w.look()
		w.seen = d.SeenAfter(w.observe(), w.now)
		for _, n := range d.State.Record.Notices {
			made[n.ID] = true
		}
	}
	if most := handoff.MaxNotices + seen.MaxUnwritten; len(made) > most || w.seen.Notices() > most {
		t.Errorf("%d deliveries, %d notices in memory", len(made), w.seen.Notices())
	}
}

// The Node was deleted, and its kubelet registers it again with the record of before.
func TestWhatWasSeenOfANodeIsNotKnownOfItsSuccessor(t *testing.T) {
	w := newWorld(t)
	gpu(ecc)(w)
	w.decide()
	if !w.seen.Of(w.record()).Decided {
		t.Fatal("the quarantine is not known")
	}
	r := w.record()
	r.NodeUID = "another"
	if w.seen.Of(r) != (seen.Quarantine{}) {
		t.Error("the quarantine of another node counts as decided")
	}
}
