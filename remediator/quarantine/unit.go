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
		c.Link = Link{Role: p.role, Since: since}
	default:
		c.Link = Link{}
	}
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
func (r *Record) isOnlyHeld() bool {
	return r.Taint.HeldFor != "" || r.Taint.Repair <= conditions.Inspect && r.Decisive().Link.IsFound()
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
		if !isProblem || c.Link.Role != limits.Victim || c.Link.Origin != "" || d.record.isRepaired(c) {
			continue
		}
		found, settled := d.findOrigin(c, p)
		d.next.requeueAt(settled)
		if found != c.Link {
			c.Link, c.Repair, changed = found, min(c.Repair, conditions.Inspect), true
		}
	}
	if changed {
		d.find()
	}
}

// isRepaired reports whether the node is quarantined for the repair of a cause.
func (q *Quarantine) isRepaired(c *Cause) bool {
	return q.Phase == Quarantined && q.Taint.Rule == c.Rule && q.Taint.Repair > conditions.Inspect
}

// findOrigin is the link of a victim with what the other nodes of its domain, or the other GPUs of its board, tell about it. settled is
// when they tell it, if that is still to come.
func (s *situation) findOrigin(c *Cause, p problem) (link Link, settled time.Time) {
	link = c.Link
	fault := limits.LinkFault{Role: limits.Victim, Since: c.Link.Since, Observed: p.rule.Observe}
	domain, configured := s.policy.Domain(s.domain.Label)
	if !configured {
		link.SwitchSide = link.SwitchSide || units.Subjects(p.condition.Message) >= switchSideVictims
		return link, time.Time{}
	}
	if link.Origin = s.observed.Peers.OriginOf(domain, s.domain, fault); link.Origin != "" {
		link.SwitchSide = false
		return link, time.Time{}
	}
	if settled = c.FirstSeen.Add(domain.Settle); s.now.Before(settled) {
		return link, settled
	}
	link.SwitchSide = link.SwitchSide || 1+s.observed.Peers.VictimsBeside(domain, s.domain, fault) >= switchSideVictims
	return link, time.Time{}
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
				return limits.LinkFault{Role: c.Link.Role, Since: c.Link.Since, Observed: rule.Observe}
			}
		}
	}
	for _, c := range n.Status.Conditions {
		role := units.RoleOf(c)
		if role == "" || !takesPart {
			continue
		}
		if rule, _, matches := p.Match(n.Labels, c); matches && !rule.AlertOnly {
			return limits.LinkFault{Role: role, Since: c.LastTransitionTime.UTC(), Observed: rule.Observe}
		}
	}
	return limits.LinkFault{}
}

// isWorkedOn tells of a node that its faults may be those of planned work: it is maintained, or others have cordoned it.
func isWorkedOn(n *corev1.Node, r *Record) bool {
	return node.MarkedMaintained(n) || n.Spec.Unschedulable && (r == nil || r.HandOff == nil || !r.HandOff.Cordon)
}

// failedSince is when two independent witnesses on a node of a domain, the fabric ports and one more, have begun to say that the node has
// failed; the zero value: they do not. Of several such pairs it is the one whose conditions began closest together. isCurrent tells
// whether a condition that matches a rule counts now.
//
// A driver, a rollout of it or its detector can be wrong about many nodes at once, and makes conditions of many types. A rollout that
// restarts the nodes makes them not Ready, too. Neither takes down the ports of the fabric, so these must have failed.
func failedSince(
	p *policy.Policy, n *corev1.Node, r *Record, domain limits.Domain, isCurrent func(corev1.NodeCondition, policy.Rule) bool,
) limits.Span {
	d, configured := p.Domain(domain.Label)
	if !configured || d.Incidents == nil || isWorkedOn(n, r) || node.DeletionTaint(n) != "" ||
		r != nil && r.Phase == Released && r.ManualReleaseActive {
		return limits.Span{}
	}
	var ports, others []time.Time
	for _, c := range n.Status.Conditions {
		witness := conditions.WitnessOf(string(c.Type))
		rule, _, matches := p.Match(n.Labels, c)
		switch acts := matches && !rule.AlertOnly && !rule.Observe && isCurrent(c, rule); {
		case c.Type == corev1.NodeReady:
			if _, notReady := node.NotReady(n); notReady && (acts || !matches) && !node.NeverReady(n, c) {
				others = append(others, c.LastTransitionTime.UTC())
			}
		case !acts:
		case witness == conditions.FabricPorts:
			ports = append(ports, c.LastTransitionTime.UTC())
		case witness != "":
			others = append(others, c.LastTransitionTime.UTC())
		}
	}
	return units.Closest(ports, others, d.Window)
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
		link := s.record.Causes[i].Link
		self.Link = limits.LinkFault{Role: link.Role, Since: link.Since, Observed: p.rule.Observe}
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

// domainOf is [DomainOf]. r is the record of the node, or nil. The domain in an open record comes before the labels: a label may change
// when the fabric is faulty, and then the node would leave the others of its wave.
func domainOf(p *policy.Policy, n *corev1.Node, r *Record, remembered limits.Domain) limits.Domain {
	for _, d := range p.Domains {
		inRecord := r != nil && r.NodeUID == n.UID && r.Domain.Label == d.Label
		switch value := n.Labels[d.Label]; {
		case inRecord && !r.closed():
			return r.Domain
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
