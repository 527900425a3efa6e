package restart

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// pollCheckpoint is how often a job that saves its state is reconciled.
const pollCheckpoint = 2 * time.Second

// nextCheckpointing decides the next step of a restart that has stopped nothing yet. An abort counts while
// everything is paused, too.
func nextCheckpointing(cur Restart, job Job, facts Facts, now time.Time) Step {
	left := cur.CheckpointBy.Sub(now)
	switch {
	case job.FinishedReason != "":
		return Step{Action: Close, Phase: Done, Result: ResultWithdrawn, Outcome: "the job ended while it was " + doing(cur.Phase)}
	case job.abortRequested():
		return Step{Action: Close, Phase: Failed, Result: ResultAborted,
			Outcome: "aborted by annotation " + conditions.AnnotationAbortRestart + " before the job was stopped"}
	case job.Suspended:
		return Step{Action: Close, Phase: Failed, Result: ResultAbandoned,
			Outcome: "another user or controller stopped the job while it was " + doing(cur.Phase)}
	case len(facts.Affected) == 0:
		return Step{Action: Close, Phase: Done, Result: ResultWithdrawn,
			Outcome: "no rank is on a quarantined node any more; the job was not stopped"}
	case facts.Held:
		return Step{Action: Wait, After: pollCheckpoint}
	case left > 0 && job.Object.GetAnnotations()[conditions.AnnotationCheckpointed] != cur.CheckpointDeadline():
		return Step{Action: Wait, After: min(left, pollCheckpoint)}
	case job.ReplacingPods:
		return Step{Action: Wait, After: pollCheckpoint}
	}
	if failed, found := blockedMeanwhile(cur, job, facts.Affected); found {
		return Step{Action: Close, Phase: Failed, Result: failed.Reason, Outcome: "not stopped after all: " + failed.Text, Blocked: true}
	}
	return Step{Action: Stop, After: pollInterval(0)}
}

// AbortedEarly is the step of a restart that a person aborted before it had begun; requested is false if no person did.
func AbortedEarly(rec Record, job Job, now time.Time) (s Step, requested bool) {
	if !job.abortRequested() {
		return Step{}, false
	}
	return Next(rec, job, Facts{}, PhaseTimeouts{}, now), true
}

// CheckpointDeadline is the value of the annotation pitcrew.dev/checkpoint-by; a job that has saved its state repeats it
// in pitcrew.dev/checkpointed.
func (r Restart) CheckpointDeadline() string { return r.CheckpointBy.UTC().Format(time.RFC3339) }

// Announced returns the record with its current restart in phase Checkpointing until a time.
func (rec Record) Announced(by time.Time) Record {
	cur := *rec.Current
	// To the second, so that a script can compare it.
	cur.Phase, cur.CheckpointBy = Checkpointing, by.Truncate(time.Second)
	rec.Current = &cur
	return rec
}

// blockedMeanwhile evaluates the preconditions of a stop for all causes of a restart.
func blockedMeanwhile(cur Restart, job Job, affected []corev1.Pod) (failed Precondition, found bool) {
	for _, c := range cur.Quarantines {
		if failed, found := FirstFailed(preconditions(Trigger{Kind: c.Kind(), ID: c.ID, Node: c.Node, Taint: c.Taint}, job, affected)); found {
			return failed, true
		}
	}
	return Precondition{}, false
}
