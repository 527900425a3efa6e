package quarantine

import (
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

const (
	lostA   = "gpu 0000:1b:00: Xid 79 GPU has fallen off the bus"
	lostB   = "gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	resetB  = "gpu 0000:4e:00: Xid 95 uncontained ECC error"
	otherA  = "gpu 0000:1b:00: Xid 48 double-bit ECC error"
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
	holds := outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined"}
	over := outcome{Phase: causes.Released, By: causes.ByPerson, Status: "healthy", Said: "NodeQuarantined"}
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
		"within the budget": {after(releasedA, others(1), reports("Reboot", lostA, lostB)), outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Reboot", Said: "NodeQuarantined blocked:budget"}},
		"a new fault that goes before anything was done is forgotten": {after(releasedA, others(1), reports("Reboot", lostA, lostB), decide, reports("Reboot", lostA)), holds.but(func(o *outcome) { o.Said += " blocked:budget" })},
		"once the new one is repaired, the release covers the rest":   {after(after(releasedA, bothGone...)), holds.but(func(o *outcome) { o.Said = again + " NodeReleased" })},
		"for as long as that stands":                                  {after(after(releasedA, bothGone...), gpuFine, decide, lasts(11*time.Minute)), over.but(func(o *outcome) { o.Said = again + " NodeReleased" })},
		"a second release covers both":                                {after(releasedA, reports("Reboot", lostA, lostB), decide, pardoned, decide, lasts(time.Hour)), holds.but(func(o *outcome) { o.Said = again })},
		"and what the first one covered": {after(append(release(says("FanFailing", "True", "x")), says("GPUXidError", "True", lost), decide, pardoned, decide), lasts(time.Hour)),
			holds.but(func(o *outcome) { o.Said = again })},
		"a third release covers a code that went and came again": {after(release(reports("ResetGPU", resetA)), reports("ResetGPU", otherA), decide, pardoned, decide, lasts(time.Hour), reports("ResetGPU", resetA)),
			holds.but(func(o *outcome) { o.Said, o.Repair = again, "ResetGPU" })},
		"and a worse one that the first release covered": {after(releasedA, reports("ResetGPU", resetB), decide, pardoned, decide, lasts(time.Hour), reports("Reboot", lostA)),
			holds.but(func(o *outcome) { o.Said = again })},
		"but no worse class of what the second one covered": {after(releasedA, reports("ResetGPU", resetB), decide, pardoned, decide, lasts(time.Hour), reports("Reboot", lostB)),
			anew.but(func(o *outcome) { o.Said += " NodeQuarantined" })},
		"the catalogue's new words for a code are no new code": {after(releasedA, reports("Reboot", "gpu 0000:1b:00: Xid 79 lost")), holds},
		"a condition of others holds whatever it says":         {after(release(says("FanFailing", "True", "x")), says("FanFailing", "True", "y")), holds.but(func(o *outcome) { o.Repair = "Inspect" })},
	})
}

// A text that is a state, and no code, changes while the fault lasts.
func TestAnotherStateOfAReleasedSubjectIsNoNewFault(t *testing.T) {
	const few, more = "Reboot gpu count: 6 of 8 GPUs on the PCI bus", "Reboot gpu count: 7 of 8 GPUs on the PCI bus"
	tests := map[string]struct {
		condition, released, now string
		want                     causes.Phase
		besides                  step
	}{
		"one GPU is back":   {conditions.GPUCountMismatch, few, more, causes.Released, nil},
		"one more is gone":  {conditions.GPUCountMismatch, more, few, causes.Released, nil},
		"the port wakes up": {conditions.HCAPortDown, "Inspect hca mlx5_0 port 1: state DOWN", "Inspect hca mlx5_0 port 1: state INIT", causes.Released, nil},
		"another port":      {conditions.HCAPortDown, "Inspect hca mlx5_0 port 1: state DOWN", "Inspect hca mlx5_1 port 1: state DOWN", causes.Quarantined, nil},
		"a worse class":     {conditions.GPUCountMismatch, few, "Replace gpu count: 6 of 8 GPUs on the PCI bus, also after a reboot", causes.Quarantined, nil},
		"a worse class, beside a worst fault that was released": {conditions.GPUCountMismatch, "Inspect gpu count: 9 GPUs on the PCI bus, expected 8", few, causes.Quarantined, gpu("Reboot " + lostA)},
		"a milder one":            {conditions.GPUCountMismatch, few, "Inspect gpu count: 9 GPUs on the PCI bus, expected 8", causes.Released, nil},
		"another GPU":             {conditions.GPUCountMismatch, few, "Reboot gpu 0000:1b:00: has no driver; gpu count: 6 of 8 GPUs on the PCI bus", causes.Quarantined, nil},
		"another code of a GPU":   {conditions.GPUXidError, "Reboot " + lostA, "Reboot " + timeout, causes.Quarantined, nil},
		"another code of DCGM":    {conditions.DCGMDiagFailed, "Inspect dcgm gpu 0: diag test memory failed", "Inspect dcgm gpu 0: diag test pcie failed", causes.Quarantined, nil},
		"another hardware error":  {conditions.KernelHardwareError, "Inspect pci 0000:1b:00.0: AER", "Inspect pci 0000:1b:00.0: DPC", causes.Quarantined, nil},
		"another of a pod's logs": {conditions.WorkloadGPUError, "Inspect pod a/b: uncorrectable ECC error", "Inspect pod a/b: GPU is lost", causes.Quarantined, nil},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if test.besides == nil {
				test.besides = beats
			}
			if test.condition != conditions.GPUXidError {
				p, err := policy.Parse([]byte(testPolicy + "    tested: {match: {condition: " + test.condition + ", repair: [Inspect, Reboot, Replace]}}\n"))
				if err != nil {
					t.Fatal(err)
				}
				w.policy = p
			}
			for _, s := range []step{test.besides, says(test.condition, "True", test.released), decide, pardoned, decide, says(test.condition, "True", test.now), decide} {
				s(w)
			}
			if r := w.record(); r.Phase != test.want {
				t.Errorf("phase %s, want %s: %s", r.Phase, test.want, r)
			}
		})
	}
}

