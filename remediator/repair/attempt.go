package repair

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// empty waits until nothing is in the way of the next action, and then begins it.
func (d *decider) empty(v *visit.Visit) {
	check, over := d.nextJob(v)
	if over {
		return
	}
	if why := otherRepairer(d.facts.Node, d.record, d.now); why != "" {
		d.makeRoom(v, why)
		return
	}
	held := d.held()
	if d.step.Needs.Any() {
		return
	}
	if (held == "") != (v.Held == "") {
		v.ActionSince = d.now // no time passes while something holds it
	}
	if v.Held = held; held != "" {
		v.Outcome = held
		d.waitFor("held", "%s waits: %s", v.Kind, held)
		return
	}
	timeout := v.ActionSince.Add(d.emptyTimeout())
	late := !d.now.Before(timeout)
	d.requeueAt(timeout)
	switch {
	case !node.IsReady(d.facts.Node):
		d.lacks(v, late, "ready", "the node is not Ready")
		return
	case d.now.Before(v.RetryAt):
		d.requeueAt(v.RetryAt)
		if late {
			d.close(visit.Failed, "%s", v.Outcome)
		}
		return
	}
	if d.needs(Needs{Pods: true, Template: check.Template}) {
		return
	}
	if d.facts.Template == nil {
		d.lacks(v, late || d.now.Sub(v.ActionSince) >= StartTimeout, "template", "%s", d.noTemplate())
		return
	}
	if v.Kind == visit.Repair && needsGPUs(d.facts.Template, check) && len(d.gpusOf(v)) == 0 {
		d.skip(v, check)
		return
	}
	reboots := rebootsNode(d.facts.Template, check)
	blocking := d.inTheWay(reboots)
	if len(blocking) == 0 {
		d.begun(v, check, reboots)
		return
	}
	d.requeue(emptyPoll)
	if late {
		d.lacks(v, late, "pods", "%s", podNames(blocking, "has not ended", "have not ended"))
		return
	}
	evictable := d.evictable(blocking)
	if len(evictable) == len(blocking) {
		v.Outcome = podNames(blocking, "is evicted", "are evicted")
	} else {
		d.lacks(v, false, "pods", "%s", podNames(blocking, "has not ended", "have not ended"))
	}
	d.step.Evict = evictable
}

// skip goes on to the action after one that needs the addresses of GPUs, of which none are known: the program would refuse it.
func (d *decider) skip(v *visit.Visit, check policy.Check) {
	v.Skipped = append(slices.Clone(v.Skipped), check.Template)
	why := check.Template + " was skipped: it needs the addresses of the GPUs, and the messages of the causes do not name them"
	action, left := d.nextAction(v.Quarantine, worstAction(d.facts.Quarantine))
	if !left {
		d.event(corev1.EventTypeWarning, RepairFailed, "%s; the node waits for a person or its provider", why)
		d.close(visit.Failed, "%s", why)
		return
	}
	d.event(corev1.EventTypeWarning, RepairRefused, "%s; next is %s", why, action.Template)
	v.ActionSince, v.Outcome = d.now, causes.Clip(why, conditions.MaxMessage)
	d.requeue(time.Millisecond)
}

// makeRoom ends a visit while another repairer works on the node, however long that takes: it must not keep its place of maxConcurrent
// from other nodes. It begins again afterwards, without a second approval.
func (d *decider) makeRoom(v *visit.Visit, why string) {
	if v.ApprovedBy != "" && d.record.Request == nil {
		d.record.Request = &visit.Request{
			Kind: visit.RequestRepair, Quarantine: v.Quarantine, At: d.now, User: v.ApprovedBy, Reason: "approved before: " + why}
	}
	d.close(visit.Yielded, "%s", why)
}

// emptyTimeout is how long a node may take to become empty.
func (d *decider) emptyTimeout() time.Duration {
	if d.policy.Repair == nil {
		return 0
	}
	return d.policy.Repair.Drain.Timeout
}

