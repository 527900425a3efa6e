package quarantine

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// since sets the lastTransitionTime of a condition to a time from now.
func since(condition string, fromNow time.Duration) step {
	return stamped(condition, func(w *world, c *corev1.NodeCondition) { c.LastTransitionTime = metav1.NewTime(w.now.Add(fromNow)) })
}

// heartbeat sets the heartbeat of a condition to a time from now.
func heartbeat(condition string, fromNow time.Duration) step {
	return stamped(condition, func(w *world, c *corev1.NodeCondition) { c.LastHeartbeatTime = metav1.NewTime(w.now.Add(fromNow)) })
}

func stamped(condition string, stamp func(*world, *corev1.NodeCondition)) step {
	return func(w *world) {
		for i := range w.node.Status.Conditions {
			if c := &w.node.Status.Conditions[i]; string(c.Type) == condition {
				stamp(w, c)
				return
			}
		}
		w.t.Fatalf("the node has no condition %s", condition)
	}
}

// unseen has things happen that the remediator does not see.
func unseen(steps ...step) step {
	return func(w *world) {
		for _, s := range steps {
			s(w)
			passes(time.Millisecond)(w)
		}
	}
}

// checkOutcomes runs the steps of each test and compares what is left in the end.
func checkOutcomes(t *testing.T, tests map[string]outcomeTest) {
	t.Helper()
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			for _, s := range test.steps {
				s(w)
			}
			got := w.outcome()
			if test.want.Requeue == 0 {
				got.Requeue = 0
			}
			if got != test.want {
				t.Errorf("got  %+v\nwant %+v\nrecord %s", got, test.want, w.node.Annotations[conditions.AnnotationQuarantine])
			}
		})
	}
}

type outcomeTest struct {
	steps []step
	want  outcome
}

