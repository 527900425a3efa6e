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
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// WaitsForProof is the reason of a [Waiting] for a condition that nothing on the node reports, waitsForApproval of one for a person.
const WaitsForProof, waitsForApproval = "proof", "approval"

// begin decides whether a visit begins.
func (d *decider) begin() {
	if d.facts.QuarantineErr != nil {
		return
	}
	q := d.standing()
	d.dropRequest(q)
	if q == nil {
		d.beginCheck()
		return
	}
	if d.policy.Repair == nil {
		return
	}
	stopped := d.record.Stopped == q.ID
	if (!stopped || d.requested(visit.RequestRelease)) && !d.beginValidation(q) && !stopped {
		d.beginRepair(q)
	}
	if d.record.Current == nil {
		d.advise(q)
	}
}

// beginCheck decides whether a sweep or a first check begins on a node that is not quarantined.
func (d *decider) beginCheck() {
	if firstcheck.Waits(d.policy, d.facts.Node) {
		d.beginFirstCheck()
		return
	}
	d.beginSweep()
}

// standing is the quarantine that takes the node out of service; nil: none does, or its taint is not on the node, or the taint only
// asks the scheduler to avoid the node, or the quarantine isolates single GPUs and leaves the node in service. A kubelet can forge the
// record but not the taint.
func (d *decider) standing() *causes.Record { return standing(d.facts.Node, d.facts.Quarantine) }

func standing(n *corev1.Node, q *causes.Record) *causes.Record {
	if q == nil || q.NodeUID != n.UID || q.Phase != causes.Quarantined || limits.IsSoft(q.Taint.Effect) || q.IsIsolated() {
		return nil
	}
	for _, t := range n.Spec.Taints {
		if t.Key == q.Taint.Key && t.Effect == q.Taint.Effect {
			return q
		}
	}
	return nil
}

// dropRequest forgets a request for a quarantine that does not stand any more, and one to stop what is not under way. That the repair
// was stopped is remembered as long as the quarantine is: its taint may be missing for a moment.
func (d *decider) dropRequest(q *causes.Record) {
	if last := d.facts.Quarantine; last == nil || last.ID != d.record.Stopped {
		d.record.Stopped = ""
	}
	r := d.record.Request
	if r == nil || r.Kind == visit.RequestCheck {
		return
	}
	if !slices.Contains([]string{visit.RequestRepair, visit.RequestStop, visit.RequestRelease}, r.Kind) {
		d.refuse("a request of kind %.40q is of a later version of Pitcrew", r.Kind)
		return
	}
	if q == nil || r.Quarantine != q.ID {
		d.record.Request = nil
	}
}

// requested tells whether a person asks for it.
func (d *decider) requested(kind string) bool {
	return d.record.Request != nil && d.record.Request.Kind == kind
}

// refuse tells a person why what they asked for is not done.
func (d *decider) refuse(format string, args ...any) {
	d.event(corev1.EventTypeWarning, RepairRefused, format, args...)
	d.record.Request = nil
}

// beginValidation begins a validation if the quarantine needs one now, and tells whether it does.
func (d *decider) beginValidation(q *causes.Record) bool {
	boot := d.facts.Node.Status.NodeInfo.BootID
	validated := boot == "" || d.record.Validated(d.facts.Node, q, d.now)
	if d.requested(visit.RequestRelease) {
		if why := d.cannotRelease(q, validated); why != "" {
			d.refuse("not released: %s; `kubectl pitcrew release %s --without-validation` releases the node", why, d.facts.Node.Name)
		}
	}
	requested := d.requested(visit.RequestRelease)
	if validated {
		return requested // the engine releases the node now
	}
	if d.policy.Repair.Validate == nil || !requested && (!d.awaitsValidation(q) || d.validationFailed(q, boot)) {
		return false
	}
	d.tryOpen(visit.Visit{Kind: visit.Validation, Quarantine: q.ID})
	return true
}

