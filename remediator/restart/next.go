package restart

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Action is what is done next with a job that is being restarted.
type Action string

const (
	// Wait: observe again after a pause.
	Wait Action = "Wait"
	// Hold: the same, and report that the stop takes too long, is refused, or waits for nodes that are not Ready.
	Hold Action = "Hold"
	// Stop: stop the job, which has had its time to save its state.
	Stop Action = "Stop"
	// Start: start the job.
	Start Action = "Start"
	// Close: close the record.
	Close Action = "Close"
)

// Results of a closed restart: the label result of pitcrew_job_restarts_total and the action of the Event.
const (
	ResultRestarted    = "Restarted"
	ResultJobCompleted = "JobCompleted"
	ResultJobFailed    = "JobFailed"
	ResultAbandoned    = "Abandoned"
	ResultAborted      = "Aborted"
	ResultStartTimeout = "StartTimeout"
	ResultWithdrawn    = "Withdrawn"
)

// Step is the decision of [Next].
type Step struct {
	Action Action
	// After is the pause before the next step; only Close needs none.
	After time.Duration
	// OutOfBand is what has to be done while waiting.
	OutOfBand OutOfBand
	// Phase, Result and Outcome close the record: the phase it ends in, one of the results and a sentence.
	Phase   Phase
	Result  string
	Outcome string
	// Blocked: Result is the reason of a precondition that no longer holds: the job was never stopped.
	Blocked bool
}

// OutOfBand is what the record announces and the write of the record could not do itself. It is repeated in every reconcile,
// so a crash before, in or after it is made up for. What is refused goes into [Facts] and decides again.
type OutOfBand struct {
	// SetSuspendField: set the suspend field of another object as the phase needs it.
	SetSuspendField bool
	// ReplacePods: have the job's own controller replace the remaining pods.
	ReplacePods bool
	// DeletePods are pods that have ended and that no other controller deletes.
	DeletePods []metav1.PartialObjectMetadata
	// ForceDelete are pods that are deleted without the confirmation of their kubelet.
	ForceDelete []Unconfirmed
}

// Needed reports whether there is anything to do.
func (o OutOfBand) Needed() bool {
	return o.SetSuspendField || o.ReplacePods || len(o.DeletePods) > 0 || len(o.ForceDelete) > 0
}

// Facts are what surrounds a job that is being restarted, read live. Each phase needs its own.
type Facts struct {
	// Remaining are, while Stopping, the old pods, and those created beside them, that are not gone.
	Remaining []metav1.PartialObjectMetadata
	// Unconfirmed are, while Stopping, those of Remaining that are being deleted, as far as their nodes had to be looked at.
	Unconfirmed []Unconfirmed
	// Terminal are, while Stopping, the pods of [Job.TerminalPodsToDelete] that have ended and are still listed.
	Terminal []metav1.PartialObjectMetadata
	// Listed counts, while Stopping, the pods of [Restart.Pods] that have the job's labels and are still listed.
	Listed int
	// Running counts, while Starting, the pods that run and are not being deleted.
	Running int
	// Affected are, while Checkpointing, the active pods on the nodes whose quarantine stands.
	Affected []corev1.Pod
	// Held: everything is paused, or the present policy stops no job for these nodes. It holds nothing that has been stopped.
	Held bool
	// Refused is why the pods were not replaced in this reconcile, as the API server answered; empty: they were.
	Refused string
}

// The timeouts of the remediator.
const (
	DefaultStopTimeout  = 10 * time.Minute
	DefaultStartTimeout = 15 * time.Minute
)

// PhaseTimeouts bound two phases.
type PhaseTimeouts struct {
	// Stop is how long a stop may take before it is reported; it is held, not given up.
	Stop time.Duration
	// Start is how long a start may take before the restart is closed as failed.
	Start time.Duration
}

// Next decides the next step of the restart under way, which is rec.Current. It is the only state machine of a restart:
// the same record, job, facts and time give the same step. A suspend field that another user or controller has changed ends the restart.
func Next(rec Record, job Job, facts Facts, timeouts PhaseTimeouts, now time.Time) Step {
	cur := *rec.Current
	var s Step
	switch cur.Phase {
	case Stopping:
		s = nextStopping(cur, job, facts, timeouts, now)
	case Starting:
		s = nextStarting(cur, job, facts, timeouts, now)
	default: // Checkpointing, or not begun
		return nextCheckpointing(cur, job, facts, now)
	}
	if s.Action == Wait || s.Action == Hold {
		s.OutOfBand = outOfBand(cur, job, facts)
	}
	if s.Action == Wait && facts.Refused != "" {
		s.Action = Hold
	}
	if s.Action == Hold {
		s.After = holdInterval(now.Sub(cur.PhaseSince))
	}
	return s
}

func nextStopping(cur Restart, job Job, facts Facts, timeouts PhaseTimeouts, now time.Time) Step {
	inPhase := now.Sub(cur.PhaseSince)
	overdue := inPhase >= timeouts.Stop
	if s, over := endedByOthers(cur, job); over {
		return s
	}
	remaining := len(facts.Remaining) + len(facts.Terminal)
	switch {
	case job.abortRequested() && job.mayStartBesideOldPods(overdue):
		return Step{Action: Start, After: pollInterval(0)}
	case (job.SuspendObserved || !job.SuspendField.Exists()) && remaining == 0:
		return Step{Action: Start, After: pollInterval(0)}
	case overdue || facts.waitsForNodes():
		return Step{Action: Hold}
	}
	return Step{Action: Wait, After: stopInterval(inPhase, facts.Listed, len(cur.Pods))}
}

