package restart

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
)

var (
	noon         = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	testTimeouts = PhaseTimeouts{Stop: 10 * time.Minute, Start: 15 * time.Minute}
)

// remaining are the facts of a stop for which so many old pods are waited for.
func remaining(n int) Facts { return Facts{Remaining: make([]metav1.PartialObjectMetadata, n)} }

// listed are the same of a stop after which so many of 512 pods are listed.
func listed(n int) Facts {
	f := remaining(max(n, 1))
	f.Listed = n
	return f
}

func TestTheLongerAStopTakesTheRarerItIsObserved(t *testing.T) {
	silent := Facts{Remaining: remaining(1).Remaining, Unconfirmed: []Unconfirmed{{Pod: deletedPod("x", 30, noon), Waiting: "it waits"}}}
	refused := Facts{Remaining: remaining(1).Remaining, Refused: "a budget refuses it"}
	tests := map[string]struct {
		facts  Facts
		passed time.Duration
		want   Step
	}{
		"it has just begun":                 {remaining(1), 0, Step{Action: Wait, After: 200 * time.Millisecond}},
		"it waits for pods that may end":    {remaining(1), 5 * time.Minute, Step{Action: Wait, After: 2 * time.Second}},
		"none of many pods is gone":         {listed(512), 50 * time.Second, Step{Action: Wait, After: 2 * time.Second}},
		"half of them are":                  {listed(256), 50 * time.Second, Step{Action: Wait, After: 2 * time.Second}},
		"those that are left take a second": {listed(10), 50 * time.Second, Step{Action: Wait, After: 50 * time.Second * 10 / 502}},
		"the last one is about to go":       {listed(1), 50 * time.Second, Step{Action: Wait, After: 200 * time.Millisecond}},
		"the last one does not go":          {listed(1), 30 * time.Minute, Step{Action: Wait, After: 2 * time.Second}},
		"all are, the controllers wait":     {listed(0), 50 * time.Second, Step{Action: Wait, After: 2 * time.Second}},
		"a node is silent from the start":   {silent, time.Second, Step{Action: Hold, After: 200 * time.Millisecond}},
		"a node is silent for a while":      {silent, 50 * time.Second, Step{Action: Hold, After: 5 * time.Second}},
		"a node is silent for days":         {silent, 72 * time.Hour, Step{Action: Hold, After: 10 * time.Second}},
		"an eviction is refused at first":   {refused, time.Second, Step{Action: Hold, After: 200 * time.Millisecond}},
		"an eviction is refused for hours":  {refused, 3 * time.Hour, Step{Action: Hold, After: 10 * time.Second}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			rec := Record{Current: &Restart{Phase: Stopping, PhaseSince: noon, Pods: make([]types.UID, 512)}}
			job := jobOf(trainer())
			job.Suspended, job.SuspendObserved = true, true
			got := Next(rec, job, test.facts, PhaseTimeouts{Stop: time.Hour, Start: time.Hour}, noon.Add(test.passed))
			if got.Action != test.want.Action || got.After != test.want.After {
				t.Errorf("%s after %s, want %s after %s", got.Action, got.After, test.want.Action, test.want.After)
			}
		})
	}
}

