package quarantine

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// Link is that of package units, as the record has it.
type Link = units.Link

// updateLink notes the role of a cause when it is first seen. An origin stays one: what remains after a repair may be consequences
// alone.
func (a *assessment) updateLink(c *Cause, p problem) {
	switch {
	case p.role == "":
		c.Link = Link{}
	case c.Link.Role == limits.Origin, c.Link.Role == p.role:
	case len(a.policy.Domains) > 0:
		since := a.since(p.condition)
		if since.IsZero() {
			since = a.now
		}
		c.Link = Link{Role: p.role, Since: since, Seen: a.now}
	default:
		c.Link = Link{}
	}
}

// linkFault is the role of a cause as the limits of others need it.
func (q *Quarantine) linkFault(c *Cause, observed bool) limits.LinkFault {
	f := limits.LinkFault{Role: c.Link.Role, Since: c.Link.Since, Seen: c.Link.Seen, Observed: observed}
	if f.Role != "" && f.Seen.IsZero() {
		f.Seen = c.FirstSeen
	}
	f.Held = q.Phase == Quarantined && f.Role == limits.Victim && q.isOnlyHeld()
	return f
}

// held is a problem as what was found about its cause makes it: a victim is neither repaired nor are its jobs restarted.
func (r *Record) held(p problem) problem {
	if r == nil || r.Phase == Released || p.role != limits.Victim {
		return p
	}
	i := slices.IndexFunc(r.Causes, func(c Cause) bool { return c.Condition == p.condition.Type })
	if i < 0 || r.Causes[i].Link.Role != limits.Victim || !r.Causes[i].Link.IsFound() {
		return p
	}
	p.link, p.class = r.Causes[i].Link, min(p.class, conditions.Inspect)
	rule := &p.rule
	rule.RestartJobs, rule.CheckpointGrace = false, 0
	// Nothing is handed off but what keeps jobs and autoscalers away: other controllers would repair the node.
	rule.HandOff = policy.HandOff{Annotations: policy.KeepNode, Cordon: rule.HandOff.Cordon}
	if rule.Taint.Effect == corev1.TaintEffectNoExecute {
		rule.Taint = corev1.Taint{Key: conditions.TaintUnhealthy, Value: string(p.condition.Type), Effect: corev1.TaintEffectNoSchedule}
	}
	return p
}

// isOnlyHeld reports whether the node is quarantined as a victim: its jobs go on. The record must have a taint.
func (q *Quarantine) isOnlyHeld() bool {
	return q.Taint.HeldFor != "" || q.Taint.Repair <= conditions.Inspect && q.Decisive().Link.IsFound()
}

// switchSideVictims is how many victims without an origin point at the switches: nodes of a domain, or GPUs of a node that is in none.
// A single one may have a broken link of its own.
const switchSideVictims = 2

// judgeLinks finds out for each victim whose broken link it is. A node that is quarantined for the repair of its own fault already stays
// as it is.
func (d *decider) judgeLinks() {
	if len(d.policy.Domains) == 0 {
		return
	}
	changed := false
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		p, isProblem := d.conditions.problems[c.Condition]
		if !isProblem || c.Link.Role != limits.Victim || d.record.isRepaired(c) {
			continue
		}
		if c.Link.Origin == "" {
			found, again := d.findOrigin(c, p)
			d.next.requeueAt(again)
			if found != c.Link {
				c.Link, c.Repair, changed = found, min(c.Repair, conditions.Inspect), true
			}
		}
		holdFor(d.record, c, d.observed.Peers)
	}
	if changed {
		d.find()
	}
}

// holdFor notes that a victim is held for its origin once that one is quarantined: only then can the end of that release it. A victim that
// had a place of its own gives it back.
func holdFor(r *Record, c *Cause, peers limits.Peers) {
	if origin := c.Link.Origin; origin != "" && r.Phase == Quarantined && r.isOnlyHeld() && peers.IsTainted(origin) {
		r.Taint.HeldFor = origin
	}
}

// isRepaired reports whether the node is quarantined for the repair of a cause.
func (q *Quarantine) isRepaired(c *Cause) bool {
	return q.Phase == Quarantined && q.Taint.Rule == c.Rule && q.Taint.Repair > conditions.Inspect
}

// findOrigin is the link of a victim with what the other nodes of its domain, or the other GPUs of its board, tell about it. again is when
// they may tell more. An origin that shows only after the window, by our clock, is none: whoever claims to be one later could end the
// quarantine of victims by ending its own.
func (s *situation) findOrigin(c *Cause, p problem) (link Link, again time.Time) {
	link = c.Link
	fault := s.record.linkFault(c, p.rule.Observe)
	domain, configured := s.policy.Domain(s.domain.Label)
	if !configured || s.observed.Peers.AreTooMany(domain, s.domain, fault) {
		link.SwitchSide = link.SwitchSide || units.Subjects(p.condition.Message) >= switchSideVictims
		return link, time.Time{}
	}
	// A record is written some time after its decision, and read after that.
	if s.now.Sub(fault.Seen) <= domain.Window+recheck {
		again = s.now.Add(recheck)
		if link.Origin = s.observed.Peers.OriginOf(domain, s.domain, fault); link.Origin != "" {
			link.SwitchSide = false
			return link, again
		}
	}
	if settled := c.FirstSeen.Add(domain.Settle); s.now.Before(settled) {
		return link, settled
	}
	link.SwitchSide = link.SwitchSide || 1+s.observed.Peers.VictimsBeside(domain, s.domain, fault) >= switchSideVictims
	return link, again
}