// lacks notes what a visit waits for, and gives it up if that takes too long.
func (d *decider) lacks(v *visit.Visit, late bool, reason, format string, args ...any) {
	what := fmt.Sprintf(format, args...)
	if late {
		again := ""
		if v.Kind == visit.Repair {
			again = "; `kubectl pitcrew repair " + d.facts.Node.Name + " --approve` begins it again"
		}
		d.event(corev1.EventTypeWarning, endReason(v.Kind), "%s was given up after %s: %s%s",
			v.Kind, d.now.Sub(v.ActionSince).Round(time.Second), what, again)
		d.result(v, ResultNotStarted)
		d.close(visit.Failed, "given up: %s", what)
		return
	}
	v.Outcome = causes.Clip("waits: "+what, conditions.MaxMessage)
	d.waitFor(reason, "%s waits: %s", v.Kind, what)
}

// noTemplate says why there is no template.
func (d *decider) noTemplate() string {
	if d.facts.TemplateProblem != "" {
		return d.facts.TemplateProblem
	}
	return fmt.Sprintf("there is no PodTemplate %s in namespace %s", d.facts.Has.Template, d.facts.Namespace)
}

// nextJob is what runs next. If nothing does any more, it closes the visit and over is true.
func (d *decider) nextJob(v *visit.Visit) (check policy.Check, over bool) {
	q, over := d.quarantineOf(v)
	if over {
		return check, true
	}
	if q == nil { // the record is input: a check begins with its Job
		d.close(visit.Yielded, "a %s waits for no pods", v.Kind)
		return check, true
	}
	if d.policy.Repair == nil {
		d.close(visit.Yielded, "the policy does not repair any more")
		return check, true
	}
	if why := d.forbidden(v, q); why != "" {
		d.close(visit.Yielded, "%s", why)
		return check, true
	}
	if v.Kind == visit.Validation {
		if d.policy.Repair.Validate == nil {
			d.close(visit.Yielded, "the policy does not validate any more")
			return check, true
		}
		if !d.requested(visit.RequestRelease) {
			for i := range q.Causes {
				if c := &q.Causes[i]; c.Due && d.stateOf(q, c) == faulty {
					d.close(visit.Yielded, "%s is back", c.Condition)
					return check, true
				}
			}
		}
		return *d.policy.Repair.Validate, false
	}
	return d.nextRepair(v, q)
}

// nextRepair is the action that runs next. If none does any more, it closes the visit and over is true.
func (d *decider) nextRepair(v *visit.Visit, q *causes.Record) (check policy.Check, over bool) {
	class, why := d.classOf(q)
	if why != "" && d.allCleared(q) {
		d.close(visit.Yielded, "the fault has cleared by itself")
		return check, true
	}
	if why != "" && d.record.LastAction(q.ID) != nil {
		class = worstAction(q) // nothing has proven the last action
	}
	check, left := d.nextAction(q.ID, class)
	switch {
	case needsReplacement(q):
		d.event(corev1.EventTypeWarning, RepairFailed, "no repair helps: a cause is of class Replace")
		d.close(visit.Failed, "a cause is of class Replace")
		return check, true
	case d.policy.Repair.Mode == policy.RepairOff:
		d.close(visit.Yielded, "repair.mode is off")
		return check, true
	case !left && class > 0:
		d.event(corev1.EventTypeWarning, RepairFailed, "no action for class %s is left; the node waits for a person or its provider", class)
		d.close(visit.Failed, "no action for class %s is left", class)
		return check, true
	case !left: // a condition is not current just now
		d.lacks(v, d.now.Sub(v.ActionSince) >= d.emptyTimeout(), "conditions", "%s", why)
		return check, true
	}
	if d.needs(Needs{Breaker: true}) {
		return check, true
	}
	if why := d.facts.heldAction(check.Template); why != "" {
		d.makeRoom(v, why)
		return check, true
	}
	return check, false
}

