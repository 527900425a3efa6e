package quarantine

import (
	"fmt"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// Link is the role of a cause in a broken link of the node's domain; the zero value is none.
type Link struct {
	Role limits.LinkRole `json:"role"`
	// Since is when the faults were first seen in that role. A later message, or a later transition of the condition, does not move it.
	Since time.Time `json:"since"`
	// Origin is the node with the broken link, SwitchSide is set where there are several victims and no origin. Either stays for as long
	// as the cause, whatever becomes of the other nodes. A victim without either has yet to find out.
	Origin     string `json:"origin,omitempty"`
	SwitchSide bool   `json:"switchSide,omitempty"`
}

// isOpen tells of a victim that nothing is found yet.
func (l Link) isOpen() bool { return l.Role == limits.Victim && !l.isFound() }

func (l Link) isFound() bool { return l.Origin != "" || l.SwitchSide }

// String is what was found, as the end of a sentence; empty: nothing.
func (l Link) String() string {
	switch {
	case l.Origin != "":
		return "; taken for a consequence of the broken link of node " + l.Origin
	case l.SwitchSide:
		return "; there are several such faults and no broken link of a GPU, so the switches are suspect and no GPU is to be reset"
	}
	return ""
}

// The faults of a broken NVLink (real incident: marin-community/marin#8934; NVIDIA's catalogue of Xids). The texts are those of package
// internal/xid.
var (
	// brokenLink is an Xid 149, or another NVLink error that calls a link fatal. An Xid 145 is about the remote end of a link.
	brokenLink = regexp.MustCompile(`^Xid (149 |(144|146|147|148|150) .*\b(?i:fatal) on link [0-9])`)
	// notFatal takes out what only seems to match: the word of the line for an error without consequence.
	notFatal = regexp.MustCompile(`(?i)\bnon-?fatal\b`)
	// causedByLink is an error at the remote end of a link, or the end of a channel for one.
	causedByLink = regexp.MustCompile(`^Xid (145 |45 .*, caused by Xid (145|149)\b)`)
)

// linkRole is the role of the faults that a condition reports. One that breaks a link makes an origin, and only a node all of whose
// faults may be consequences is a victim.
func linkRole(c corev1.NodeCondition) limits.LinkRole {
	if c.Type != conditions.GPUXidError {
		return ""
	}
	m, err := conditions.ParseMessage(c.Message)
	if err != nil {
		return ""
	}
	isOrigin := func(p conditions.Part) bool { return brokenLink.MatchString(p.Text) && !notFatal.MatchString(p.Text) }
	isConsequence := func(p conditions.Part) bool { return causedByLink.MatchString(p.Text) }
	switch {
	case slices.ContainsFunc(m.Parts, isOrigin):
		return limits.Origin
	case slices.ContainsFunc(m.Parts, func(p conditions.Part) bool { return !isConsequence(p) }):
		return ""
	}
	return limits.Victim
}

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
	if i < 0 || r.Causes[i].Link.Role != limits.Victim || !r.Causes[i].Link.isFound() {
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

// isOnlyHeld tells whether the node is quarantined as a victim: its jobs go on. The record must have a taint.
func (r *Record) isOnlyHeld() bool {
	return r.Taint.HeldFor != "" || r.Taint.Repair <= conditions.Inspect && r.Decisive().Link.isFound()
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
		link.SwitchSide = link.SwitchSide || subjects(p.condition.Message) >= switchSideVictims
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

// subjects counts what a message of ours names.
func subjects(message string) int {
	m, err := conditions.ParseMessage(message)
	if err != nil {
		return 0
	}
	names := map[string]bool{}
	for _, part := range m.Parts {
		names[part.Subject] = true
	}
	return len(names)
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
		role := linkRole(c)
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
	var closest limits.Span
	for _, a := range ports {
		for _, b := range others {
			pair := limits.Span{From: a, Until: b}
			if b.Before(a) {
				pair = limits.Span{From: b, Until: a}
			}
			if apart := pair.Until.Sub(pair.From); apart <= d.Window && (closest.From.IsZero() || apart < closest.Until.Sub(closest.From)) {
				closest = pair
			}
		}
	}
	return closest
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
