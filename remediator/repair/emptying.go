package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/pods"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// interruption is why a visit does not go on to its next Job: it is closed, waits, or yields to another repairer.
type interruption struct {
	// phase is the one in which the visit is closed, why its outcome, or what it waits for.
	phase visit.Phase
	why   string
	// reason is that of a [Waiting]; empty: the visit does not wait. late is set if it has waited too long.
	reason string
	late   bool
	// yields is set if another repairer works on the node, or the action is held.
	yields bool
	// event is the text of the Event; empty: there is none.
	event, eventType string
}

func yields(format string, args ...any) *interruption {
	return &interruption{phase: visit.Yielded, why: fmt.Sprintf(format, args...)}
}

func fails(why, event string) *interruption {
	return &interruption{phase: visit.Failed, why: why, event: event, eventType: corev1.EventTypeWarning}
}

// emptying waits until nothing is in the way of the next action, and then starts its attempt.
func emptying(d *decision, v *visit.Visit) {
	check, by := d.nextJob(v)
	if by != nil {
		d.interrupt(v, by)
		return
	}
	held := ""
	switch at := d.gate(v, check.Template); at.reason {
	case byFailures, byOthers:
		d.yieldToOther(v, at.why)
		return
	case byHold:
		held = at.why
	}
	if held == "" && v.Held != "" && d.now.Sub(v.ActionSince) >= abandonedAfter {
		d.forget(v, fmt.Sprintf("it was held since %s (%s), and what was known then is old", v.ActionSince.UTC().Format(time.RFC3339), v.Held))
		return
	}
	if (held == "") != (v.Held == "") {
		v.ActionSince = d.now // no time passes while something holds it
	}
	if v.Held = held; held != "" {
		v.Outcome = held
		d.waitFor(byHold, "%s waits: %s", v.Kind, held)
		return
	}
	timeout := v.ActionSince.Add(d.emptyTimeout())
	late := !d.now.Before(timeout)
	d.requeueAt(timeout)
	switch {
	case !node.IsReady(d.facts.Node):
		d.waitOrGiveUp(v, late, "ready", "the node is not Ready")
	case d.now.Before(v.RetryAt):
		d.requeueAt(v.RetryAt)
		if late {
			d.close(visit.Failed, "%s", v.Outcome)
		}
	default:
		clearNode(d, v, check, late)
	}
}

// clearNode starts the attempt, or has the pods evicted that are in its way and may be.
func clearNode(d *decision, v *visit.Visit, check policy.Check, late bool) {
	template, why := d.template(check.Template)
	if template == nil {
		d.waitOrGiveUp(v, late || d.now.Sub(v.ActionSince) >= job.StartTimeout, "template", why)
		return
	}
	if v.Kind == visit.Repair && job.NeedsGPUs(template, check) && len(d.causes().GPUs()) == 0 {
		skip(d, v, check)
		return
	}
	reboots := job.Reboots(template, check)
	blocking := d.inTheWay(reboots)
	if len(blocking) == 0 {
		startAttempt(d, v, check, template, reboots)
		return
	}
	d.requeue(emptyPoll)
	var evictable []corev1.Pod
	if d.policy.Repair.Drain.Mode == policy.DrainEvict {
		evictable = pods.Evictable(blocking, d.facts.Namespace)
	}
	if late || len(evictable) < len(blocking) {
		d.waitOrGiveUp(v, late, "pods", pods.Names(blocking, "has not ended", "have not ended"))
	} else {
		v.Outcome = pods.Names(blocking, "is evicted", "are evicted")
	}
	if !late {
		d.step.Evict = evictable
	}
}

// skip goes on to the action after one that needs the addresses of GPUs, of which none are known: the program would refuse it.
func skip(d *decision, v *visit.Visit, check policy.Check) {
	v.Skipped = append(slices.Clone(v.Skipped), check.Template)
	why := check.Template + " was skipped: it needs the addresses of the GPUs, and the messages of the causes do not name them"
	action, left := d.plan().Next(v.Quarantine, proof.WorstClass(d.facts.Quarantine))
	if !left {
		d.event(corev1.EventTypeWarning, RepairFailed, "%s; the node waits for a person or its provider", why)
		d.close(visit.Failed, "%s", why)
		return
	}
	d.event(corev1.EventTypeWarning, RepairRefused, "%s; next is %s", why, action.Template)
	v.ActionSince, v.Outcome = d.now, causes.Clip(why, conditions.MaxMessage)
	d.requeue(time.Millisecond)
}