// allCleared tells whether no cause needs an action any more.
func (d *decider) allCleared(q *causes.Record) bool {
	for i := range q.Causes {
		if c := &q.Causes[i]; needsAction(c) && d.stateOf(q, c) != cleared {
			return false
		}
	}
	return true
}

// worstAction is the worst class of the causes that actions are for.
func worstAction(q *causes.Record) (class conditions.Repair) {
	for i := range q.Causes {
		if c := &q.Causes[i]; needsAction(c) {
			class = max(class, c.Repair)
		}
	}
	return class
}

// quarantineOf is the quarantine that a visit is for. If it has ended, it closes the visit and over is true.
func (d *decider) quarantineOf(v *visit.Visit) (q *causes.Record, over bool) {
	if v.IsCheck() {
		return nil, false
	}
	q = d.facts.Quarantine
	if d.facts.QuarantineErr != nil {
		d.waitFor("record", "%s waits: the quarantine record of the node cannot be read", v.Kind)
		return nil, true
	}
	if q != nil && q.ID == v.Quarantine && q.Phase == causes.Quarantined {
		return q, false
	}
	released := q != nil && q.ID == v.Quarantine && q.ReleasedBy == causes.ByPitcrew
	switch {
	case released && v.Phase == visit.Proving && v.Kind == visit.Repair:
		d.passed(v, q)
	case released:
		d.close(visit.Yielded, "the quarantine has ended: every fault has cleared")
	default:
		d.event(corev1.EventTypeNormal, endReason(v.Kind), "%s stopped: the quarantine was ended by a person", v.Kind)
		d.close(visit.Failed, "stopped: the quarantine was ended by a person")
	}
	return nil, true
}

// inTheWay are the pods that must end before an action: for a reboot all but those of DaemonSets and static ones, else those with an
// accelerator. A pod of an earlier visit is always in the way: what it does has not provably ended.
func (d *decider) inTheWay(reboots bool) []corev1.Pod {
	var pods []corev1.Pod
	for _, pod := range d.facts.Pods {
		switch {
		case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		case pod.Namespace == d.facts.Namespace && d.facts.Namespace != "", reboots && !sweep.StaysOnNode(&pod), sweep.HoldsAccelerator(&pod):
			pods = append(pods, pod)
		}
	}
	return pods
}

// evictable are the pods that may be evicted now. A pod without a controller would not come back, and one of a DaemonSet would at once.
func (d *decider) evictable(pods []corev1.Pod) []corev1.Pod {
	if d.policy.Repair == nil || d.policy.Repair.Drain.Mode != policy.DrainEvict {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool {
		return metav1.GetControllerOf(&pod) == nil || sweep.StaysOnNode(&pod) || pod.Namespace == d.facts.Namespace
	})
}

// podNames names pods in a sentence.
func podNames(pods []corev1.Pod, one, many string) string {
	const most = 3
	var names []string
	for _, pod := range pods {
		names = append(names, pod.Namespace+"/"+pod.Name)
	}
	slices.Sort(names)
	if len(names) == 1 {
		return "pod " + names[0] + " " + one
	}
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("pods %s and %d more %s", strings.Join(names[:most], ", "), more, many)
	}
	return fmt.Sprintf("pods %s %s", strings.Join(names, ", "), many)
}