// A version that did not keep what a release covers has written the record. Its message is that of when the class was first seen.
func TestAReleaseOfAnEarlierVersionCoversWhatStandsNow(t *testing.T) {
	both := gpu("Reboot " + lostA + "; " + lostB)
	earlier := forges(func(r *causes.Record) {
		r.Causes = slices.Clone(r.Causes)
		r.Causes[0].Message, r.Causes[0].Covered = "Reboot "+lostA, nil
	})
	released := []step{gpu("Reboot " + lostA), decide, both, decide, pardoned, decide, earlier}
	tests := map[string]struct {
		steps []step
		want  causes.Phase
	}{
		"all that stands":                       {[]step{decide}, causes.Released},
		"also when it was not known at first":   {[]step{says("GPUXidError", "Unknown", ""), decide, both, decide}, causes.Released},
		"a fault after the first look counts":   {[]step{decide, gpu("Reboot " + lostA + "; " + lostB + "; gpu 0000:5c:00: Xid 79 lost"), decide}, causes.Quarantined},
		"and one after a look at a healthy one": {[]step{gpuFine, decide, gpu("Reboot " + lostB), decide}, causes.Quarantined},
		"while a worse fault has the node":      {[]step{says("FanFailing", "True", "x"), decide, gpu("Reboot " + lostA), decide}, causes.Released},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range append(slices.Clone(released), test.steps...) {
				s(w)
			}
			if r := w.record(); r.Phase != test.want {
				t.Errorf("phase %s, want %s: %s", r.Phase, test.want, r)
			}
		})
	}
}

// A release ends with its faults, whatever else has the node out of service by then.
func TestAManualReleaseEndsWhileAnotherFaultStands(t *testing.T) {
	fan, noFan := says("FanFailing", "True", "x"), says("FanFailing", "False", "")
	released := []step{fan, gpuFine, decide, pardoned, decide, lasts(time.Minute)}
	quarantinedToo := append(slices.Clone(released), gpu(lost), decide, lasts(time.Minute))
	repaired := []step{reboots, gpuFine, decide, lasts(20 * time.Minute)}
	anew := []step{says("FanFailing", "True", "anew"), decide, lasts(time.Hour)}
	tests := map[string]struct {
		steps []step
		want  causes.Phase
		hold  bool
		block string
	}{
		"it cleared, and comes again after the repair": {slices.Concat(quarantinedToo, []step{noFan, decide, lasts(5 * time.Hour)}, repaired, anew), causes.Quarantined, false, ""},
		"it comes again before the repair":             {slices.Concat(quarantinedToo, []step{noFan, decide, lasts(5 * time.Hour)}, anew, repaired), causes.Quarantined, false, ""},
		"it was not gone for long enough":              {slices.Concat(quarantinedToo, []step{noFan, decide, lasts(20 * time.Minute)}, anew, repaired), causes.Released, true, ""},
		"it stood":                                     {slices.Concat(quarantinedToo, []step{lasts(5 * time.Hour)}, repaired), causes.Released, true, ""},
		"one of two that a second release covers is blocked once it was gone": {slices.Concat(quarantinedToo, []step{pardoned, decide, noFan, decide, lasts(5 * time.Hour)}, anew), causes.Released, true, causes.BlockedByManualRelease},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			blocked := ""
			if w.last.Blocked != nil {
				blocked = w.last.Blocked.Reason
			}
			if r := w.record(); r.Phase != test.want || r.ManualReleaseActive != test.hold || blocked != test.block {
				t.Errorf("phase %s, hold %v, blocked %q: %s", r.Phase, r.ManualReleaseActive, blocked, r)
			}
		})
	}
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
		for _, s := range []step{gpu(ecc), decide, pardoned, forges(func(r *causes.Record) { r.Causes[0].Message, r.Causes[0].Covered = message, []string{message} }), decide, gpu("Reboot " + lostA), decide} {
			s(w)
		}
		if r := w.record(); r.Phase != causes.Quarantined || r.Causes[0].Repair != conditions.Reboot {
			t.Errorf("%q: %s", message, r)
		}
	}
}

func FuzzNewFaults(f *testing.F) {
	f.Add("Reboot "+lostA, "Reboot "+lostA+"; "+lostB)
	f.Add("Reboot "+lostA+"; +2 more", "Inspect "+lostB)
	f.Fuzz(func(t *testing.T, released, message string) {
		q := &causes.Quarantine{Causes: []causes.Cause{{Condition: conditions.GPUXidError, Covered: []string{released}}}}
		c := corev1.NodeCondition{Type: conditions.GPUXidError, Status: corev1.ConditionTrue, Message: message}
		found := q.NewFaults(c)
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