func TestNext(t *testing.T) {
	soon := 200 * time.Millisecond
	aborting := trainer(func(j *batchv1.Job) { j.Annotations = map[string]string{"pitcrew.dev/abort-restart": ""} })
	tests := map[string]struct {
		phase  Phase
		job    Job
		facts  Facts
		passed time.Duration
		want   Step
	}{
		"stopping, the controllers have not acted and no pod is left": {
			Stopping, Job{Suspended: true}, Facts{}, 0, Step{Action: Wait, After: soon},
		},
		"stopping, one old pod is left": {
			Stopping, Job{Suspended: true, SuspendObserved: true}, remaining(1), 10 * time.Second, Step{Action: Wait, After: time.Second},
		},
		"stopping, every old pod is gone": {
			Stopping, Job{Suspended: true, SuspendObserved: true}, Facts{}, 2 * time.Second, Step{Action: Start, After: soon},
		},
		"stopping, a pod is left at the limit": {
			Stopping, Job{Suspended: true, SuspendObserved: true}, remaining(1), 10 * time.Minute, Step{Action: Hold, After: 10 * time.Second},
		},
		"stopping, the controllers have not acted at the limit": {
			Stopping, Job{Suspended: true}, Facts{}, 10 * time.Minute, Step{Action: Hold, After: 10 * time.Second},
		},
		"stopping, the last pod goes long after the limit": {
			Stopping, Job{Suspended: true, SuspendObserved: true}, Facts{}, 3 * time.Hour, Step{Action: Start, After: soon},
		},
		"stopping, somebody resumed the job": {
			Stopping, Job{Suspended: false, SuspendObserved: true}, remaining(4), time.Second,
			Step{Action: Close, Phase: Failed, Result: "Abandoned", Outcome: "another user or controller set spec.suspend to false while the job was being stopped; the job is left as it is"},
		},
		"stopping, somebody aborts it while the old pods end": {
			Stopping, Job{Suspended: true, SuspendObserved: true, Object: aborting}, remaining(4), 10 * time.Second, Step{Action: Wait, After: time.Second},
		},
		"stopping, somebody aborts it when they should have ended": {
			Stopping, Job{Suspended: true, SuspendObserved: true, Object: aborting}, remaining(1), 10 * time.Minute, Step{Action: Start, After: soon},
		},
		"stopping, somebody aborts it, whom an old pod would fail": {
			Stopping, Job{Suspended: true, SuspendObserved: true, FailsIfOldPodsRemain: true, Object: aborting}, remaining(1), 10 * time.Second, Step{Action: Wait, After: time.Second},
		},
		"stopping, the same at the limit": {
			Stopping, Job{Suspended: true, SuspendObserved: true, FailsIfOldPodsRemain: true, Object: aborting}, remaining(1), 10 * time.Minute, Step{Action: Hold, After: 10 * time.Second},
		},
		"stopping, the same once every old pod is gone": {
			Stopping, Job{Suspended: true, SuspendObserved: true, FailsIfOldPodsRemain: true, Object: aborting}, Facts{}, time.Second, Step{Action: Start, After: soon},
		},
		"starting, somebody aborts it": {
			Starting, Job{Ranks: 4, Object: aborting}, Facts{Running: 4}, time.Second,
			Step{Action: Close, Phase: Failed, Result: "Aborted", Outcome: "aborted by annotation pitcrew.dev/abort-restart; the job was started again and is left alone"},
		},
		"stopping, somebody aborts it and resumes the job": {
			Stopping, Job{Object: aborting}, remaining(4), time.Second,
			Step{Action: Close, Phase: Failed, Result: "Abandoned", Outcome: "another user or controller set spec.suspend to false while the job was being stopped; the job is left as it is"},
		},
		"stopping, the job failed": {
			Stopping, Job{Suspended: true, FinishedReason: "Failed"}, remaining(4), time.Second,
			Step{Action: Close, Phase: Failed, Result: "JobFailed", Outcome: "the job failed while it was being stopped"},
		},
		"stopping, the job completed": {
			Stopping, Job{Suspended: true, FinishedReason: "Complete"}, Facts{}, time.Second,
			Step{Action: Close, Phase: Done, Result: "JobCompleted", Outcome: "the job completed while it was being stopped"},
		},
		"starting, three of four ranks run": {
			Starting, Job{Ranks: 4}, Facts{Running: 3}, time.Second, Step{Action: Wait, After: soon},
		},
		"starting, all ranks run": {
			Starting, Job{Ranks: 4}, Facts{Running: 4}, time.Second,
			Step{Action: Close, Phase: Done, Result: "Restarted", Outcome: "all ranks running (4/4)"},
		},
		"starting, all ranks run at last, long after the limit": {
			Starting, Job{Ranks: 4}, Facts{Running: 4}, time.Hour,
			Step{Action: Close, Phase: Done, Result: "Restarted", Outcome: "all ranks running (4/4)"},
		},
		"starting, a rank is missing at the limit": {
			Starting, Job{Ranks: 4}, Facts{Running: 3}, 15 * time.Minute,
			Step{Action: Close, Phase: Failed, Result: "StartTimeout", Outcome: "3/4 ranks running 15m0s after the job was started again"},
		},
		"starting, somebody suspended the job": {
			Starting, Job{Ranks: 4, Suspended: true, SuspendObserved: true}, Facts{}, time.Second,
			Step{Action: Close, Phase: Failed, Result: "Abandoned", Outcome: "another user or controller set spec.suspend to true while the job was starting again; the job is left as it is"},
		},
		"starting, the job completed": {
			Starting, Job{Ranks: 4, FinishedReason: "Completed"}, Facts{}, time.Second,
			Step{Action: Close, Phase: Done, Result: "JobCompleted", Outcome: "the job completed while it was starting again"},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			cur := Restart{Phase: test.phase, PhaseSince: noon}
			test.job.SuspendField = suspendField
			if test.job.Object == nil {
				test.job.Object = trainer()
			}
			got := Next(Record{Current: &cur}, test.job, test.facts, testTimeouts, noon.Add(test.passed))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTheAbortOfAReplacementWaitsForNobody(t *testing.T) {
	aborting := trainer(func(j *batchv1.Job) { j.Annotations = map[string]string{"pitcrew.dev/abort-restart": ""} })
	got := Next(Record{Current: &Restart{Phase: Stopping, PhaseSince: noon}}, Job{Object: aborting}, remaining(1), testTimeouts, noon)
	if diff := cmp.Diff(Step{Action: Start, After: 200 * time.Millisecond}, got); diff != "" {
		t.Error(diff)
	}
}

// The suspend field of another object cannot be set in the write of the record, so that it may be behind.
func TestTheSuspendFieldOfAnotherObject(t *testing.T) {
	tests := map[string]struct {
		phase            Phase
		step             string // what the object bears
		stopped          bool
		pending, changed bool
	}{
		"to be stopped":                       {Stopping, "", false, true, false},
		"to be stopped, started by a restart": {Stopping, "r0 Starting", false, true, false},
		"stopped by us":                       {Stopping, "r1 Stopping", true, false, false},
		"stopped by a person before us":       {Stopping, "", true, false, true},
		"started by a person since":           {Stopping, "r1 Stopping", false, false, true},
		"to be started":                       {Starting, "r1 Stopping", true, true, false},
		"started by us":                       {Starting, "r1 Starting", false, false, false},
		"started by a person before us":       {Starting, "r1 Stopping", false, false, false},
		"stopped by a person since":           {Starting, "r1 Starting", true, false, true},
		"stopped by somebody else":            {Starting, "", true, false, true},
		"stopped by another restart":          {Starting, "r0 Stopping", true, false, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			on := &unstructured.Unstructured{}
			on.SetAnnotations(map[string]string{"pitcrew.dev/restart-step": test.step})
			job := Job{SuspendField: SuspendField{Path: "spec.active", Elsewhere: on}, Suspended: test.stopped}
			cur := Restart{ID: "r1", Phase: test.phase}
			if pending, changed := job.pendingElsewhere(cur), job.changedByUser(cur); pending != test.pending || changed != test.changed {
				t.Errorf("pending %t, changed %t, want %t, %t", pending, changed, test.pending, test.changed)
			}
		})
	}
}

func TestDeletedSince(t *testing.T) {
	stop := Restart{PhaseSince: noon.Add(700 * time.Millisecond)}
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
			if got := stop.DeletedSince(&pod); got != test.want {
				t.Errorf("got %t", got)
			}
		})
	}
	if stop.DeletedSince(&metav1.PartialObjectMetadata{}) {
		t.Error("a pod that is not being deleted")
	}
}