// begun records that the Job of the next attempt begins. The node gets the maintenance taint with that.
func (d *decider) begun(v *visit.Visit, check policy.Check, reboots bool) {
	n := d.facts.Node
	v.Phase, v.PhaseSince, v.Held, v.Outcome = visit.Working, d.now, "", ""
	v.Attempt++
	v.Template, v.Reboots, v.JobUID, v.JobEndedAt, v.RetryAt = check.Template, reboots, "", time.Time{}, time.Time{}
	v.BootID = n.Status.NodeInfo.BootID
	v.Deadline = d.now.Add(StartTimeout + check.Timeout)
	values := variables(n, v)
	values[gpusVariable] = strings.Join(d.gpusOf(v), ",")
	v.Args = arguments(d.facts.Template, check, values)
	v.Verdict = firstcheck.Verdict(d.facts.Template)
	v.Pauses = d.facts.Template.Annotations[conditions.AnnotationPauses] == conditions.PausesGPUOperator
	switch v.Kind {
	case visit.Repair:
		d.record.Repairs = append(d.record.Repairs,
			visit.Action{At: d.now, Template: check.Template, Quarantine: v.Quarantine, Skipped: v.Skipped})
		d.step.note(v, d.facts.Quarantine, breaker.Started)
		v.Skipped = nil
		d.event(corev1.EventTypeNormal, RepairStarted, "%s for %s, attempt %d", check.Template, causeNames(d.facts.Quarantine), v.Attempt)
	case visit.Validation:
		d.event(corev1.EventTypeNormal, RepairStarted, "validation before the node returns: %s",
			strings.Join(append([]string{check.Template}, check.Args...), " "))
	}
	d.requeue(time.Millisecond)
}

// undo forgets the action of an attempt that did nothing to the node.
func (d *decider) undo(v *visit.Visit) {
	if last := d.record.LastAction(v.Quarantine); v.Kind == visit.Repair && last != nil {
		d.step.note(v, d.facts.Quarantine, breaker.Undone)
		v.Skipped = last.Skipped
		d.record.Repairs = d.record.Repairs[:len(d.record.Repairs)-1]
	}
}

// work follows the Job of the attempt to its end.
func (d *decider) work(v *visit.Visit) {
	n := d.facts.Node
	if d.facts.QuarantineErr == nil && v.Quarantine != "" {
		if q := d.facts.Quarantine; q == nil || q.ID != v.Quarantine || q.Phase != causes.Quarantined {
			d.stop("stopped: the quarantine was ended by a person")
			return
		}
	}
	if d.madeWay(v) {
		return
	}
	late := !d.now.Before(v.Deadline)
	d.requeueAt(v.Deadline)
	d.requeue(workPoll)
	if boot := n.Status.NodeInfo.BootID; boot != v.BootID && boot != "" && v.BootID != "" {
		switch {
		case node.IsReady(n) && v.Kind == visit.Repair:
			d.ended(v, "in a new boot")
		case node.IsReady(n):
			d.failed(v, "the node has rebooted during the check")
		case late:
			d.absent(v)
		}
		return
	}
	v.JobUID = cmp.Or(v.JobUID, d.facts.Created)
	switch job := d.jobState(v); {
	case d.step.Needs.Any():
	case job.ended:
		d.jobEnded(v, job, late)
	case job.missing && v.JobUID == "":
		d.create(v)
	case late && !node.IsReady(n):
		d.absent(v)
	case late:
		d.failed(v, "its Job has not ended in time")
	case !job.started && !d.now.Before(v.PhaseSince.Add(StartTimeout)):
		d.notStarted(v, job.waiting)
	case v.JobUID == "":
		v.JobUID = d.facts.Job.UID
	case !job.started:
		d.requeueAt(v.PhaseSince.Add(StartTimeout))
	}
}

