// Package actions decides which action of the policy is next for a quarantined node, and whether it may be done. It is pure.
package actions

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const day = 24 * time.Hour

// Plan is what actions follow from. Quarantine may be nil for [Plan.Next] and [Plan.Lemon].
type Plan struct {
	proof.View
	Record *visit.Record
	// Earlier are the starts of repairs on nodes of this name that the record does not have.
	Earlier starts.Ring
}

// Next returns the next action of a class for a quarantine; false: none is left. It comes after the last one of the list that was done for
// the quarantine, or skipped by the visit or before one that was done, so that a milder one never follows.
func (p Plan) Next(quarantineID string, class conditions.Repair) (policy.Check, bool) {
	list := p.list(class)
	done := map[string]int{}
	count := func(templates ...string) {
		for _, template := range templates {
			done[template]++
		}
	}
	for _, a := range p.Record.Repairs {
		if a.Quarantine == quarantineID {
			count(a.Template)
			count(a.Skipped...)
		}
	}
	if v := p.Record.Current; v != nil && v.Quarantine == quarantineID {
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

func (p Plan) list(class conditions.Repair) []policy.Check {
	switch {
	case p.Policy.Repair == nil:
		return nil
	case class == conditions.ResetGPU:
		return p.Policy.Repair.Actions.ResetGPU
	case class == conditions.Reboot:
		return p.Policy.Repair.Actions.Reboot
	}
	return nil
}

// Due returns the action that the quarantine needs now; why reports that it needs none, or gets none.
func (p Plan) Due() (action policy.Check, why string) {
	class, why := p.Class()
	if why != "" {
		return action, why
	}
	action, left := p.Next(p.Quarantine.ID, class)
	switch {
	case p.Policy.Repair.Mode == policy.RepairOff:
		return action, "repair.mode is off"
	case !left:
		return action, fmt.Sprintf("no action for class %s is left", class)
	}
	return action, p.Lemon()
}

// Lemon reports that the node was repaired too often; empty: it was not.
func (p Plan) Lemon() string {
	if p.Policy.Repair == nil || p.Policy.Repair.Lemon.Repairs == 0 {
		return ""
	}
	l := p.Policy.Repair.Lemon
	count := p.Earlier.Count(p.Node, p.Now.Add(-l.Window))
	for _, a := range p.Record.Repairs {
		if p.Now.Sub(a.At) < l.Window {
			count++
		}
	}
	if count < l.Repairs {
		return ""
	}
	window := l.Window.String()
	if l.Window >= day && l.Window%day == 0 {
		window = fmt.Sprintf("%d days", l.Window/day)
	}
	return fmt.Sprintf("repair.lemon reached: %d repairs in %s did not fix the node", count, window)
}

// Advice returns what the visits so far recommend for the quarantine; empty: nothing.
func (p Plan) Advice() (do, why string) {
	q, class := p.Quarantine, proof.WorstClass(p.Quarantine)
	_, left := p.Next(q.ID, class)
	exhausted := !left && len(p.list(class)) > 0
	_, healthy := p.Class()
	switch last := p.Record.LastVisit(q.ID, visit.Repair); {
	case p.Record.Validated(p.Node, q, p.Now):
		return visit.AdviseReturn, "the validation has passed"
	case proof.NeedsReplacement(q):
		return visit.AdviseReplace, "a cause is of class Replace"
	case class == 0:
		return "", ""
	case p.Lemon() != "":
		return visit.AdviseReplace, p.Lemon()
	case last != nil && last.Phase == visit.Failed && exhausted:
		return visit.AdviseReplace, "no repair has helped: " + last.Outcome
	case last != nil && exhausted && healthy == "":
		return visit.AdviseReplace, "the fault is back after every repair"
	case class == conditions.Reboot:
		return visit.AdviseReboot, "the worst cause is of class Reboot"
	}
	return "", ""
}

// Forbidden returns why the present policy lets no action of a visit to a quarantined node begin; empty: it does. Every action asks, not
// only the first of a visit: since then the rules may only observe, or ask for a person. What a person has approved is one quarantine.
func (p Plan) Forbidden(v *visit.Visit) string {
	if request := p.Record.Request; v.Kind == visit.Validation && request != nil && request.Kind == visit.RequestRelease {
		return "" // a person has asked for it
	}
	if p.Quarantine == nil {
		return "the quarantine record of the node cannot be read"
	}
	for i := range p.Quarantine.Causes {
		if c := &p.Quarantine.Causes[i]; c.Due {
			if why := notEnforced(p.Policy, c.Rule); why != "" {
				return why
			}
		}
	}
	if v.Kind == visit.Repair && v.ApprovedBy == "" && p.NeedsApproval() {
		return "no person has approved it for this quarantine"
	}
	return ""
}

// notEnforced returns why a rule acts on no node; empty: it does.
func notEnforced(p *policy.Policy, name string) string {
	rule, found := p.Rule(name)
	switch {
	case name == policy.ByHand && p.Observe:
		return "the policy has mode: observe"
	case name == policy.ByHand:
		return ""
	case !found:
		return fmt.Sprintf("the policy has no rule %s any more", name)
	case rule.Observe:
		return fmt.Sprintf("rule %s only observes", name)
	}
	return ""
}

// NeedsApproval reports whether a repair begins only when a person asks for it. A node that a person has quarantined is left to people.
func (p Plan) NeedsApproval() bool {
	return p.Policy.Repair == nil || p.Policy.Repair.Mode != policy.RepairAuto ||
		slices.ContainsFunc(p.Quarantine.Causes, func(c causes.Cause) bool { return c.Rule == policy.ByHand })
}

// GivenUp returns the repair or the validation that has failed for the quarantine of a node, if the node now waits for a person; nil: it
// does not. A person who has stopped the visit, has asked for another one, or has switched repairs off knows.
func GivenUp(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record) *visit.Visit {
	if q = proof.Standing(n, q); q == nil || p.Repair == nil || r == nil || r.Current != nil || r.Stopped == q.ID ||
		r.Request != nil && r.Request.Quarantine == q.ID {
		return nil
	}
	for i := range r.Last {
		v := &r.Last[i]
		if v.Quarantine == q.ID && (v.Kind == visit.Repair || v.Kind == visit.Validation) {
			if v.Phase != visit.Failed || v.Kind == visit.Repair && p.Repair.Mode == policy.RepairOff {
				return nil
			}
			return v
		}
	}
	return nil
}
