package limits

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Domain is a group of nodes that share a part which can fail under all of them: those with the same value of a label. The zero value
// is none.
type Domain struct {
	Label string `json:"label" max:"317"`
	Value string `json:"value" max:"63"`
}

// String is the domain as a label selector writes it.
func (d Domain) String() string { return d.Label + "=" + d.Value }

// LinkRole is the part of a node in the faults that one broken link makes in a domain.
type LinkRole string

// The roles. A node without one has the empty role.
const (
	// Origin is a node with the broken link.
	Origin LinkRole = "origin"
	// Victim is a node all of whose faults are such as the broken link of another node causes.
	Victim LinkRole = "victim"
)

// LinkFault is the role of a node; the zero value is none.
type LinkFault struct {
	Role LinkRole
	// Since is when its faults began in that role by the clock of the node, Seen when we saw them first; zero: no record tells it.
	Since, Seen time.Time
	// Observed is set when the rule for its faults only observes.
	Observed bool
	// Held is set for a victim that is quarantined as one.
	Held bool
}

// pairs reports whether two faults may be of the same broken link: they began within the window by the clocks of the nodes, and we have
// seen both within it. A rule that only observes decides nothing for one that acts.
func (f LinkFault) pairs(other LinkFault, window time.Duration) bool {
	areSeen := !f.Seen.IsZero() && !other.Seen.IsZero()
	return f.Since.Sub(other.Since).Abs() <= window && (!areSeen || f.Seen.Sub(other.Seen).Abs() <= window) && (f.Observed || !other.Observed)
}

// OriginOf is the name of the node whose broken link explains the faults of a victim in a domain; empty: none does. Of several it is
// the one whose fault is closest in time, then the first by name.
func (p Peers) OriginOf(d policy.Domain, domain Domain, victim LinkFault) string {
	var found *Peer
	apart := func(o *Peer) time.Duration { return o.Link.Since.Sub(victim.Since).Abs() }
	for o := range p.inDomain(domain, Origin) {
		if victim.pairs(o.Link, d.Window) && (found == nil || cmp.Or(cmp.Compare(apart(o), apart(found)), cmp.Compare(o.Name, found.Name)) < 0) {
			found = o
		}
	}
	if found == nil {
		return ""
	}
	return found.Name
}

// IsOriginOf reports whether the broken link of the node of a name explains the faults of a victim in a domain. Another one may be closer
// in time: that takes no origin away that was found.
func (p Peers) IsOriginOf(name string, d policy.Domain, domain Domain, victim LinkFault) bool {
	o := p.named(name)
	return o != nil && !o.Gone && o.Domain == domain && o.Link.Role == Origin && victim.pairs(o.Link, d.Window)
}

// VictimsBeside counts the other victims of a domain whose faults may be of the same broken link as those of one.
func (p Peers) VictimsBeside(d policy.Domain, domain Domain, victim LinkFault) (count int) {
	for o := range p.inDomain(domain, Victim) {
		if victim.pairs(o.Link, d.Window) {
			count++
		}
	}
	return count
}

// IsQuarantined reports whether the node of a name is a peer, and a quarantine has taken it out of service.
func (p Peers) IsQuarantined(name string) bool {
	o := p.named(name)
	return o != nil && o.Why == Quarantined && !o.Gone
}

// HasReturned reports whether the record of the node of a name tells that a quarantine had taken it out of service and has ended. That
// there is no such Node, that it was created anew or is left alone proves nothing: its kubelet may have made it too large.
func (p Peers) HasReturned(name string) bool {
	o := p.named(name)
	return o != nil && o.Why != Quarantined && !o.Gone && slices.ContainsFunc(o.Starts, func(s Start) bool { return !s.Gone && !s.Soft })
}

// IsTainted is [Peers.IsQuarantined] of a node on which more than its record tells of that.
func (p Peers) IsTainted(name string) bool {
	o := p.named(name)
	return p.IsQuarantined(name) && slices.ContainsFunc(o.Starts, func(s Start) bool { return s.Proven && !s.Gone && !s.Soft })
}

// maxDomain is how many nodes a domain has at most: those of the largest rack that one NVLink fabric joins.
const maxDomain = 72

// withLiars is how many nodes may claim to be one of so many: a kubelet can write the label of its node, and one that does must not make a
// domain too large for all of its nodes.
func withLiars(most int) int { return most + max(1, most/8) }

// AreTooMany reports whether more nodes claim to be of one domain, or of the broken link of a fault, than can be. A label that most nodes
// of a cluster have names no domain, and one broken link would close them all with one place of each limit.
func (p Peers) AreTooMany(d policy.Domain, domain Domain, fault LinkFault) bool {
	most := maxDomain
	if d.Incidents != nil {
		most = d.Incidents.MaxNodes
	}
	there := p.in(domain.Label, map[string]string{domain.Label: domain.Value})
	nodes := 1 + p.VictimsBeside(d, domain, fault)
	if fault.Role == Victim {
		nodes++ // its origin
	}
	return nodes > withLiars(most) || 1+there.checked+there.unchecked > withLiars(max(most, maxDomain))
}

// inDomain are the peers of a domain with a role.
func (p Peers) inDomain(domain Domain, role LinkRole) func(yield func(*Peer) bool) {
	return func(yield func(*Peer) bool) {
		for o := range p.notable(always.Add(-1)) {
			if o.Domain == domain && o.Link.Role == role && !o.Gone && !yield(o) {
				return
			}
		}
	}
}

// named is the peer of a name; nil: there is none.
func (p Peers) named(name string) *Peer {
	if p.fleet == nil || p.fleet.members[name] == nil || p.fleet.members[name] == p.except {
		return nil
	}
	return &p.fleet.members[name].Peer
}

// explained tells of a peer whether it says nothing about the detector: it is of the domain of the incident of self, or the broken link of
// another node, which may be self, explains its condition.
func explained(p *policy.Policy, self Peer, condition corev1.NodeConditionType, peers Peers) func(*Peer) bool {
	origins := map[Domain][]LinkFault{}
	if len(p.Domains) > 0 && condition == conditions.GPUXidError {
		if self.Link.Role == Origin {
			origins[self.Domain] = append(origins[self.Domain], self.Link)
		}
		for o := range peers.notable(always.Add(-1)) {
			if o.Link.Role == Origin && !o.Gone {
				origins[o.Domain] = append(origins[o.Domain], o.Link)
			}
		}
	}
	return func(peer *Peer) bool {
		if u := peers.unit; u != nil && u.Incident != nil && peer.Domain == u.Incident.Domain {
			return true
		}
		d, _ := p.Domain(peer.Domain.Label)
		isOfOrigin := func(o LinkFault) bool { return peer.Link.pairs(o, d.Window) }
		return peer.Link.Role == Victim && slices.ContainsFunc(origins[peer.Domain], isOfOrigin)
	}
}