// create has the Job created, unless a pod has come to the node meanwhile.
func (d *decider) create(v *visit.Visit) {
	if v.Pauses && d.needs(Needs{Pods: true}) {
		return
	}
	leaving := operator.Leaving(v.Pauses, d.facts.Node, d.facts.Pods)
	if !d.now.Before(v.PhaseSince.Add(StartTimeout)) {
		why := "the Job could not be created"
		if d.facts.TemplateProblem != "" {
			why = d.facts.TemplateProblem
		} else if len(leaving) > 0 {
			why = podNames(leaving, "has not ended although its label is paused", "have not ended although their labels are paused")
		}
		d.notStarted(v, why)
		return
	}
	if stop, waits := d.stopsBeforeJob(v); stop != "" || waits {
		if !waits {
			d.undo(v)
			v.Retry(d.now)
			v.Outcome = "waits: " + stop
		}
		return
	}
	if settled := v.PhaseSince.Add(settleTaint); v.Kind == visit.Sweep && d.now.Before(settled) {
		d.requeueAt(settled)
		return
	}
	if len(leaving) > 0 {
		d.waitFor("operator", "%s waits for the GPU operator: %s", v.Kind, podNames(leaving, "has not ended", "have not ended"))
		d.requeue(endPoll)
		return
	}
	if d.needs(Needs{Pods: true, Template: v.Template}) {
		return
	}
	if blocking := d.inTheWay(v.Reboots); len(blocking) > 0 {
		if v.IsCheck() {
			d.yield(v, "%s", podNames(blocking, "has come to the node", "have come to the node"))
			return
		}
		d.undo(v)
		v.Retry(d.now)
		v.Outcome = "waits: " + podNames(blocking, "has come to the node", "have come to the node")
		return
	}
	if d.facts.Template == nil {
		d.waitFor("template", "%s waits: %s", v.Kind, d.noTemplate())
		return
	}
	if !asksFor(d.policy, d.facts.Template, d.facts.Node, v) {
		d.notStarted(v, fmt.Sprintf("the policy and the template do not ask for arguments %q, or not any more", v.Args))
		return
	}
	d.step.Create = newJob(d.facts.Template, d.facts.Node, v, d.facts.Namespace)
}

// stopsBeforeJob says what has come between the record of an attempt and its Job that keeps a repair or a validation from beginning; empty:
// nothing has. waits is true while facts are missing.
func (d *decider) stopsBeforeJob(v *visit.Visit) (why string, waits bool) {
	if v.IsCheck() {
		return "", false
	}
	if d.policy.Repair == nil {
		return "the policy does not repair any more", false
	}
	if why := d.forbidden(v, d.facts.Quarantine); why != "" {
		return why, false
	}
	if why = d.held(); why == "" && v.Kind == visit.Repair && !d.needs(Needs{Breaker: true}) {
		why = d.facts.heldAction(v.Template)
	}
	return why, d.step.Needs.Any()
}

// jobEnded decides what follows from the end of a Job.
func (d *decider) jobEnded(v *visit.Visit, job jobState, late bool) {
	if job.rejected {
		d.notStarted(v, job.waiting)
		return
	}
	if v.Reboots && !job.refused() && !job.says(repairresult.Failed) {
		// Whatever became of the Job, only a new boot shows that the node has rebooted.
		switch {
		case late && node.IsReady(d.facts.Node):
			d.failed(v, "the node has not rebooted in time"+job.andMessage())
		case late:
			d.absent(v)
		}
		return
	}
	switch {
	case job.refused() && v.IsCheck():
		d.event(corev1.EventTypeWarning, RepairRefused, "%s was refused on the node: %s", v.Name(), job.message)
		d.result(v, ResultRefused)
		d.close(visit.Refused, "refused: %s", job.message)
	case job.refused():
		d.refused(v, job.message)
	case job.exit == 0 && v.Kind == visit.Repair:
		d.ended(v, job.message)
	case job.says(repairresult.Healthy):
		d.ended(v, job.message)
	case job.says(repairresult.Problem):
		d.problem(v, job.message)
	default:
		d.failed(v, job.why())
	}
}

// ended goes on to the proof.
func (d *decider) ended(v *visit.Visit, outcome string) {
	v.Phase, v.PhaseSince, v.JobEndedAt, v.Deadline = visit.Proving, d.now, d.now, time.Time{}
	v.Outcome = causes.Clip("waits for the conditions after "+v.Template+": "+outcome, conditions.MaxMessage)
	d.requeue(waitPoll)
}

