package quarantine

import (
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// judgeLinks finds out for each victim whose broken link it is. A node that is quarantined for the repair of its own fault already stays
// as it is.
func (d *decider) judgeLinks() {
	if len(d.policy.Domains) == 0 {
		return
	}
	changed := false
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		p, isProblem := d.conditions.Problems[c.Condition]
		if !isProblem || c.Link.Role != limits.Victim || d.record.IsRepaired(c) {
			continue
		}
		if c.Link.Origin == "" {
			found, again := d.findOrigin(c, p)
			d.next.RequeueAt(again)
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

// forgetOrigins has the victims of a suspicion judged anew whose origin shows no broken link any more. It was never quarantined, or is
// gone: what it showed for a moment would hold them back for as long as they are faulty. The result reports whether there are any.
func (d *decider) forgetOrigins() (forgotten bool) {
	if d.record == nil || d.record.Phase != causes.Suspect {
		return false
	}
	domain, configured := d.policy.Domain(d.domain.Label)
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		rule, _ := d.policy.Rule(c.Rule)
		fault := d.record.LinkFault(c, rule.Observe)
		if c.Link.Origin != "" && (!configured || !d.observed.Peers.IsOriginOf(c.Link.Origin, domain, d.domain, fault)) {
			c.Link.Origin, forgotten = "", true
		}
	}
	return forgotten
}

// findOrigin is the link of a victim with what the other nodes of its domain, or the other GPUs of its board, tell about it. again is when
// they may tell more. An origin that shows only after the window, by our clock, is none: whoever claims to be one later could end the
// quarantine of victims by ending its own.
func (s *situation) findOrigin(c *causes.Cause, p causes.Problem) (link causes.Link, again time.Time) {
	link = c.Link
	fault := s.record.LinkFault(c, p.Rule.Observe)
	domain, configured := s.policy.Domain(s.domain.Label)
	if !configured || s.observed.Peers.AreTooMany(domain, s.domain, fault) {
		link.SwitchSide = link.SwitchSide || units.Subjects(p.Condition.Message) >= causes.SwitchSideVictims
		return link, time.Time{}
	}
	// A record is written some time after its decision, and read after that.
	if s.now.Sub(fault.Seen) <= domain.Window+causes.Recheck {
		again = s.now.Add(causes.Recheck)
		if link.Origin = s.observed.Peers.OriginOf(domain, s.domain, fault); link.Origin != "" {
			link.SwitchSide = false
			return link, again
		}
	}
	if settled := c.FirstSeen.Add(domain.Settle); s.now.Before(settled) {
		return link, settled
	}
	link.SwitchSide = link.SwitchSide || 1+s.observed.Peers.VictimsBeside(domain, s.domain, fault) >= causes.SwitchSideVictims
	return link, again
}

// unit is the node as the limits need it, with what fails as one with it, for a problem.
func (s *situation) unit(p causes.Problem) limits.Unit {
	u := limits.Unit{Self: s.self(p), Origin: p.Link.Origin}
	u.Incident, u.WhyNone = s.incident(p)
	return u
}

func (s *situation) self(p causes.Problem) limits.Peer {
	self := limits.Peer{Labels: s.observed.Node.Labels, Domain: s.domain}
	if i := slices.IndexFunc(s.record.Causes, func(c causes.Cause) bool { return c.Condition == p.Condition.Type }); i >= 0 {
		self.Link = s.record.LinkFault(&s.record.Causes[i], p.Rule.Observe)
	}
	return self
}

// incident is the incident as a part of which the node is to be quarantined for a problem; nil: it is not. The problem must be of a
// witness, and of the same time. why explains that the node is in none although it has failed.
func (s *situation) incident(p causes.Problem) (incident *limits.Incident, why string) {
	domain, configured := s.policy.Domain(s.domain.Label)
	if !configured || domain.Incidents == nil || p.Link.Origin != "" || limits.IsSoft(p.Rule.Taint.Effect) ||
		p.Reach.Extent != isolate.WholeNode || !p.IsReady() && conditions.WitnessOf(string(p.Condition.Type)) == "" {
		return nil, ""
	}
	failed := peers.FailedSince(s.policy, s.observed.Node, s.record, s.domain, s.conditions.IsCurrent)
	since := p.Condition.LastTransitionTime.Time
	if since.Sub(failed.From).Abs() > domain.Window || since.Sub(failed.Until).Abs() > domain.Window {
		return nil, ""
	}
	if incident, why = s.observed.Peers.IncidentOf(domain, limits.Peer{Domain: s.domain, Failed: failed}); incident == nil {
		return nil, why
	}
	for _, other := range s.conditions.Problems {
		isPorts := conditions.WitnessOf(string(other.Condition.Type)) == conditions.FabricPorts
		if isPorts && limits.Correlated(s.policy, other.Condition, s.self(other), s.observed.Peers.Beside(incident)) != "" {
			return nil, fmt.Sprintf("ports are down in other domains than %s, too", s.domain)
		}
	}
	return incident, ""
}
