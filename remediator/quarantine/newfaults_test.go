package quarantine

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	lostA   = "gpu 0000:1b:00: Xid 79 GPU has fallen off the bus"
	lostB   = "gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	resetA  = "gpu 0000:1b:00: Xid 95 uncontained ECC error"
	timeout = "gpu 0000:1b:00: Xid 119 GSP RPC timeout"
)

// A person releases a node for the faults that it has, and for no other.
func TestAManualReleaseCoversTheFaultsThatStood(t *testing.T) {
	reports := func(class string, parts ...string) step { return gpu(class + " " + strings.Join(parts, "; ")) }
	release := func(faults ...step) []step { return append(faults, decide, pardoned, decide, lasts(time.Hour)) }
	after := func(before []step, more ...step) []step { return append(slices.Clone(before), append(more, decide)...) }
	releasedA := release(reports("Reboot", lostA))
	releasedB := release(reports("Reboot", lostB))
	const again = "NodeQuarantined NodeQuarantined"
	anew := quarantined.but(func(o *outcome) { o.Said = again })
	holds := outcome{Phase: Released, By: ByPerson, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined"}
	over := outcome{Phase: Released, By: ByPerson, Status: "healthy", Said: "NodeQuarantined"}
	bothGone := []step{reports("Reboot", lostA, lostB), decide, reboots, reports("Reboot", lostA), decide, lasts(time.Hour)}
	hidden := release(reports("Reboot", lostA, "+1 more"))
	checkOutcomes(t, map[string]outcomeTest{
		"what stood holds for ever":                             {after(releasedA, lasts(48*time.Hour)), holds},
		"also after a reboot":                                   {after(releasedA, reboots, reports("Reboot", lostA)), holds},
		"the same code on another GPU counts":                   {after(releasedA, reports("Reboot", lostA, lostB)), anew},
		"wherever its message has it":                           {after(releasedB, reports("Reboot", lostA, lostB)), anew},
		"also when the first one is gone":                       {after(releasedA, reports("Reboot", lostB)), anew},
		"a milder fault of another GPU counts, too":             {after(releasedB, reports("Reboot", lostB, resetA)), anew},
		"another code on the same GPU counts":                   {after(releasedA, reports("Reboot", timeout, lostA)), anew},
		"a milder code on the same GPU does not":                {after(releasedA, reports("Reboot", lostA, timeout)), holds},
		"nor when it is left alone":                             {after(releasedA, reports("ResetGPU", resetA)), holds},
		"both stood: one that is left is no news":               {after(release(reports("Reboot", lostA, lostB)), reports("Reboot", lostB)), holds},
		"what stood but was not the cause's message is covered": {after([]step{reports("Reboot", lostA), decide, reports("Reboot", lostA, lostB), decide, pardoned, decide}, lasts(time.Hour)), holds},
		"what the message had no room for may show later":       {after(hidden, reports("Reboot", lostB)), holds},
		"one more than it had no room for counts":               {after(hidden, reports("Reboot", lostA, lostB, "+1 more")), anew},
		"a removed taint releases the same":                     {after([]step{reports("Reboot", lostA), decide, untaints, decide, untaints, decide}, reports("Reboot", lostA, lostB)), anew.but(func(o *outcome) { o.Said = "NodeQuarantined TaintRestored ReleaseByHand NodeQuarantined" })},
		"removed again it releases the new fault, too": {after(releasedA, reports("Reboot", lostA, lostB), decide, untaints, decide, untaints, decide, lasts(time.Hour)),
			holds.but(func(o *outcome) { o.Said = again + " TaintRestored ReleaseByHand" })},
		"what was released upgrades no later quarantine": {after(releasedA, gpu("ResetGPU gpu 0000:4e:00: Xid 154 recovery action Drain and Reset"), decide, reports("Reboot", lostA)),
			anew.but(func(o *outcome) { o.Repair, o.Restart = "ResetGPU", false })},
		"within the budget": {after(releasedA, others(1), reports("Reboot", lostA, lostB)), outcome{Phase: Suspect, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined blocked:budget"}},
		"a new fault that goes before anything was done is forgotten": {after(releasedA, others(1), reports("Reboot", lostA, lostB), decide, reports("Reboot", lostA)), holds.but(func(o *outcome) { o.Said += " blocked:budget" })},
		"once the new one is repaired, the release covers the rest":   {after(after(releasedA, bothGone...)), holds.but(func(o *outcome) { o.Said = again + " NodeReleased" })},
		"for as long as that stands":                                  {after(after(releasedA, bothGone...), gpuFine, decide, lasts(11*time.Minute)), over.but(func(o *outcome) { o.Said = again + " NodeReleased" })},
		"a second release covers both":                                {after(releasedA, reports("Reboot", lostA, lostB), decide, pardoned, decide, lasts(time.Hour)), holds.but(func(o *outcome) { o.Said = again })},
		"and what the first one covered": {after(append(release(says("FanFailing", "True", "x")), says("GPUXidError", "True", lost), decide, pardoned, decide), lasts(time.Hour)),
			holds.but(func(o *outcome) { o.Said = again })},
		"a condition of others holds whatever it says": {after(release(says("FanFailing", "True", "x")), says("FanFailing", "True", "y")), holds.but(func(o *outcome) { o.Repair = "Inspect" })},
	})
}

// The record, the Event and so what `kubectl pitcrew` shows name the new fault alone.
func TestANewFaultIsNamedAlone(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{gpu("Reboot " + lostA), decide, pardoned, decide, gpu("Reboot " + lostA + "; " + lostB), decide} {
		s(w)
	}
	if got := w.record().Causes[0].Message; got != "Reboot "+lostB {
		t.Errorf("cause %q", got)
	}
	if got := w.last.Events[0].Message; !strings.Contains(got, "Reboot "+lostB) || strings.Contains(got, lostA) {
		t.Errorf("Event %q", got)
	}
}

// Whoever forges a record hides no worse fault by it, and breaks nothing.
func TestAForgedReleaseCoversNoWorseFault(t *testing.T) {
	for _, message := range []string{"", ";", "Reboot", "ResetGPU " + lostA + "; +99999999 more", strings.Repeat("ü", 300)} {
		w := newWorld(t)
		for _, s := range []step{gpu(ecc), decide, pardoned, forges(func(r *Record) { r.Causes[0].Message = message }), decide, gpu("Reboot " + lostA), decide} {
			s(w)
		}
		if r := w.record(); r.Phase != Quarantined || r.Causes[0].Repair != conditions.Reboot {
			t.Errorf("%q: %s", message, r)
		}
	}
}

func FuzzNewFaults(f *testing.F) {
	f.Add("Reboot "+lostA, "Reboot "+lostA+"; "+lostB)
	f.Add("Reboot "+lostA+"; +2 more", "Inspect "+lostB)
	f.Fuzz(func(t *testing.T, released, message string) {
		q := &Quarantine{Causes: []Cause{{Condition: conditions.GPUXidError, Message: released}}}
		c := corev1.NodeCondition{Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: message}
		found := q.newFaults(c)
		if found == "" {
			return
		}
		m, err := conditions.ParseMessage(found)
		if err != nil || len(found) > len(message) || released == message {
			t.Errorf("released %q, now %q: new %q: %v", released, message, found, err)
		}
		if all, _ := conditions.ParseMessage(message); all.Repair != m.Repair {
			t.Errorf("class %s of %q", m.Repair, message)
		}
	})
}
