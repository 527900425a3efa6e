package causes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// Link is that of package units, as the record has it.
type Link = units.Link

// updateLink notes the role of a cause when it is first seen. An origin stays one: what remains after a repair may be consequences
// alone.
func (a *Assessment) updateLink(c *Cause, p Problem) {
	switch {
	case p.Role == "":
		c.Link = Link{}
	case c.Link.Role == limits.Origin, c.Link.Role == p.Role:
	case len(a.Policy.Domains) > 0:
		since := a.since(p.Condition)
		if since.IsZero() {
			since = a.Now
		}
		c.Link = Link{Role: p.Role, Since: since, Seen: a.Now}
	default:
		c.Link = Link{}
	}
}

// LinkFault is the role of a cause as the limits of others need it.
func (q *Quarantine) LinkFault(c *Cause, observed bool) limits.LinkFault {
	f := limits.LinkFault{Role: c.Link.Role, Since: c.Link.Since, Seen: c.Link.Seen, Observed: observed}
	if f.Role != "" && f.Seen.IsZero() {
		f.Seen = c.FirstSeen
	}
	f.Held = q.Phase == Quarantined && f.Role == limits.Victim && q.IsOnlyHeld()
	return f
}

// held is a problem as what was found about its cause makes it: a victim is neither repaired nor are its jobs restarted.
func (r *Record) held(p Problem) Problem {
	if r == nil || r.Phase == Released || p.Role != limits.Victim {
		return p
	}
	i := slices.IndexFunc(r.Causes, func(c Cause) bool { return c.Condition == p.Condition.Type })
	if i < 0 || r.Causes[i].Link.Role != limits.Victim || !r.Causes[i].Link.IsFound() {
		return p
	}
	p.Link, p.Class = r.Causes[i].Link, min(p.Class, conditions.Inspect)
	rule := &p.Rule
	rule.RestartJobs, rule.CheckpointGrace = false, 0
	// Nothing is handed off but what keeps jobs and autoscalers away: other controllers would repair the node.
	rule.HandOff = policy.HandOff{Annotations: policy.KeepNode, Cordon: rule.HandOff.Cordon}
	if rule.Taint.Effect == corev1.TaintEffectNoExecute {
		rule.Taint = corev1.Taint{Key: conditions.TaintUnhealthy, Value: string(p.Condition.Type), Effect: corev1.TaintEffectNoSchedule}
	}
	return p
}

// IsOnlyHeld reports whether the node is quarantined as a victim: its jobs go on. The record must have a taint.
func (q *Quarantine) IsOnlyHeld() bool {
	return q.Taint.HeldFor != "" || q.Taint.Repair <= conditions.Inspect && q.Decisive().Link.IsFound()
}

// SwitchSideVictims is how many victims without an origin point at the switches: nodes of a domain, or GPUs of a node that is in none.
// A single one may have a broken link of its own.
const SwitchSideVictims = 2

// IsRepaired reports whether the node is quarantined for the repair of a cause.
func (q *Quarantine) IsRepaired(c *Cause) bool {
	return q.Phase == Quarantined && q.Taint.Rule == c.Rule && q.Taint.Repair > conditions.Inspect
}

// DomainOf is the domain of a node, see [policy.Domain]; the zero value: it is in none. remembered is its domain before it lost the
// label, as far as that is known.
func DomainOf(p *policy.Policy, n *corev1.Node, remembered limits.Domain) limits.Domain {
	if len(p.Domains) == 0 {
		return limits.Domain{}
	}
	record, err := RecordOf(n)
	if err != nil {
		record = nil
	}
	return DomainIn(p, n, record, remembered)
}

// DomainIn is [DomainOf]. r is the record of the node, or nil. While the node has a fault, its domain is that from before: a label may
// change when the fabric is faulty, and then the node would leave the others of its wave, or it may be forged to join another one.
func DomainIn(p *policy.Policy, n *corev1.Node, r *Record, remembered limits.Domain) limits.Domain {
	isFaulty := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		rule, _, matches := p.Match(n.Labels, c)
		return matches && !rule.AlertOnly
	})
	for _, d := range p.Domains {
		inRecord := r != nil && r.NodeUID == n.UID && r.Domain.Label == d.Label
		switch value := n.Labels[d.Label]; {
		case inRecord && !r.Closed():
			return r.Domain
		case isFaulty && remembered.Label == d.Label:
			return remembered
		case value != "":
			return limits.Domain{Label: d.Label, Value: value}
		case remembered.Label == d.Label:
			return remembered
		case inRecord:
			return r.Domain
		}
	}
	return limits.Domain{}
}