func nextStarting(cur Restart, job Job, facts Facts, timeouts PhaseTimeouts, now time.Time) Step {
	inPhase := now.Sub(cur.PhaseSince)
	if s, over := endedByOthers(cur, job); over {
		return s
	}
	pending := job.pendingElsewhere(cur)
	switch {
	case job.abortRequested() && !pending:
		return Step{Action: Close, Phase: Failed, Result: ResultAborted, Outcome: "aborted by annotation " + conditions.AnnotationAbortRestart +
			"; the job was started again and is left alone"}
	case !pending && facts.Running >= job.WholeRanks(cur):
		return Step{Action: Close, Phase: Done, Result: ResultRestarted,
			Outcome: fmt.Sprintf("all ranks running (%d/%[1]d)", job.WholeRanks(cur))}
	case inPhase >= timeouts.Start:
		return Step{Action: Close, Phase: Failed, Result: ResultStartTimeout, Outcome: fmt.Sprintf(
			"%d/%d ranks running %s after the job was started again", facts.Running, job.WholeRanks(cur), inPhase.Round(time.Second))}
	}
	return Step{Action: Wait, After: pollInterval(inPhase)}
}

// endedByOthers closes a restart whose job has finished, or was started or stopped by another user or controller.
func endedByOthers(cur Restart, job Job) (s Step, over bool) {
	switch {
	case job.FinishedReason == ConditionFailed:
		return Step{Action: Close, Phase: Failed, Result: ResultJobFailed, Outcome: "the job failed while it was " + doing(cur.Phase)}, true
	case job.FinishedReason != "":
		return Step{Action: Close, Phase: Done, Result: ResultJobCompleted, Outcome: "the job completed while it was " + doing(cur.Phase)}, true
	case job.changedByUser(cur):
		return Step{Action: Close, Phase: Failed, Result: ResultAbandoned, Outcome: fmt.Sprintf(
			"another user or controller %s while the job was %s; the job is left as it is",
			job.SuspendField.changed(job.Suspended), doing(cur.Phase))}, true
	}
	return Step{}, false
}

// outOfBand is what has to be done beside the record while the restart waits.
func outOfBand(cur Restart, job Job, facts Facts) OutOfBand {
	switch {
	case job.pendingElsewhere(cur):
		return OutOfBand{SetSuspendField: true}
	case cur.Phase != Stopping:
		return OutOfBand{}
	}
	return OutOfBand{
		ReplacePods: !job.SuspendField.Exists(),
		DeletePods:  facts.Terminal,
		ForceDelete: slices.DeleteFunc(slices.Clone(facts.Unconfirmed), func(u Unconfirmed) bool { return u.Force.Why == "" }),
	}
}

// mayStartBesideOldPods reports whether a person who aborts may have the job start beside old pods: not before they had the
// time to end, since two incarnations would write one checkpoint, and never if that may fail the job. Without a suspend
// field nothing is started.
func (j Job) mayStartBesideOldPods(overdue bool) bool {
	return !j.SuspendField.Exists() || overdue && !j.FailsIfOldPodsRemain
}

// pendingElsewhere reports whether the suspend field of another object is still to be set for the restart's phase. What we
// did not stop we do not start.
func (j Job) pendingElsewhere(cur Restart) bool {
	switch {
	case j.SuspendField.Elsewhere == nil:
		return false
	case cur.Phase == Stopping:
		return !j.Suspended && !j.setFor(cur, Stopping)
	}
	return j.Suspended && j.setFor(cur, Stopping)
}

// changedByUser reports whether another user or controller has set the suspend field, or stopped a job that has none.
func (j Job) changedByUser(cur Restart) bool {
	switch {
	case !j.SuspendField.Exists():
		return j.Suspended
	case j.pendingElsewhere(cur):
		return false
	case j.SuspendField.Elsewhere != nil && cur.Phase == Stopping && !j.setFor(cur, Stopping):
		return j.Suspended // another writer was faster
	}
	return j.Suspended != (cur.Phase == Stopping)
}

// setFor reports whether the suspend field of another object was last set for a phase of the restart. A later version that stopped the
// job may have set it for a phase of its own.
func (j Job) setFor(cur Restart, p Phase) bool {
	step := j.SuspendField.Elsewhere.GetAnnotations()[conditions.AnnotationRestartStep]
	return step == cur.ID+" "+string(p) || p == Stopping && cur.LaterPhase != "" && step == cur.ID+" "+string(cur.LaterPhase)
}

func doing(p Phase) string {
	switch p {
	case Stopping:
		return "being stopped"
	case Starting:
		return "starting again"
	}
	return "saving its state"
}

// pollInterval is the time between two reconciles, 200 ms to 2 s: prompt while things move, cheap when they take long.
func pollInterval(elapsed time.Duration) time.Duration {
	return min(holdInterval(elapsed), 2*time.Second)
}

// stopInterval is the same while old pods end, and shorter when few of many are left: no longer than those take at the pace so far.
func stopInterval(elapsed time.Duration, left, all int) time.Duration {
	if gone := all - left; left > 0 && gone > 0 {
		elapsed = min(elapsed, 10*elapsed*time.Duration(left)/time.Duration(gone))
	}
	return pollInterval(elapsed)
}

// holdInterval is the same for what may wait for days, 200 ms to 10 s.
func holdInterval(elapsed time.Duration) time.Duration {
	return min(max(elapsed/10, 200*time.Millisecond), 10*time.Second)
}
