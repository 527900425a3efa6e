package jobs

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

var (
	noon       = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	testLimits = limits{stop: 10 * time.Minute, start: 15 * time.Minute}
)

func TestNext(t *testing.T) {
	soon := 200 * time.Millisecond
	aborting := trainer(func(j *batchv1.Job) { j.Annotations = map[string]string{"pitcrew.dev/abort-restart": ""} })
	tests := map[string]struct {
		phase  phase
		view   view
		pods   podCount
		passed time.Duration
		want   step
	}{
		"stopping, the controllers have not acted and no pod is left": {
			stopping, view{suspended: true}, podCount{}, 0, step{do: await, after: soon},
		},
		"stopping, one old pod is left": {
			stopping, view{suspended: true, stopSeen: true}, podCount{left: 1}, 10 * time.Second, step{do: await, after: time.Second},
		},
		"stopping, every old pod is gone": {
			stopping, view{suspended: true, stopSeen: true}, podCount{}, 2 * time.Second, step{do: resume},
		},
		"stopping, a pod is left at the limit": {
			stopping, view{suspended: true, stopSeen: true}, podCount{left: 1}, 10 * time.Minute, step{do: hold, after: 2 * time.Second},
		},
		"stopping, the controllers have not acted at the limit": {
			stopping, view{suspended: true}, podCount{}, 10 * time.Minute, step{do: hold, after: 2 * time.Second},
		},
		"stopping, the last pod goes long after the limit": {
			stopping, view{suspended: true, stopSeen: true}, podCount{}, 3 * time.Hour, step{do: resume},
		},
		"stopping, somebody resumed the job": {
			stopping, view{suspended: false, stopSeen: true}, podCount{left: 4}, time.Second,
			step{do: end, phase: failed, result: "Abandoned", outcome: "somebody set spec.suspend to false while the job was being stopped; it is left as it is"},
		},
		"stopping, somebody aborts it while the old pods end": {
			stopping, view{suspended: true, stopSeen: true, object: aborting}, podCount{left: 4}, 10 * time.Second, step{do: await, after: time.Second},
		},
		"stopping, somebody aborts it when they should have ended": {
			stopping, view{suspended: true, stopSeen: true, object: aborting}, podCount{left: 1}, 10 * time.Minute, step{do: resume},
		},
		"stopping, somebody aborts it, whom an old pod would fail": {
			stopping, view{suspended: true, stopSeen: true, lateStart: true, object: aborting}, podCount{left: 1}, 10 * time.Second, step{do: await, after: time.Second},
		},
		"stopping, the same at the limit": {
			stopping, view{suspended: true, stopSeen: true, lateStart: true, object: aborting}, podCount{left: 1}, 10 * time.Minute, step{do: hold, after: 2 * time.Second},
		},
		"stopping, the same once every old pod is gone": {
			stopping, view{suspended: true, stopSeen: true, lateStart: true, object: aborting}, podCount{}, time.Second, step{do: resume},
		},
		"starting, somebody aborts it": {
			starting, view{ranks: 4, object: aborting}, podCount{running: 4}, time.Second,
			step{do: end, phase: failed, result: "Aborted", outcome: "aborted by annotation pitcrew.dev/abort-restart; the job was started again and is left alone"},
		},
		"stopping, somebody aborts it and resumes the job": {
			stopping, view{object: aborting}, podCount{left: 4}, time.Second,
			step{do: end, phase: failed, result: "Abandoned", outcome: "somebody set spec.suspend to false while the job was being stopped; it is left as it is"},
		},
		"stopping, the job failed": {
			stopping, view{suspended: true, ended: "Failed"}, podCount{left: 4}, time.Second,
			step{do: end, phase: failed, result: "JobFailed", outcome: "the job failed while it was being stopped"},
		},
		"stopping, the job completed": {
			stopping, view{suspended: true, ended: "Complete"}, podCount{}, time.Second,
			step{do: end, phase: done, result: "JobCompleted", outcome: "the job completed while it was being stopped"},
		},
		"starting, three of four ranks run": {
			starting, view{ranks: 4}, podCount{running: 3}, time.Second, step{do: await, after: soon},
		},
		"starting, all ranks run": {
			starting, view{ranks: 4}, podCount{running: 4}, time.Second,
			step{do: end, phase: done, result: "Restarted", outcome: "all 4 ranks run again"},
		},
		"starting, all ranks run at last, long after the limit": {
			starting, view{ranks: 4}, podCount{running: 4}, time.Hour,
			step{do: end, phase: done, result: "Restarted", outcome: "all 4 ranks run again"},
		},
		"starting, a rank is missing at the limit": {
			starting, view{ranks: 4}, podCount{running: 3}, 15 * time.Minute,
			step{do: end, phase: failed, result: "StartTimeout", outcome: "3 of 4 ranks run 15m0s after the job was resumed"},
		},
		"starting, somebody suspended the job": {
			starting, view{ranks: 4, suspended: true, stopSeen: true}, podCount{}, time.Second,
			step{do: end, phase: failed, result: "Abandoned", outcome: "somebody set spec.suspend to true while the job was starting again; it is left as it is"},
		},
		"starting, the job completed": {
			starting, view{ranks: 4, ended: "Completed"}, podCount{}, time.Second,
			step{do: end, phase: done, result: "JobCompleted", outcome: "the job completed while it was starting again"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cur := restart{Phase: test.phase, PhaseSince: noon}
			test.view.toggle = suspend
			if test.view.object == nil {
				test.view.object = trainer()
			}
			got := next(cur, test.view, test.pods, noon.Add(test.passed), testLimits)
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(step{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheAbortOfAReplacementWaitsForNobody(t *testing.T) {
	aborting := trainer(func(j *batchv1.Job) { j.Annotations = map[string]string{"pitcrew.dev/abort-restart": ""} })
	got := next(restart{Phase: stopping, PhaseSince: noon}, view{object: aborting}, podCount{left: 1}, noon, testLimits)
	if diff := cmp.Diff(step{do: resume}, got, cmp.AllowUnexported(step{})); diff != "" {
		t.Error(diff)
	}
}

// A toggle of another object cannot move in the write of the record, so that it may be behind.
func TestTheToggleOfAnotherObject(t *testing.T) {
	tests := map[string]struct {
		phase           phase
		step            string // what the object bears
		stopped         bool
		due, overridden bool
	}{
		"to be stopped":                       {stopping, "", false, true, false},
		"to be stopped, started by a restart": {stopping, "r0 Starting", false, true, false},
		"stopped by us":                       {stopping, "r1 Stopping", true, false, false},
		"stopped by a person before us":       {stopping, "", true, false, true},
		"started by a person since":           {stopping, "r1 Stopping", false, false, true},
		"to be started":                       {starting, "r1 Stopping", true, true, false},
		"started by us":                       {starting, "r1 Starting", false, false, false},
		"started by a person before us":       {starting, "r1 Stopping", false, false, false},
		"stopped by a person since":           {starting, "r1 Starting", true, false, true},
		"stopped by somebody else":            {starting, "", true, false, true},
		"stopped by another restart":          {starting, "r0 Stopping", true, false, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			on := &unstructured.Unstructured{}
			on.SetAnnotations(map[string]string{"pitcrew.dev/restart-step": test.step})
			v := view{toggle: toggle{path: "spec.active", on: on}, suspended: test.stopped}
			cur := restart{ID: "r1", Phase: test.phase}
			if due, overridden := v.due(cur), v.overridden(cur); due != test.due || overridden != test.overridden {
				t.Errorf("due %t, overridden %t, want %t, %t", due, overridden, test.due, test.overridden)
			}
		})
	}
}

func TestDeletedSince(t *testing.T) {
	stop := restart{PhaseSince: noon.Add(700 * time.Millisecond)}
	tests := map[string]struct {
		deletion time.Duration // when the grace period ends, after noon
		grace    int64
		want     bool
	}{
		"before the stop":           {29 * time.Second, 30, false},
		"in the second of the stop": {30 * time.Second, 30, true},
		"after the stop":            {35 * time.Second, 30, true},
		"at once":                   {time.Second, 0, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
				DeletionTimestamp: &metav1.Time{Time: noon.Add(test.deletion)}, DeletionGracePeriodSeconds: &test.grace,
			}}
			if got := stop.deletedSince(pod); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
	if stop.deletedSince(metav1.PartialObjectMetadata{}) {
		t.Error("a pod that is not being deleted")
	}
}