// startAttempt records that the Job of the next attempt begins. The node gets the maintenance taint with that.
func startAttempt(d *decision, v *visit.Visit, check policy.Check, template *corev1.PodTemplate, reboots bool) {
	v.Phase, v.PhaseSince, v.Held, v.Outcome = visit.Working, d.now, "", ""
	v.Attempt++
	v.Template, v.Reboots, v.JobUID, v.JobEndedAt, v.RetryAt = check.Template, reboots, "", time.Time{}, time.Time{}
	v.BootID = d.boot()
	v.Deadline = d.now.Add(job.StartTimeout + check.Timeout)
	gpus := ""
	if v.Quarantine != "" {
		gpus = strings.Join(d.causes().GPUs(), ",")
	}
	v.Args = job.Arguments(template, check, d.facts.Node, v, gpus)
	v.Verdict = firstcheck.Verdict(template)
	v.Pauses = template.Annotations[conditions.AnnotationPauses] == conditions.PausesGPUOperator
	switch v.Kind {
	case visit.Repair:
		d.record.Repairs = append(d.record.Repairs,
			visit.Action{At: d.now, Template: check.Template, Quarantine: v.Quarantine, Skipped: v.Skipped})
		d.note(v, breaker.Started)
		v.Skipped = nil
		d.event(corev1.EventTypeNormal, RepairStarted, "%s for %s, attempt %d",
			check.Template, proof.Names(d.facts.Quarantine), v.Attempt)
	case visit.Validation:
		d.event(corev1.EventTypeNormal, RepairStarted, "validation before the node returns: %s", commandOf(check.Template, check.Args))
	}
	d.requeue(time.Millisecond)
}

func commandOf(template string, args []string) string {
	return strings.Join(append([]string{template}, args...), " ")
}

// quarantineEnded reports that the quarantine of a visit has ended, or cannot be read; nil: it stands.
func (s *situation) quarantineEnded(v *visit.Visit) *interruption {
	q := s.facts.Quarantine
	switch {
	case s.facts.QuarantineErr != nil:
		return &interruption{reason: "record", why: "the quarantine record of the node cannot be read"}
	case q != nil && q.ID == v.Quarantine && q.Phase == causes.Quarantined:
		return nil
	case s.wasReleased(v):
		return yields("the quarantine has ended: every fault has cleared")
	}
	const stopped = "stopped: the quarantine was ended by a person"
	return &interruption{phase: visit.Failed, why: stopped, event: fmt.Sprintf("%s %s", v.Kind, stopped), eventType: corev1.EventTypeNormal}
}

// wasReleased reports whether Pitcrew has ended the quarantine of a visit, as every fault has cleared.
func (s *situation) wasReleased(v *visit.Visit) bool {
	q := s.facts.Quarantine
	return q != nil && q.ID == v.Quarantine && q.Phase != causes.Quarantined && q.ReleasedBy == causes.ByPitcrew
}

// nextJob returns what runs next, or why nothing does.
func (s *situation) nextJob(v *visit.Visit) (policy.Check, *interruption) {
	if v.IsCheck() { // the record is input: a check begins with its Job
		return policy.Check{}, yields("a %s waits for no pods", v.Kind)
	}
	if by := s.quarantineEnded(v); by != nil {
		return policy.Check{}, by
	}
	if at := s.gate(v, ""); at.reason == byPolicy {
		return policy.Check{}, yields("%s", at.why)
	}
	if v.Kind == visit.Repair {
		return s.nextRepair(v)
	}
	validate := s.policy.Repair.Validate
	if validate == nil {
		return policy.Check{}, yields("the policy does not validate any more")
	}
	if !s.requested(visit.RequestRelease) {
		view := s.causes()
		if back := view.Faulty(view.State); back != "" {
			return policy.Check{}, yields("%s is back", back)
		}
	}
	return *validate, nil
}

// nextRepair returns the action that runs next, or why none does.
func (s *situation) nextRepair(v *visit.Visit) (policy.Check, *interruption) {
	plan, q := s.plan(), s.facts.Quarantine
	class, why := plan.Class()
	if why != "" && plan.IsFixed() {
		return policy.Check{}, yields("the fault has cleared by itself")
	}
	if why != "" && s.record.LastAction(q.ID) != nil {
		class = proof.WorstClass(q) // nothing has proven the last action
	}
	check, left := plan.Next(q.ID, class)
	switch {
	case proof.NeedsReplacement(q):
		return check, fails("a cause is of class Replace", "no repair helps: a cause is of class Replace")
	case s.policy.Repair.Mode == policy.RepairOff:
		return check, yields("repair.mode is off")
	case !left && class > 0:
		none := fmt.Sprintf("no action for class %s is left", class)
		return check, fails(none, none+"; the node waits for a person or its provider")
	case !left: // a condition is not current just now
		return check, &interruption{reason: "conditions", why: why, late: s.now.Sub(v.ActionSince) >= s.emptyTimeout()}
	}
	return check, nil
}