// Attack 5: what changed between two decisions restarts the timers of `for` and clearAfter.
func TestATransitionThatWasNotSeenRestartsTheTimers(t *testing.T) {
	ill, fine := says("DiskFailing", "True", "x"), says("DiskFailing", "False", "")
	suspect := outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace"}
	standing := quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })
	disk := outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}
	checkOutcomes(t, map[string]outcomeTest{
		"a fault between two decisions restarts clearAfter": {[]step{gpu(ecc), decide, gpuFine, decide, passes(9 * time.Minute), unseen(gpu(ecc), gpuFine),
			passes(time.Minute), decide, lasts(8 * time.Minute)}, standing},
		"and then the node is released": {[]step{gpu(ecc), decide, gpuFine, decide, passes(9 * time.Minute), unseen(gpu(ecc), gpuFine),
			passes(time.Minute), decide, lasts(9 * time.Minute)}, released},
		"a fault during a pause does": {[]step{gpu(ecc), decide, gpuFine, decide, pauses("x"), decide, passes(9 * time.Minute), gpu(ecc), decide, gpuFine, decide,
			passes(time.Minute), pauses(""), decide}, standing},
		"after a manual release, too": {[]step{gpu(ecc), decide, pardoned, gpuFine, decide, passes(9 * time.Minute), unseen(gpu(ecc), gpuFine), passes(time.Minute), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined"}},
		"health between two decisions restarts for": {[]step{ill, decide, passes(50 * time.Second), unseen(fine, ill), passes(50 * time.Second), decide}, suspect},
		"and then the node is quarantined":          {[]step{ill, decide, passes(50 * time.Second), unseen(fine, ill), passes(50 * time.Second), decide, lasts(10 * time.Second)}, disk},
		"health during an outage of hours does": {[]step{ill, decide, passes(5 * time.Hour), unseen(fine), passes(time.Hour), ill, decide, passes(59 * time.Second), decide},
			suspect.but(func(o *outcome) { o.Requeue = time.Second })},
		"a fault that the budget held back does not stay due": {[]step{others(1), ill, decide, lasts(2 * time.Minute), unseen(fine, ill), others(0), decide},
			suspect.but(func(o *outcome) { o.Said = "blocked:budget" })},
		"a worse fault during a quarantine waits again": {[]step{gpu(ecc), ill, decide, passes(50 * time.Second), unseen(fine, ill), passes(50 * time.Second), decide},
			quarantined.but(func(o *outcome) { o.Repair = "Replace" })},
		"an earlier transition shortens no clearAfter": {[]step{gpu(ecc), decide, gpuFine, since("GPUXidError", -time.Hour), decide, passes(10*time.Minute - time.Second), decide},
			standing.but(func(o *outcome) { o.Requeue = time.Second })},
		"an earlier transition shortens no for": {[]step{ill, since("DiskFailing", -time.Hour), decide, passes(59 * time.Second), decide},
			suspect.but(func(o *outcome) { o.Requeue = time.Second })},
		"a transition to come keeps no node out of service":    {[]step{gpu(ecc), decide, gpuFine, since("GPUXidError", 365*24*time.Hour), decide, lasts(10 * time.Minute)}, released},
		"a transition to come keeps no faulty node in service": {[]step{ill, since("DiskFailing", 365*24*time.Hour), decide, lasts(time.Minute)}, disk},
	})
}

const future = 3 * time.Hour

// seenBoot sets the time at which the remediator saw the node's boot to a time from now.
func seenBoot(fromNow time.Duration) step {
	return func(w *world) {
		w.t.Helper()
		r := w.record()
		r.Boot.Seen = w.now.Add(fromNow)
		Overlay(w.node, r)
	}
}

// Attack 10: a clock that was ahead once makes no node deaf.
func TestABootSeenInTheFutureIsTakenForSeenNow(t *testing.T) {
	disk := says("DiskFailing", "True", "x")
	checkOutcomes(t, map[string]outcomeTest{
		"the next heartbeat quarantines": {[]step{disk, decide, seenBoot(future), passes(time.Second), decide, passes(time.Minute), beats, decide},
			outcome{Phase: causes.Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}},
		"the next heartbeats release": {[]step{gpu(ecc), decide, seenBoot(100 * 365 * 24 * time.Hour), passes(time.Second), decide, passes(time.Minute), gpuFine, decide, lasts(10 * time.Minute)},
			released},
		"two minutes are no more than a skew": {[]step{disk, decide, seenBoot(conditions.MaxClockSkew), passes(time.Minute), beats, decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace", Requeue: time.Minute}},
		"a node that will be Ready is Ready": {[]step{says("Ready", "True", ""), since("Ready", future), passes(time.Second), gpu(lost), decide}, quarantined},
	})
	w := newWorld(t)
	for _, s := range []step{disk, decide, seenBoot(future), passes(time.Second), decide} {
		s(w)
	}
	if got := w.record().Boot.Seen; !got.Equal(w.now) {
		t.Errorf("the record says that the boot was seen at %s, it is %s", got, w.now)
	}
}

// Attack 12: a heartbeat from the future is no current one.
func TestAHeartbeatFromTheFutureIsNotCurrent(t *testing.T) {
	checkOutcomes(t, map[string]outcomeTest{
		"it quarantines no node, and it is said": {[]step{gpu(lost), heartbeat("GPUXidError", future), decide},
			untouched.but(func(o *outcome) { o.Said, o.Requeue = "blocked:stale", time.Minute })},
		"it releases no node": {[]step{gpu(ecc), decide, gpuFine, heartbeat("GPUXidError", 24*time.Hour), decide, starves(time.Hour)},
			quarantined.but(func(o *outcome) { o.Repair, o.Said = "ResetGPU", "NodeQuarantined blocked:stale" })},
		"a skew of two minutes is tolerated": {[]step{gpu(lost), heartbeat("GPUXidError", conditions.MaxClockSkew), decide}, quarantined},
		"and no more":                        {[]step{gpu(lost), heartbeat("GPUXidError", conditions.MaxClockSkew+time.Second), decide}, untouched.but(func(o *outcome) { o.Said = "blocked:stale" })},
		"one that needs no heartbeat is not exempt": {[]step{says("NT_NPU_CARD_LOSE", "True", "x"), heartbeat("NT_NPU_CARD_LOSE", future), decide},
			untouched.but(func(o *outcome) { o.Requeue = time.Minute })},
		"a current one beside it decides": {[]step{gpuFine, heartbeat("GPUXidError", future), says("FanFailing", "False", ""), decide}, untouched},
		"once the clock is right it counts again": {[]step{gpu(lost), heartbeat("GPUXidError", future), decide, passes(time.Minute), beats, decide},
			quarantined.but(func(o *outcome) { o.Said = "blocked:stale NodeQuarantined" })},
	})
	w := newWorld(t)
	for _, s := range []step{gpu(lost), heartbeat("GPUXidError", future), decide} {
		s(w)
	}
	const want = "the newest heartbeat of GPUXidError is 3h in the future, so nothing is decided about the node; is its clock right?"
	if b := w.last.Blocked; b == nil || b.Message != want {
		t.Errorf("blocked %+v, want %q", b, want)
	}
	now := causes.Assess(w.policy, w.node, nil, nil, &causes.Schedule{Now: w.now})
	if checks := now.Checks(); len(checks) != 1 || checks[0].Outcome != handoff.Skip {
		t.Errorf("checks %+v", checks)
	}
}

// Attack 22: a time that JSON cannot express is no reason to panic, whoever wrote it.
func TestARecordThatCannotBeEncodedIsRefused(t *testing.T) {
	r := full()
	r.Boot.Seen = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
	if got, err := causes.ParseRecord(r.String()); err == nil {
		t.Errorf("%s is read as %+v", r, got)
	}
	text := strings.Replace(full().String(), `"effect":"NoSchedule"}]`, `"effect":"NoSchedule","timeAdded":"9999-12-31T23:59:59-23:59"}]`, 1)
	if got, err := causes.ParseRecord(text); err == nil {
		t.Errorf("%s is read as %+v", text, got)
	}
}