// refused waits and tries again: a precondition of the program was not met.
func (d *decider) refused(v *visit.Visit, why string) {
	d.event(corev1.EventTypeWarning, RepairRefused, "%s was refused on the node: %s", v.Template, why)
	d.result(v, ResultRefused)
	retry := d.now.Add(refusedRetry)
	switch {
	case d.policy.Repair == nil || retry.Before(v.ActionSince.Add(d.emptyTimeout())):
		d.undo(v)
		v.Retry(d.now)
		v.RetryAt, v.Outcome = retry, causes.Clip("refused: "+why, conditions.MaxMessage)
	case v.Kind == visit.Repair && d.policy.Repair.NextIfRefused:
		if d.next(v, "refused: "+why); d.record.Current == nil {
			d.undo(v) // it was the last action: a person may ask for it again, and nothing shows that it does not help
		}
	default:
		d.close(visit.Failed, "refused: %s", why)
		d.undo(v)
	}
}

// notStarted gives the visit up: nothing was done to the node, and a heavier action would not start either.
func (d *decider) notStarted(v *visit.Visit, why string) {
	d.undo(v)
	d.event(corev1.EventTypeWarning, endReason(v.Kind), "%s: the Job of template %s has not started: %s", v.Kind, v.Template, why)
	d.result(v, ResultNotStarted)
	d.close(visit.Failed, "the Job of template %s has not started: %s", v.Template, why)
}

// absent closes the visit to a node that does not come back.
func (d *decider) absent(v *visit.Visit) {
	d.event(corev1.EventTypeWarning, endReason(v.Kind),
		"%s: the node has not come back within %s after %s; only its provider or a person can help",
		v.Kind, d.now.Sub(v.PhaseSince).Round(time.Second), v.Template)
	d.result(v, ResultFailed)
	d.close(visit.Failed, "the node has not come back after %s; its provider or a person must help", v.Template)
}

// failed decides what follows an attempt that has failed: the next action of a repair, a second try of a check.
func (d *decider) failed(v *visit.Visit, why string) {
	d.result(v, ResultFailed)
	if v.Kind == visit.Repair {
		d.next(v, why)
		return
	}
	if v.IsCheck() {
		d.event(corev1.EventTypeWarning, NodeChecked, "%s could not run: %s", v.Name(), why)
		d.close(visit.Failed, "could not run: %s", why)
		return
	}
	if v.Failures++; v.Failures < maxJobFailures {
		v.Retry(d.now)
		v.ActionSince, v.Outcome = d.now, causes.Clip("once more: "+why, conditions.MaxMessage)
		return
	}
	v.BootID = d.facts.Node.Status.NodeInfo.BootID // in which it is not tried again
	d.event(corev1.EventTypeWarning, NodeChecked,
		"%s could not run: %s; `kubectl pitcrew release %s --without-validation` returns the node without it", v.Kind, why, d.facts.Node.Name)
	d.close(visit.Failed, "could not run: %s", why)
}

// problem closes a check that has found a fault. The plugins report it, and the rules of the policy decide what follows.
func (d *decider) problem(v *visit.Visit, why string) {
	d.event(corev1.EventTypeWarning, NodeChecked, "%s has found a fault: %s", v.Kind, why)
	d.result(v, ResultProblem)
	d.swept(v)
	d.close(visit.Failed, "found a fault: %s", why)
}

// next goes on to the next action of a repair, or closes it after the last one.
func (d *decider) next(v *visit.Visit, why string) {
	if d.policy.Repair == nil {
		d.close(visit.Yielded, "%s has not helped: %s; the policy does not repair any more", v.Template, why)
		return
	}
	q := d.facts.Quarantine
	class := conditions.Repair(0)
	if q != nil {
		class = worstAction(q)
	}
	action, left := d.nextAction(v.Quarantine, class)
	if stop := d.lemon(); left && stop != "" {
		left, why = false, why+"; "+stop
	}
	if !left {
		d.event(corev1.EventTypeWarning, RepairFailed, "%s has not helped: %s; the node waits for a person or its provider", v.Template, why)
		d.close(visit.Failed, "%s has not helped: %s", v.Template, why)
		return
	}
	d.event(corev1.EventTypeWarning, RepairFailed, "%s has not helped: %s; next is %s", v.Template, why, action.Template)
	v.Retry(d.now)
	v.ActionSince, v.RetryAt = d.now, time.Time{}
	v.Outcome = causes.Clip(fmt.Sprintf("%s has not helped: %s", v.Template, why), conditions.MaxMessage)
}