// cannotRelease says why no validation leads to the release that a person asks for; empty: one does. The request must not keep the
// repair from beginning.
func (d *decider) cannotRelease(q *causes.Record, validated bool) string {
	switch {
	case d.policy.Repair.Validate == nil:
		return "the policy has no repair.validate, so the node cannot be validated"
	case !quarantine.NeedsValidation(d.policy, &q.Quarantine):
		return "no rule of the quarantine has validate: true"
	case !validated:
		return ""
	}
	for i := range q.Causes {
		if c := &q.Causes[i]; c.Due && d.shows(c, q.Boot.Seen.Truncate(time.Second)) == faulty {
			return fmt.Sprintf("the validation has passed, but %s has not cleared", c.Condition)
		}
	}
	return ""
}

// awaitsValidation tells whether every cause has cleared and the rule of one asks for a validation.
func (d *decider) awaitsValidation(q *causes.Record) bool {
	for i := range q.Causes {
		c := &q.Causes[i]
		if !c.Due {
			continue
		}
		if d.stateOf(q, c) != cleared || c.Repair == conditions.Replace || q.ManualReleaseOnly {
			return false
		}
		if settled := c.HealthySince.Add(firstcheck.SettleTime(c.Condition)); d.now.Before(settled) {
			d.requeueAt(settled)
			return false
		}
	}
	return quarantine.NeedsValidation(d.policy, &q.Quarantine)
}

// validationFailed tells whether a validation for the quarantine has failed in this boot and nothing was repaired since.
func (d *decider) validationFailed(q *causes.Record, boot string) bool {
	v := d.record.LastVisit(q.ID, visit.Repair, visit.Validation)
	return v != nil && v.Kind == visit.Validation && v.Phase == visit.Failed && v.BootID == boot
}

// beginRepair begins a repair if the quarantine needs one now and may get it.
func (d *decider) beginRepair(q *causes.Record) {
	repair, requested := d.policy.Repair, d.requested(visit.RequestRepair)
	class, why := d.classOf(q)
	if why == "" && repair.Mode == policy.RepairOff {
		why = "repair.mode is off"
	}
	var action policy.Check
	if why == "" {
		var left bool
		if action, left = d.nextAction(q.ID, class); !left {
			why = fmt.Sprintf("no action for class %s is left", class)
		}
	}
	if why == "" {
		why = d.lemon()
	}
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
	if requested {
		v.ApprovedBy = d.record.Request.User
	} else {
		if last := d.record.LastVisit(q.ID, visit.Repair); last != nil && last.Phase == visit.Failed {
			return
		}
		if needsApproval(repair, q) {
			d.waitFor(waitsForApproval,
				"%s is next for %s; it waits for `kubectl pitcrew repair %s --approve`", action.Template, causeNames(q), d.facts.Node.Name)
			return
		}
	}
	if d.needs(Needs{Breaker: true}) {
		return
	}
	if why := d.facts.heldAction(action.Template); why != "" {
		d.waitFor("breaker", "%s waits: %s", v.Kind, why)
		return
	}
	if d.tryOpen(v) && requested {
		d.record.Request = nil
	}
}

// isManual tells whether a person has quarantined the node.
func isManual(q *causes.Record) bool {
	for _, c := range q.Causes {
		if c.Rule == policy.ByHand {
			return true
		}
	}
	return false
}

// tryOpen begins a visit to a quarantined node, or notes what it waits for. It is false while facts are missing.
func (d *decider) tryOpen(v visit.Visit) bool {
	if why := d.forbidden(&v, d.facts.Quarantine); why != "" {
		d.waitFor("policy", "%s waits: %s", v.Kind, why)
		return false
	}
	if why := d.held(); why != "" {
		d.waitFor("held", "%s waits: %s", v.Kind, why)
		return false
	}
	if !node.IsReady(d.facts.Node) {
		d.waitFor("ready", "%s waits until the node is Ready", v.Kind)
		return false
	}
	needs := Needs{Peers: true}
	if v.Kind == visit.Validation {
		needs.Template = d.policy.Repair.Validate.Template
	}
	if d.needs(needs) || d.step.Needs.Any() {
		return false
	}
	if t := d.facts.Template; v.Kind == visit.Validation && t != nil {
		if why := firstcheck.Unproven(d.policy, d.facts.Node, t); why != "" {
			d.waitFor(WaitsForProof, "%s waits: %s", v.Kind, why)
			return false
		}
	}
	if why := exceeded(d.policy.Repair, v, d.facts.Node, d.record, d.facts.Peers, d.now); why != "" {
		d.waitFor("limits", "%s waits: %s", v.Kind, why)
		return false
	}
	d.open(v)
	return true
}