// linkOf is the role of a node for others. A node that is being worked on, or that others have cordoned, is no victim: its faults may be
// those of the work.
func linkOf(p *policy.Policy, n *corev1.Node, r *Record) limits.LinkFault {
	if len(p.Domains) == 0 || r != nil && r.Phase == Released && r.ManualReleaseActive {
		return limits.LinkFault{}
	}
	takesPart := !isWorkedOn(n, r)
	if r != nil && r.NodeUID == n.UID && !r.closed() {
		for _, c := range r.Causes {
			rule, known := p.Rule(c.Rule)
			if known && c.Link.Role != "" && c.HealthySince.IsZero() && (takesPart || c.Link.Role == limits.Origin) {
				return r.linkFault(&c, rule.Observe)
			}
		}
	}
	for _, c := range n.Status.Conditions {
		// Since when the node is an origin counts by the time at which we have seen it, which a record has.
		if units.RoleOf(c) != limits.Victim || !takesPart {
			continue
		}
		if rule, _, matches := p.Match(n.Labels, c); matches && !rule.AlertOnly {
			return limits.LinkFault{Role: limits.Victim, Since: c.LastTransitionTime.UTC(), Observed: rule.Observe}
		}
	}
	return limits.LinkFault{}
}

// isWorkedOn tells of a node that its faults may be those of planned work: it is maintained, or others have cordoned it.
func isWorkedOn(n *corev1.Node, r *Record) bool {
	return node.MarkedMaintained(n) || n.Spec.Unschedulable && (r == nil || r.HandOff == nil || !r.HandOff.Cordon)
}

// failedSince is [units.FailedSince] of a node in its domain; the zero value if its faults may be those of planned work.
func failedSince(
	p *policy.Policy, n *corev1.Node, r *Record, domain limits.Domain, isCurrent func(corev1.NodeCondition, policy.Rule) bool,
) limits.Span {
	d, configured := p.Domain(domain.Label)
	if !configured || d.Incidents == nil || isWorkedOn(n, r) || node.DeletionTaint(n) != "" ||
		r != nil && r.Phase == Released && r.ManualReleaseActive {
		return limits.Span{}
	}
	return units.FailedSince(p, n, d.Window, isCurrent)
}

// unit is the node as the limits need it, with what fails as one with it, for a problem.
func (s *situation) unit(p problem) limits.Unit {
	u := limits.Unit{Self: s.self(p), Origin: p.link.Origin}
	u.Incident, u.WhyNone = s.incident(p)
	return u
}

func (s *situation) self(p problem) limits.Peer {
	self := limits.Peer{Labels: s.observed.Node.Labels, Domain: s.domain}
	if i := slices.IndexFunc(s.record.Causes, func(c Cause) bool { return c.Condition == p.condition.Type }); i >= 0 {
		self.Link = s.record.linkFault(&s.record.Causes[i], p.rule.Observe)
	}
	return self
}

// incident is the incident as a part of which the node is to be quarantined for a problem; nil: it is not. The problem must be of a
// witness, and of the same time. why explains that the node is in none although it has failed.
func (s *situation) incident(p problem) (incident *limits.Incident, why string) {
	domain, configured := s.policy.Domain(s.domain.Label)
	if !configured || domain.Incidents == nil || p.link.Origin != "" || limits.IsSoft(p.rule.Taint.Effect) ||
		p.reach.Extent != isolate.WholeNode || !p.isReady() && conditions.WitnessOf(string(p.condition.Type)) == "" {
		return nil, ""
	}
	failed := failedSince(s.policy, s.observed.Node, s.record, s.domain, s.conditions.isCurrent)
	since := p.condition.LastTransitionTime.Time
	if since.Sub(failed.From).Abs() > domain.Window || since.Sub(failed.Until).Abs() > domain.Window {
		return nil, ""
	}
	if incident, why = s.observed.Peers.IncidentOf(domain, limits.Peer{Domain: s.domain, Failed: failed}); incident == nil {
		return nil, why
	}
	for _, other := range s.conditions.problems {
		isPorts := conditions.WitnessOf(string(other.condition.Type)) == conditions.FabricPorts
		if isPorts && limits.Correlated(s.policy, other.condition, s.self(other), s.observed.Peers.Beside(incident)) != "" {
			return nil, fmt.Sprintf("ports are down in other domains than %s, too", s.domain)
		}
	}
	return incident, ""
}

// ofIncident says that the node is quarantined as a part of an incident, if it is.
func ofIncident(i *limits.Incident) string {
	if i == nil {
		return ""
	}
	return fmt.Sprintf("; one of %d nodes or more of %s that have failed together, which use up one place of each limit", i.Nodes, i.Domain)
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
	return domainOf(p, n, record, remembered)
}

// domainOf is [DomainOf]. r is the record of the node, or nil. While the node has a fault, its domain is that from before: a label may
// change when the fabric is faulty, and then the node would leave the others of its wave, or it may be forged to join another one.
func domainOf(p *policy.Policy, n *corev1.Node, r *Record, remembered limits.Domain) limits.Domain {
	isFaulty := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		rule, _, matches := p.Match(n.Labels, c)
		return matches && !rule.AlertOnly
	})
	for _, d := range p.Domains {
		inRecord := r != nil && r.NodeUID == n.UID && r.Domain.Label == d.Label
		switch value := n.Labels[d.Label]; {
		case inRecord && !r.closed():
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
