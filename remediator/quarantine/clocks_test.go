package quarantine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
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
	suspect := outcome{Phase: Suspect, Status: "suspect", Repair: "Replace"}
	standing := quarantined.but(func(o *outcome) { o.Repair = "ResetGPU" })
	disk := outcome{Phase: Quarantined, Taints: diskTaint, Status: "quarantined", Repair: "Replace", Said: "NodeQuarantined"}
	checkOutcomes(t, map[string]outcomeTest{
		"a fault between two decisions restarts clearAfter": {[]step{gpu(ecc), decide, gpuFine, decide, passes(9 * time.Minute), unseen(gpu(ecc), gpuFine),
			passes(time.Minute), decide, lasts(8 * time.Minute)}, standing},
		"and then the node is released": {[]step{gpu(ecc), decide, gpuFine, decide, passes(9 * time.Minute), unseen(gpu(ecc), gpuFine),
			passes(time.Minute), decide, lasts(9 * time.Minute)}, released},
		"a fault during a pause does": {[]step{gpu(ecc), decide, gpuFine, decide, pauses("x"), decide, passes(9 * time.Minute), gpu(ecc), decide, gpuFine, decide,
			passes(time.Minute), pauses(""), decide}, standing},
		"after a manual release, too": {[]step{gpu(ecc), decide, pardoned, gpuFine, decide, passes(9 * time.Minute), unseen(gpu(ecc), gpuFine), passes(time.Minute), decide},
			outcome{Phase: Released, By: ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined"}},
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
