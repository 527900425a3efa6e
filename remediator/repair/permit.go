package repair

import (
	"fmt"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// forbidden says why the present policy lets no action of a visit to a quarantined node begin; empty: it does. Every action asks, not only
// the first of a visit: since then the rules may only observe, or ask for a person. What a person has approved is one quarantine.
func (d *decider) forbidden(v *visit.Visit, q *causes.Record) string {
	if v.Kind == visit.Validation && d.requested(visit.RequestRelease) {
		return "" // a person has asked for it
	}
	if q == nil {
		return "the quarantine record of the node cannot be read"
	}
	for i := range q.Causes {
		if c := &q.Causes[i]; c.Due {
			if why := notEnforced(d.policy, c.Rule); why != "" {
				return why
			}
		}
	}
	if v.Kind == visit.Repair && v.ApprovedBy == "" && needsApproval(d.policy.Repair, q) {
		return "no person has approved it for this quarantine"
	}
	return ""
}

// heldAction says why an action is held that failed on several nodes in a row; empty: it is not.
func (f Facts) heldAction(template string) string {
	for _, action := range breaker.ActionsFor(template, f.Quarantine) {
		if failed, held := f.Held[action]; held {
			return fmt.Sprintf("%s has failed on %d nodes in a row; `kubectl pitcrew reset` goes on", action, failed)
		}
	}
	return ""
}

// note notes the outcome of the action of a repair for each condition that it is for.
func (s *Step) note(v *visit.Visit, q *causes.Record, outcome breaker.Outcome) {
	if v.Kind != visit.Repair || v.Template == "" {
		return
	}
	for _, action := range breaker.ActionsFor(v.Template, q) {
		s.Notes = append(s.Notes, Note{action, outcome})
	}
}

// notEnforced says why a rule acts on no node; empty: it does.
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

// needsApproval reports whether a repair begins only when a person asks for it. p may be nil.
func needsApproval(p *policy.Repair, q *causes.Record) bool {
	return p == nil || p.Mode != policy.RepairAuto || isManual(q)
}
