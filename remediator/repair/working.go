package repair

import (
	"cmp"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/pods"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// working follows the Job of the attempt to its end.
func working(d *decision, v *visit.Visit) {
	before := *v
	work(d, v)
	if v.Phase == visit.Emptying {
		endFirst(d, v, &before)
	}
}

func work(d *decision, v *visit.Visit) {
	if q := d.facts.Quarantine; d.facts.QuarantineErr == nil && v.Quarantine != "" &&
		(q == nil || q.ID != v.Quarantine || q.Phase != causes.Quarantined) {
		d.stop("stopped: the quarantine was ended by a person")
		return
	}
	if why := d.yieldsTo(v); why != "" {
		yield(d, v, why)
		return
	}
	late := !d.now.Before(v.Deadline)
	d.requeueAt(v.Deadline)
	d.requeue(workPoll)
	if d.hasRebooted(v) {
		inNewBoot(d, v, late)
		return
	}
	v.JobUID = cmp.Or(v.JobUID, d.facts.Created)
	switch state, start := d.job(v), v.PhaseSince.Add(job.StartTimeout); {
	case state.Ended:
		jobEnded(d, v, state, late)
	case state.Missing:
		create(d, v)
	case late && !node.IsReady(d.facts.Node):
		nodeMissing(d, v)
	case late:
		failed(d, v, "its Job has not ended in time")
	case !state.Started && !d.now.Before(start):
		notStarted(d, v, state.Waiting)
	case v.JobUID == "":
		v.JobUID = d.facts.Job.UID
	case !state.Started:
		d.requeueAt(start)
	}
}

// yieldsTo returns why a sweep ends: a pod waits for the node, or has come to it, or the node is taken out of service; empty: it goes on.
func (s *situation) yieldsTo(v *visit.Visit) string {
	switch {
	case v.Kind != visit.Sweep:
		return ""
	case s.facts.Awaited != "":
		return fmt.Sprintf("pod %s could run on the node", s.facts.Awaited)
	case s.standing() != nil:
		return "the node is quarantined"
	}
	for _, pod := range s.facts.Live.Pods {
		if pod.Namespace != s.facts.Namespace && sweep.HoldsAccelerator(&pod) {
			return fmt.Sprintf("pod %s/%s has come to the node", pod.Namespace, pod.Name)
		}
	}
	return ""
}

// yield ends a sweep because the node is needed. That is no result.
func yield(d *decision, v *visit.Visit, why string) {
	d.event(corev1.EventTypeNormal, SweepYielded, "%s yields: %s", v.Name(), why)
	d.result(v, ResultYielded)
	d.close(visit.Yielded, "yielded: %s", why)
}

// inNewBoot decides what follows from a reboot: that of a repair was what it is for.
func inNewBoot(d *decision, v *visit.Visit, late bool) {
	switch ready := node.IsReady(d.facts.Node); {
	case ready && v.Kind == visit.Repair:
		jobFinished(d, v, "in a new boot")
	case ready:
		failed(d, v, "the node has rebooted during the check")
	case late:
		nodeMissing(d, v)
	}
}

// create has the Job created, unless something has come between the record of the attempt and its Job.
func create(d *decision, v *visit.Visit) {
	leaving := operator.Leaving(v.Pauses, d.facts.Node, d.facts.Live.Pods)
	if !d.now.Before(v.PhaseSince.Add(job.StartTimeout)) {
		why := cmp.Or(d.facts.JobProblem, d.facts.Live.TemplateProblems[v.Template])
		if why == "" && len(leaving) > 0 {
			why = pods.Names(leaving, "has not ended although its label is paused", "have not ended although their labels are paused")
		}
		notStarted(d, v, cmp.Or(why, "the Job could not be created"))
		return
	}
	if at := d.gate(v, v.Template); at.reason != "" {
		retryLater(d, v, at.why)
		return
	}
	if settled := v.PhaseSince.Add(settleTaint); v.Kind == visit.Sweep && d.now.Before(settled) {
		d.requeueAt(settled)
		return
	}
	if len(leaving) > 0 {
		d.waitFor("operator", "%s waits for the GPU operator: %s", v.Kind, pods.Names(leaving, "has not ended", "have not ended"))
		d.requeue(endPoll)
		return
	}
	if blocking := d.inTheWay(v.Reboots); len(blocking) > 0 {
		retryLater(d, v, pods.Names(blocking, "has come to the node", "have come to the node"))
		return
	}
	template, why := d.template(v.Template)
	switch {
	case template == nil:
		d.waitFor("template", "%s waits: %s", v.Kind, why)
	case !job.AskedFor(d.policy, template, d.facts.Node, v):
		notStarted(d, v, fmt.Sprintf("the policy and the template do not ask for arguments %q, or not any more", v.Args))
	default:
		d.step.Create = job.New(template, d.facts.Node, v, d.facts.Namespace)
	}
}

// retryLater goes back to before the attempt, of which nothing was done. A check yields: another one follows in time.
func retryLater(d *decision, v *visit.Visit, why string) {
	if v.IsCheck() {
		yield(d, v, why)
		return
	}
	d.forgetAction(v)
	v.Retry(d.now)
	v.Outcome = "waits: " + why
}

// jobEnded decides what follows from the end of a Job.
func jobEnded(d *decision, v *visit.Visit, job job.State, late bool) {
	switch {
	case job.Rejected:
		notStarted(d, v, job.Waiting)
	case v.Reboots && !job.Refused() && !job.Says(repairresult.Failed):
		// Whatever became of the Job, only a new boot shows that the node has rebooted.
		switch {
		case late && !node.IsReady(d.facts.Node):
			nodeMissing(d, v)
		case late && job.Message != "":
			failed(d, v, "the node has not rebooted in time: "+job.Message)
		case late:
			failed(d, v, "the node has not rebooted in time")
		}
	case job.Refused() && v.IsCheck():
		d.event(corev1.EventTypeWarning, RepairRefused, "%s was refused on the node: %s", v.Name(), job.Message)
		d.result(v, ResultRefused)
		d.close(visit.Refused, "refused: %s", job.Message)
	case job.Refused():
		refused(d, v, job.Message)
	case job.Succeeded() && v.Kind == visit.Repair, job.Says(repairresult.Healthy):
		jobFinished(d, v, job.Message)
	case job.Says(repairresult.Problem):
		problem(d, v, job.Message)
	default:
		failed(d, v, job.Why())
	}
}

// jobFinished goes on to the proof.
func jobFinished(d *decision, v *visit.Visit, outcome string) {
	v.Phase, v.PhaseSince, v.JobEndedAt, v.Deadline = visit.Proving, d.now, d.now, time.Time{}
	v.Outcome = causes.Clip("waits for the conditions after "+v.Template+": "+outcome, conditions.MaxMessage)
	d.requeue(waitPoll)
}

// refused waits and tries again: a precondition of the program was not met.
func refused(d *decision, v *visit.Visit, why string) {
	d.event(corev1.EventTypeWarning, RepairRefused, "%s was refused on the node: %s", v.Template, why)
	d.result(v, ResultRefused)
	retry := d.now.Add(refusedRetry)
	switch {
	case d.policy.Repair == nil || retry.Before(v.ActionSince.Add(d.emptyTimeout())):
		d.forgetAction(v)
		v.Retry(d.now)
		v.RetryAt, v.Outcome = retry, causes.Clip("refused: "+why, conditions.MaxMessage)
	case v.Kind == visit.Repair && d.policy.Repair.NextIfRefused:
		if nextAction(d, v, "refused: "+why); d.record.Current == nil {
			d.forgetAction(v) // it was the last action: a person may ask for it again, and nothing shows that it does not help
		}
	default:
		d.close(visit.Failed, "refused: %s", why)
		d.forgetAction(v)
	}
}

// notStarted gives the visit up: nothing was done to the node, and a heavier action would not start either.
func notStarted(d *decision, v *visit.Visit, why string) {
	d.forgetAction(v)
	d.event(corev1.EventTypeWarning, endReason(v.Kind), "%s: the Job of template %s has not started: %s", v.Kind, v.Template, why)
	d.result(v, ResultNotStarted)
	d.close(visit.Failed, "the Job of template %s has not started: %s", v.Template, why)
}

// nodeMissing closes the visit to a node that does not come back.
func nodeMissing(d *decision, v *visit.Visit) {
	d.event(corev1.EventTypeWarning, endReason(v.Kind),
		"%s: the node has not come back within %s after %s; only its provider or a person can help",
		v.Kind, d.now.Sub(v.PhaseSince).Round(time.Second), v.Template)
	d.result(v, ResultFailed)
	d.close(visit.Failed, "the node has not come back after %s; its provider or a person must help", v.Template)
}

// failed decides what follows an attempt that has failed: the next action of a repair, a second try of a check.
func failed(d *decision, v *visit.Visit, why string) {
	d.result(v, ResultFailed)
	if v.Kind == visit.Repair {
		nextAction(d, v, why)
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
	v.BootID = d.boot() // in which it is not tried again
	d.event(corev1.EventTypeWarning, NodeChecked,
		"%s could not run: %s; `kubectl pitcrew release %s --without-validation` returns the node without it", v.Kind, why, d.facts.Node.Name)
	d.close(visit.Failed, "could not run: %s", why)
}

// problem closes a check that has found a fault. The plugins report it, and the rules of the policy decide what follows.
func problem(d *decision, v *visit.Visit, why string) {
	d.event(corev1.EventTypeWarning, NodeChecked, "%s has found a fault: %s", v.Kind, why)
	d.result(v, ResultProblem)
	d.record.NoteSwept(v, d.policy.Sweeps, d.now)
	d.close(visit.Failed, "found a fault: %s", why)
}

// nextAction goes on to the next action of a repair, or closes it after the last one.
func nextAction(d *decision, v *visit.Visit, why string) {
	if d.policy.Repair == nil {
		d.close(visit.Yielded, "%s has not helped: %s; the policy does not repair any more", v.Template, why)
		return
	}
	plan := d.plan()
	action, left := plan.Next(v.Quarantine, proof.WorstClass(d.facts.Quarantine))
	if stop := plan.Lemon(); left && stop != "" {
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
