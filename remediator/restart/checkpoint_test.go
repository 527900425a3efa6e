package restart

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestNextCheckpointing(t *testing.T) {
	const by = "2026-11-20T12:02:00Z"
	annotated := func(key, value string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Annotations = map[string]string{key: value} }
	}
	released := func(f *Facts) { f.Affected = nil }
	paused := func(f *Facts) { f.Held = true }
	tests := map[string]struct {
		change  func(*batchv1.Job)
		facts   func(*Facts)
		retries bool // its retries are used up
		busy    bool
		passed  time.Duration
		want    Step
	}{
		"its own controller is restarting it": {busy: true, passed: time.Hour, want: Step{Action: Wait, After: 2 * time.Second}},
		"its last retry is all that is left": {retries: true, passed: time.Hour,
			want: Step{Action: Close, Phase: Failed, Result: "MaxRetry", Outcome: "not stopped after all: its retryCount is 2", Blocked: true}},
		"the same, and it has time": {retries: true, want: Step{Action: Wait, After: 2 * time.Second}},
		"it has time":               {want: Step{Action: Wait, After: 2 * time.Second}},
		"it has a second":           {passed: 119 * time.Second, want: Step{Action: Wait, After: time.Second}},
		"its time is over":          {passed: 2 * time.Minute, want: Step{Action: Stop, After: 200 * time.Millisecond}},
		"it has saved":              {change: annotated(conditions.AnnotationCheckpointed, by), want: Step{Action: Stop, After: 200 * time.Millisecond}},
		"it saved last time":        {change: annotated(conditions.AnnotationCheckpointed, "2026-11-19T12:02:00Z"), want: Step{Action: Wait, After: 2 * time.Second}},
		"the node is well again":    {facts: released, passed: time.Hour, want: Step{Action: Close, Phase: Done, Result: "Withdrawn", Outcome: "no rank is on a quarantined node any more; the job was not stopped"}},
		"everything is paused":      {facts: paused, passed: time.Hour, want: Step{Action: Wait, After: 2 * time.Second}},
		"somebody aborts it": {change: annotated(conditions.AnnotationAbortRestart, ""), passed: time.Hour,
			want: Step{Action: Close, Phase: Failed, Result: "Aborted", Outcome: "aborted by annotation pitcrew.dev/abort-restart before the job was stopped"}},
		"somebody aborts it while everything is paused": {change: annotated(conditions.AnnotationAbortRestart, ""), facts: paused,
			want: Step{Action: Close, Phase: Failed, Result: "Aborted", Outcome: "aborted by annotation pitcrew.dev/abort-restart before the job was stopped"}},
		"somebody suspended it": {change: func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }, passed: time.Hour,
			want: Step{Action: Close, Phase: Failed, Result: "Abandoned", Outcome: "another user or controller stopped the job while it was saving its state"}},
		"it completed": {change: func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		}, passed: time.Hour, want: Step{Action: Close, Phase: Done, Result: "Withdrawn", Outcome: "the job ended while it was saving its state"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			job := trainer()
			if test.change != nil {
				test.change(job)
			}
			cur := Restart{Phase: Checkpointing, CheckpointBy: noon.Add(2 * time.Minute), Quarantines: []Cause{CauseOf(quarantine)}}
			j := jobOf(job)
			j.ReplacingPods = test.busy
			if test.retries {
				j.Unsupported = Blocked{"MaxRetry", "its retryCount is 2"}
			}
			facts := Facts{Affected: []corev1.Pod{rank(corev1.PodSpec{}, noon)}}
			if test.facts != nil {
				test.facts(&facts)
			}
			got := Next(Record{Current: &cur}, j, facts, testTimeouts, noon.Add(test.passed))
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPreconditionsThatFailMeanwhile(t *testing.T) {
	other := corev1.Taint{Key: "example.com/other", Effect: corev1.TaintEffectNoSchedule}
	cur := Restart{Quarantines: []Cause{{Node: "bad", Taint: quarantine.Taint}, {Node: "worse", Taint: other}}}
	job := trainer()
	if failed, found := blockedMeanwhile(cur, jobOf(job), nil); found {
		t.Errorf("blocked: %v", failed)
	}
	job.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: other.Key, Operator: corev1.TolerationOpExists}}
	if failed, _ := blockedMeanwhile(cur, jobOf(job), nil); failed.Reason != "ComesBack" {
		t.Errorf("blocked: %v", failed)
	}
}

func TestARestartThatAPersonAbortsBeforeItBegins(t *testing.T) {
	rec := Record{}.With(quarantine, 0, noon)
	if s, requested := AbortedEarly(rec, jobOf(trainer()), noon); requested {
		t.Errorf("nobody asked: %+v", s)
	}
	job := trainer(func(j *batchv1.Job) { j.Annotations = map[string]string{conditions.AnnotationAbortRestart: ""} })
	s, requested := AbortedEarly(rec, jobOf(job), noon)
	want := Step{Action: Close, Phase: Failed, Result: ResultAborted, Outcome: "aborted by annotation pitcrew.dev/abort-restart before the job was stopped"}
	if diff := cmp.Diff(want, s); diff != "" || !requested {
		t.Errorf("requested %t: %s", requested, diff)
	}
	if closed := rec.Closed(s, noon); closed.Current != nil || len(closed.Last) != 1 || closed.Total != 0 {
		t.Errorf("record %+v", closed)
	}
}