// nextAction is the next action for a class; false: none is left. It comes after the last one of the list that was done for the
// quarantine, or skipped by the visit or before one that was done, so that a milder one never follows.
func (d *decider) nextAction(quarantineID string, class conditions.Repair) (policy.Check, bool) {
	list := d.actions(class)
	done := map[string]int{}
	count := func(templates ...string) {
		for _, template := range templates {
			done[template]++
		}
	}
	for _, a := range d.record.Repairs {
		if a.Quarantine == quarantineID {
			count(a.Template)
			count(a.Skipped...)
		}
	}
	if v := d.record.Current; v != nil && v.Quarantine == quarantineID {
		count(v.Skipped...)
	}
	next := 0
	for i, action := range list {
		if done[action.Template] > 0 {
			done[action.Template]--
			next = i + 1
		}
	}
	if next >= len(list) {
		return policy.Check{}, false
	}
	return list[next], true
}

func (d *decider) actions(class conditions.Repair) []policy.Check {
	switch {
	case d.policy.Repair == nil:
		return nil
	case class == conditions.ResetGPU:
		return d.policy.Repair.Actions.ResetGPU
	case class == conditions.Reboot:
		return d.policy.Repair.Actions.Reboot
	}
	return nil
}

// lemon says that the node was repaired too often; empty: it was not.
func (d *decider) lemon() string {
	if d.policy.Repair == nil || d.policy.Repair.Lemon.Repairs == 0 {
		return ""
	}
	l := d.policy.Repair.Lemon
	count := d.facts.Earlier.Count(d.facts.Node, d.now.Add(-l.Window))
	for _, a := range d.record.Repairs {
		if d.now.Sub(a.At) < l.Window {
			count++
		}
	}
	if count < l.Repairs {
		return ""
	}
	return fmt.Sprintf("repair.lemon reached: %d repairs in %s did not fix the node", count, days(l.Window))
}

func days(d time.Duration) string {
	if d >= day && d%day == 0 {
		return fmt.Sprintf("%d days", d/day)
	}
	return d.String()
}

// advise keeps the advice for the quarantine up to date while no visit is under way.
func (d *decider) advise(q *causes.Record) {
	do, why := d.advice(q)
	if a := d.record.Advice; a != nil && a.Quarantine == q.ID && a.Do == do {
		return
	}
	d.record.Advice = nil
	if do != "" {
		d.record.Advice = &visit.Advice{Quarantine: q.ID, Do: do, Why: causes.Clip(why, conditions.MaxMessage), At: d.now}
	}
}

func (d *decider) advice(q *causes.Record) (do, why string) {
	class := worstAction(q)
	switch last := d.record.LastVisit(q.ID, visit.Repair); {
	case d.record.Validated(d.facts.Node, q, d.now):
		return visit.AdviseReturn, "the validation has passed"
	case needsReplacement(q):
		return visit.AdviseReplace, "a cause is of class Replace"
	case class == 0:
		return "", ""
	case d.lemon() != "":
		return visit.AdviseReplace, d.lemon()
	case last != nil && last.Phase == visit.Failed && d.exhausted(q, class):
		return visit.AdviseReplace, "no repair has helped: " + last.Outcome
	case last != nil && d.exhausted(q, class) && d.stillFaulty(q):
		return visit.AdviseReplace, "the fault is back after every repair"
	case class == conditions.Reboot:
		return visit.AdviseReboot, "the worst cause is of class Reboot"
	}
	return "", ""
}

// stillFaulty tells whether a cause that actions are for is there for sure.
func (d *decider) stillFaulty(q *causes.Record) bool {
	_, why := d.classOf(q)
	return why == ""
}

// exhausted tells whether there were actions for a class and none is left.
func (d *decider) exhausted(q *causes.Record, class conditions.Repair) bool {
	_, left := d.nextAction(q.ID, class)
	return !left && len(d.actions(class)) > 0
}
