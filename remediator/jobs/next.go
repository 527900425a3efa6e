package jobs

import (
	"cmp"
	"fmt"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// verb is what the state machine does next with a job that is being restarted.
type verb string

const (
	await  verb = "await"  // look again after a pause
	hold   verb = "hold"   // the same, and say that the stop takes too long
	resume verb = "resume" // start the job
	end    verb = "end"    // close the record
)

// step is the decision of [next].
type step struct {
	do verb
	// after is the pause of await and hold.
	after time.Duration
	// phase, result and outcome close the record: the phase it ends in, the metric's label and a sentence.
	phase   phase
	result  string
	outcome string
}

// limits bound the two phases.
type limits struct{ stop, start time.Duration }

// podCount is a live look at the pods of a job that is being restarted.
type podCount struct {
	// left are the old pods, and those created beside them, that are not gone.
	left int
	// running are the pods that run and are not being deleted.
	running int
}

// next decides the next step of the restart under way. It is pure: the same record, view, pods and time give the same
// step. A toggle that somebody else has moved is a person's word and ends the restart.
func next(cur restart, v view, pods podCount, now time.Time, limits limits) step {
	inPhase := now.Sub(cur.PhaseSince)
	switch {
	case v.ended == failedCondition:
		return step{do: end, phase: failed, result: "JobFailed", outcome: "the job failed while it was " + doing(cur.Phase)}
	case v.ended != "":
		return step{do: end, phase: done, result: "JobCompleted", outcome: "the job completed while it was " + doing(cur.Phase)}
	case v.overridden(cur):
		return step{do: end, phase: failed, result: "Abandoned", outcome: fmt.Sprintf(
			"somebody %s while the job was %s; it is left as it is", v.toggle.moved(v.suspended), doing(cur.Phase))}
	case aborts(v) && cur.Phase == stopping && v.mayStartBeside(inPhase >= limits.stop):
		return step{do: resume}
	case aborts(v) && cur.Phase == starting && !v.due(cur):
		return step{do: end, phase: failed, result: "Aborted", outcome: "aborted by annotation " + conditions.AnnotationAbortRestart +
			"; the job was started again and is left alone"}
	case cur.Phase == stopping && (v.stopSeen || !v.toggle.exists()) && pods.left == 0:
		return step{do: resume}
	case cur.Phase == stopping && inPhase >= limits.stop:
		return step{do: hold, after: pollInterval(inPhase)}
	case cur.Phase == starting && !v.due(cur) && pods.running >= v.whole(cur):
		return step{do: end, phase: done, result: "Restarted", outcome: fmt.Sprintf("all %d ranks run again", v.whole(cur))}
	case cur.Phase == starting && inPhase >= limits.start:
		return step{do: end, phase: failed, result: "StartTimeout", outcome: fmt.Sprintf(
			"%d of %d ranks run %s after the job was resumed", pods.running, v.whole(cur), inPhase.Round(time.Second))}
	}
	return step{do: await, after: pollInterval(inPhase)}
}

// mayStartBeside tells whether a person who aborts may have the job start beside old pods: not before they had the time to end,
// since two incarnations would write one checkpoint, and never if that may fail the job. Without a toggle nothing is started.
func (v view) mayStartBeside(overdue bool) bool { return !v.toggle.exists() || overdue && !v.lateStart }

// whole is how many pods run once the job is whole again.
func (v view) whole(cur restart) int { return cmp.Or(v.ranks, cur.Ranks) }

// due tells whether the toggle of another object is still to be moved for the restart's phase. What we did not stop we do
// not start.
func (v view) due(cur restart) bool {
	switch {
	case v.toggle.on == nil:
		return false
	case cur.Phase == stopping:
		return !v.suspended && !v.marked(cur, stopping)
	}
	return v.suspended && v.marked(cur, stopping)
}

// overridden tells whether somebody else has moved the toggle, or stopped a job that has none.
func (v view) overridden(cur restart) bool {
	switch {
	case !v.toggle.exists():
		return v.suspended
	case v.due(cur):
		return false
	case v.toggle.on != nil && cur.Phase == stopping && !v.marked(cur, stopping):
		return v.suspended // somebody was faster than we
	}
	return v.suspended != (cur.Phase == stopping)
}

// marked tells whether the toggle of another object was last moved for a phase of the restart.
func (v view) marked(cur restart, p phase) bool {
	cur.Phase = p
	return v.toggle.on.GetAnnotations()[conditions.AnnotationRestartStep] == cur.step()
}

// aborts tells whether a person asks to put the job back as it was.
func aborts(v view) bool {
	_, asks := v.object.GetAnnotations()[conditions.AnnotationAbortRestart]
	return asks
}

func doing(p phase) string {
	switch p {
	case saving:
		return "saving its state"
	case stopping:
		return "being stopped"
	}
	return "starting again"
}

// pollInterval is the time between two looks, 200 ms to 2 s: prompt while things move, cheap when they take long.
func pollInterval(elapsed time.Duration) time.Duration {
	return min(max(elapsed/10, 200*time.Millisecond), 2*time.Second)
}
