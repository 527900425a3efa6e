package repair

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// proving waits until the conditions show what became of the node.
func proving(d *decision, v *visit.Visit) {
	if !v.IsCheck() {
		if v.Kind == visit.Repair && d.facts.QuarantineErr == nil && d.wasReleased(v) {
			passed(d, v)
			return
		}
		if by := d.quarantineEnded(v); by != nil {
			d.interrupt(v, by)
			return
		}
	}
	if d.boot() != v.BootID && v.Kind != visit.Repair {
		failed(d, v, "the node has rebooted after the check")
		return
	}
	soon, late := v.PhaseSince.Add(d.proofTimeout()), v.PhaseSince.Add(3*d.proofTimeout())
	d.requeueAt(soon)
	d.requeueAt(late)
	d.requeue(waitPoll)
	if v.Kind != visit.Repair {
		proveHealthy(d, v, late)
		return
	}
	left := d.causes().After(v)
	if !left.At.IsZero() {
		d.requeueAt(left.At)
	}
	switch {
	case len(left.Names) == 0 && node.IsReady(d.facts.Node):
		passed(d, v)
	case left.Still && !d.now.Before(soon), !d.now.Before(late):
		d.result(v, ResultNotProven)
		what := strings.Join(left.Names, ", ") + " has not cleared"
		if len(left.Names) == 0 {
			what = "the node is not Ready"
		}
		nextAction(d, v, what)
	}
}

// proofTimeout is how long the conditions may take to show what became of the node.
func (s *situation) proofTimeout() time.Duration {
	if s.policy.Repair == nil {
		return policy.DefaultProofTimeout
	}
	return s.policy.Repair.ProofTimeout
}

// passed closes a repair after which the fault has cleared.
func passed(d *decision, v *visit.Visit) {
	if last := d.record.LastAction(v.Quarantine); last != nil {
		last.Proven = true
	}
	d.note(v, breaker.Helped)
	d.event(corev1.EventTypeNormal, RepairSucceeded, "%s has helped: %s has cleared; the repair took %s",
		v.Template, proof.Names(d.facts.Quarantine), d.now.Sub(v.StartedAt).Round(time.Second))
	d.result(v, ResultProven)
	d.close(visit.Passed, "%s has helped", v.Template)
}

// proveHealthy closes a check whose Job has found nothing, once the conditions report the same.
func proveHealthy(d *decision, v *visit.Visit, late time.Time) {
	fault, waits := d.causes().Judge(v)
	if v.Kind == visit.FirstCheck && firstcheck.Waits(d.policy, d.facts.Node) && waits == "" {
		waits = d.unproved()
	}
	switch {
	case fault != "":
		problem(d, v, fault+" is a fault")
	case waits == "":
		healthy(d, v)
	case !d.now.Before(late):
		d.event(corev1.EventTypeWarning, NodeChecked, "%s has not passed: %s has not been reported since the check", v.Kind, waits)
		d.result(v, ResultFailed)
		d.close(visit.Failed, "%s has not been reported since the check", waits)
	}
}

// healthy closes a check that has found nothing.
func healthy(d *decision, v *visit.Visit) {
	if v.Kind == visit.FirstCheck && d.policy.FirstCheck != nil {
		d.step.untaint = d.policy.FirstCheck.Taint
	}
	d.record.Checked = &visit.Checked{At: d.now, BootID: v.BootID, Template: v.Template, Args: v.Args, Quarantine: v.Quarantine}
	d.event(corev1.EventTypeNormal, NodeChecked, "%s has passed: %s", v.Kind, commandOf(v.Template, v.Args))
	d.result(v, ResultHealthy)
	d.record.NoteSwept(v, d.policy.Sweeps, d.now)
	d.close(visit.Passed, "passed")
}
