package repair

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// WaitsForProof is the reason of a [Waiting] for a condition that nothing on the node reports, waitsForApproval of one for a person.
const WaitsForProof, waitsForApproval = "proof", "approval"

// AwaitsApproval reports whether the repair of a node waits for a person to approve it.
func AwaitsApproval(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record, now time.Time) bool {
	if p.Repair == nil || proof.Standing(n, q) == nil || r != nil && r.Current != nil {
		return false // the step of a visit under way needs its Job
	}
	waits := Next(p, Facts{Node: n, Record: r, Quarantine: q}, now).Waits
	return waits != nil && waits.Reason == waitsForApproval
}

// begin opens a visit if one is due and may begin.
func begin(d *decision) {
	if d.facts.QuarantineErr != nil {
		return
	}
	q := d.standing()
	dropRequest(d, q)
	switch {
	case q != nil && d.policy.Repair != nil:
		beginOnQuarantined(d, q)
	case q != nil:
	case firstcheck.Waits(d.policy, d.facts.Node):
		beginFirstCheck(d)
	default:
		beginSweep(d)
	}
}

// dropRequest forgets a request for a quarantine that does not stand any more, and one to stop what is not under way. That the repair
// was stopped is remembered as long as the quarantine is: its taint may be missing for a moment.
func dropRequest(d *decision, q *causes.Record) {
	if last := d.facts.Quarantine; last == nil || last.ID != d.record.Stopped {
		d.record.Stopped = ""
	}
	switch r := d.record.Request; {
	case r == nil || r.Kind == visit.RequestCheck:
	case !slices.Contains([]string{visit.RequestRepair, visit.RequestStop, visit.RequestRelease}, r.Kind):
		d.refuse("a request of kind %.40q is of a later version of Pitcrew", r.Kind)
	case q == nil || r.Quarantine != q.ID:
		d.record.Request = nil
	}
}

// beginOnQuarantined opens a validation or a repair if the quarantine needs one now.
func beginOnQuarantined(d *decision, q *causes.Record) {
	validated := d.boot() == "" || d.record.Validated(d.facts.Node, q, d.now)
	if d.requested(visit.RequestRelease) {
		if why := d.cannotRelease(q, validated); why != "" {
			d.refuse("not released: %s; `kubectl pitcrew release %s --without-validation` releases the node", why, d.facts.Node.Name)
		}
	}
	release, stopped := d.requested(visit.RequestRelease), d.record.Stopped == q.ID
	awaits, at := d.causes().AwaitsValidation()
	if !at.IsZero() {
		d.requeueAt(at)
	}
	switch {
	case release && validated: // the engine releases the node now
	case stopped && !release:
	case d.policy.Repair.Validate != nil && !validated && (release || awaits && !d.record.ValidationFailed(q.ID, d.boot())):
		tryOpen(d, visit.Visit{Kind: visit.Validation, Quarantine: q.ID}, d.policy.Repair.Validate.Template)
	case !stopped:
		beginRepair(d, q)
	}
	if d.record.Current == nil {
		advise(d, q)
	}
}

// cannotRelease returns why no validation leads to the release that a person asks for; empty: one does. The request must not keep the
// repair from beginning.
func (s *situation) cannotRelease(q *causes.Record, validated bool) string {
	switch {
	case s.policy.Repair.Validate == nil:
		return "the policy has no repair.validate, so the node cannot be validated"
	case !quarantine.NeedsValidation(s.policy, &q.Quarantine):
		return "no rule of the quarantine has validate: true"
	case !validated:
		return ""
	}
	view := s.causes()
	if faulty := view.Faulty(view.Shows); faulty != "" {
		return fmt.Sprintf("the validation has passed, but %s has not cleared", faulty)
	}
	return ""
}

// beginRepair opens a repair if the quarantine needs one now and may get it.
func beginRepair(d *decision, q *causes.Record) {
	requested := d.requested(visit.RequestRepair)
	action, why := d.plan().Due()
	if why == "" && requested && d.record.Request.User == "" {
		why = "the request names no person"
	}
	if why != "" {
		if requested {
			d.refuse("not repaired: %s", why)
		}
		return
	}
	v := visit.Visit{Kind: visit.Repair, Quarantine: q.ID}
	switch last := d.record.LastVisit(q.ID, visit.Repair); {
	case requested:
		v.ApprovedBy = d.record.Request.User
	case last != nil && last.Phase == visit.Failed:
		return
	case d.plan().NeedsApproval():
		d.waitFor(waitsForApproval, "%s is next for %s; it waits for `kubectl pitcrew repair %s --approve`",
			action.Template, proof.Names(q), d.facts.Node.Name)
		return
	}
	if tryOpen(d, v, action.Template) && requested {
		d.record.Request = nil
	}
}

// tryOpen opens a visit to a quarantined node, or notes what it waits for. It returns whether the visit is open.
func tryOpen(d *decision, v visit.Visit, template string) bool {
	if !d.tryGate(&v, template) {
		return false
	}
	if d.facts.Live == nil {
		d.step.NeedsLive = true
		return false
	}
	if t := d.facts.Live.Templates[template]; v.Kind == visit.Validation && t != nil {
		if why := firstcheck.Unproven(d.policy, d.facts.Node, t); why != "" {
			d.waitFor(WaitsForProof, "%s waits: %s", v.Kind, why)
			return false
		}
	}
	if why := peers.Exceeded(d.policy.Repair, v, d.facts.Node, d.record, d.facts.Live.Peers, d.now); why != "" {
		d.waitFor("limits", "%s waits: %s", v.Kind, why)
		return false
	}
	openVisit(d, v)
	return true
}

// tryGate returns whether the gate lets a visit begin on a node that is Ready, or notes what the visit waits for.
func (d *decision) tryGate(v *visit.Visit, template string) bool {
	at := d.gate(v, template)
	switch {
	case at.reason == byOthers:
		at.reason = byHold
	case at.reason == "" && !node.IsReady(d.facts.Node):
		at = barrier{"ready", "the node is not Ready"}
	}
	if at.reason != "" {
		d.waitFor(at.reason, "%s waits: %s", v.Kind, at.why)
	}
	return at.reason == ""
}

// advise keeps the advice for the quarantine up to date while no visit is under way.
func advise(d *decision, q *causes.Record) {
	do, why := d.plan().Advice()
	if a := d.record.Advice; a != nil && a.Quarantine == q.ID && a.Do == do {
		return
	}
	d.record.Advice = nil
	if do != "" {
		d.record.Advice = &visit.Advice{Quarantine: q.ID, Do: do, Why: causes.Clip(why, conditions.MaxMessage), At: d.now}
	}
}