// prove waits until the conditions show what became of the node.
func (d *decider) prove(v *visit.Visit) {
	q, over := d.quarantineOf(v)
	if over {
		return
	}
	proofTimeout := policy.DefaultProofTimeout
	if d.policy.Repair != nil {
		proofTimeout = d.policy.Repair.ProofTimeout
	}
	if boot := d.facts.Node.Status.NodeInfo.BootID; boot != v.BootID && v.Kind != visit.Repair {
		d.failed(v, "the node has rebooted after the check")
		return
	}
	soon, late := v.PhaseSince.Add(proofTimeout), v.PhaseSince.Add(3*proofTimeout)
	d.requeueAt(soon)
	d.requeueAt(late)
	d.requeue(waitPoll)
	if v.Kind != visit.Repair {
		d.proveHealthy(v, late)
		return
	}
	names, still := d.unproven(q, v)
	switch {
	case len(names) == 0 && node.IsReady(d.facts.Node):
		d.passed(v, q)
	case still && !d.now.Before(soon), !d.now.Before(late):
		d.result(v, ResultNotProven)
		what := strings.Join(names, ", ") + " has not cleared"
		if len(names) == 0 {
			what = "the node is not Ready"
		}
		d.next(v, what)
	}
}

// passed closes a repair after which the fault has cleared.
func (d *decider) passed(v *visit.Visit, q *causes.Record) {
	if last := d.record.LastAction(v.Quarantine); last != nil {
		last.Proven = true
	}
	d.step.note(v, d.facts.Quarantine, breaker.Helped)
	d.event(corev1.EventTypeNormal, RepairSucceeded, "%s has helped: %s has cleared; the repair took %s",
		v.Template, causeNames(q), d.now.Sub(v.StartedAt).Round(time.Second))
	d.result(v, ResultProven)
	d.close(visit.Passed, "%s has helped", v.Template)
}

// healthy closes a check that has found nothing.
func (d *decider) healthy(v *visit.Visit) {
	d.record.Checked = &visit.Checked{At: d.now, BootID: v.BootID, Template: v.Template, Args: v.Args, Quarantine: v.Quarantine}
	d.event(corev1.EventTypeNormal, NodeChecked, "%s has passed: %s", v.Kind, strings.Join(append([]string{v.Template}, v.Args...), " "))
	d.result(v, ResultHealthy)
	d.swept(v)
	d.close(visit.Passed, "passed")
}

// proveHealthy closes a check whose Job has found nothing, once the conditions say the same.
func (d *decider) proveHealthy(v *visit.Visit, late time.Time) {
	fault, waits := d.judge(v)
	if v.Kind == visit.FirstCheck && firstcheck.Waits(d.policy, d.facts.Node) && waits == "" {
		waits = d.unproved()
	}
	switch {
	case fault != "":
		d.problem(v, fault+" is a fault")
	case waits == "":
		if v.Kind == visit.FirstCheck && d.policy.FirstCheck != nil {
			d.step.untaint = d.policy.FirstCheck.Taint
		}
		d.healthy(v)
	case !d.now.Before(late):
		d.event(corev1.EventTypeWarning, NodeChecked, "%s has not passed: %s has not been reported since the check", v.Kind, waits)
		d.result(v, ResultFailed)
		d.close(visit.Failed, "%s has not been reported since the check", waits)
	}
}
