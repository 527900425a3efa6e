package limits

import (
	"fmt"
	"slices"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Incident is the failure of a domain: nodes of it that have failed together, see [policy.Incidents]. All of them are one unit of each
// limit.
type Incident struct {
	Domain Domain
	// Nodes is how many have failed so far, with the one that asks.
	Nodes int
	// Stands is set if a quarantine has taken another one of them out of service.
	Stands bool

	failed map[*Peer]bool // the others
}

// covers reports whether a peer is one of the nodes, has failed or was quarantined as one.
func (i *Incident) covers(p *Peer) bool { return i != nil && (i.failed[p] || p.incident() == i.Domain) }

// incident is the domain for whose failure a peer is quarantined; the zero value: it is not. Only what this process or one before it has
// decided tells, see [Entry]: a record can be forged.
func (p *Peer) incident() Domain {
	if p.Why != Quarantined || p.Gone {
		return Domain{}
	}
	var latest Start
	for _, s := range p.Starts {
		if !s.Gone && s.At.After(latest.At) {
			latest = s
		}
	}
	return latest.Incident
}

// IncidentOf is the incident in which self takes part, of which Domain and Failed are read; nil: none. why explains that if self has
// failed. d is the policy of its domain.
//
// The nodes themselves show the incident, so nothing is stored: it is over when they show it no longer. That a node has failed is never
// concluded from others. One that lies about itself can only help to make an incident of nodes that corroborate themselves, too.
func (p Peers) IncidentOf(d policy.Domain, self Peer) (found *Incident, why string) {
	if d.Incidents == nil || self.Failed.From.IsZero() || self.Domain == (Domain{}) || p.fleet == nil {
		return nil, ""
	}
	failed, maintained := []*Peer{&self}, p.honoured(nil, self.Failed.From)
	for m := range p.fleet.failed[self.Domain] {
		if m != p.except && !maintained[&m.Peer] {
			failed = append(failed, &m.Peer)
		}
	}
	// No domain is so large: more nodes claim to be in it.
	most := withLiars(d.Incidents.MaxNodes)
	tooMany := fmt.Sprintf("more than %d nodes of %s have failed (incidents.maxNodes and an eighth)", most, self.Domain)
	if len(failed) > most {
		return nil, tooMany
	}
	found = &Incident{Domain: self.Domain}
	together := found.addWaves(d, &self, failed)
	if !found.failed[&self] {
		return nil, fmt.Sprintf("%d of the %d nodes of %s that make an incident have failed within %s",
			together, d.Incidents.MinNodes, self.Domain, d.Window)
	}
	found.Nodes = len(found.failed)
	all, others := found.Nodes, map[Domain]bool{}
	for o := range p.notable(always.Add(-1)) {
		switch of := o.incident(); of {
		case Domain{}:
		case self.Domain:
			if !found.failed[o] {
				all++
			}
		default:
			// Fewer are no incident any more: one node that is not repaired for weeks, or lies, must not use it up.
			if !others[of] && p.ofIncident(of) >= d.Incidents.MinNodes {
				return nil, fmt.Sprintf("the incident of %s is not over, and it is one at a time", of)
			}
			others[of] = true
		}
		found.Stands = found.Stands || found.covers(o) && o.Why == Quarantined
	}
	if all > most {
		return nil, tooMany
	}
	return found, ""
}

// ofIncident counts the nodes that a domain's incident has, or will have: those of which it is decided, and the others that have failed.
func (p Peers) ofIncident(domain Domain) (count int) {
	for o := range p.notable(always.Add(-1)) {
		if o.incident() == domain {
			count++
		}
	}
	for m := range p.fleet.failed[domain] {
		if m != p.except && m.incident() != domain {
			count++
		}
	}
	return count
}

// addWaves adds the nodes that have failed within one window with enough others, and returns how many have with self at most.
func (i *Incident) addWaves(d policy.Domain, self *Peer, failed []*Peer) (most int) {
	i.failed = map[*Peer]bool{}
	for _, first := range failed {
		// The window that begins with this one.
		wave := slices.DeleteFunc(slices.Clone(failed), func(o *Peer) bool {
			return o.Failed.From.Before(first.Failed.From) || o.Failed.Until.Sub(first.Failed.From) > d.Window
		})
		if slices.Contains(wave, self) {
			most = max(most, len(wave))
		}
		if len(wave) < d.Incidents.MinNodes {
			continue
		}
		for _, o := range wave {
			i.failed[o] = true
		}
	}
	return most
}
