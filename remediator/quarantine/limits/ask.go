package limits

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// What holds a quarantine back; the values of [Refusal.By].
const (
	ByOrigin   = "origin"
	BySuspect  = "detector-suspect"
	ByBudget   = "budget"
	ByBreaker  = "breaker"
	noIncident = "; it is no failure of the domain: "
)

// Unit is the node that is to be quarantined, and what fails as one with it: the nodes whose faults come from one broken link, or those of
// a domain that have failed together. They have one place of each limit.
type Unit struct {
	// Self is the node, of which Labels, Domain and Link are read.
	Self Peer
	// Origin is the node whose broken link has made the faults of the node; empty: it is quarantined for its own.
	Origin string
	// Incident is the failure of its domain; nil: none. WhyNone explains that if the node has failed with others.
	Incident *Incident
	WhyNone  string

	window time.Duration // within which victims belong to the broken link of the node; zero: none does
}

// covers reports whether a peer needs no place beside the node: both are of one incident, or it is held already for the broken link of the
// node, as one of several victims without an origin. nil covers none.
func (u *Unit) covers(o *Peer) bool {
	switch {
	case u == nil:
		return false
	case u.Incident != nil:
		return u.Incident.covers(o)
	}
	return u.window > 0 && o.Link.Held && o.Domain == u.Self.Domain && o.Link.pairs(u.Self.Link, u.window)
}

// Beside are the peers as an incident sees them: its own nodes hold it back no more than itself. nil: no incident.
func (p Peers) Beside(i *Incident) Peers { return p.besideUnit(Unit{Incident: i}) }

func (p Peers) besideUnit(u Unit) Peers {
	p.unit = &u
	return p
}

// besideAsker are the peers as the unit of a question sees them.
func (p Peers) besideAsker(q Question) Peers {
	u := q.Unit
	domain, configured := q.Policy.Domain(u.Self.Domain.Label)
	if configured && u.Self.Link.Role == Origin && !p.AreTooMany(domain, u.Self.Domain, u.Self.Link) {
		u.window = domain.Window
	}
	return p.besideUnit(u)
}

// Question is about the quarantine of a node for a condition, or about the change of the one that it has.
type Question struct {
	Policy    *policy.Policy
	Condition corev1.NodeCondition
	Rule      policy.Rule
	Held      Held
	Unit      Unit
	Breaker   *BreakerState
}

// Refusal is a limit that holds a quarantine back, and why.
type Refusal struct{ By, Why string }

// Answer is what the limits say.
type Answer struct {
	// Refusal is empty if nothing holds the quarantine back. Too are the other limits that do.
	Refusal
	Too []Refusal
	// ForOthers is set if what other nodes show decides.
	ForOthers bool
	// Opened is the new state of a breaker that opens; RetryAt is when one may let the quarantine through.
	Opened  *BreakerState
	RetryAt time.Time
}

// Ask asks all limits. A victim of a broken link needs no place: it waits for the quarantine of its origin, and has that one's.
func (p Peers) Ask(q Question, now time.Time) Answer {
	if q.Unit.Origin != "" {
		return p.askOrigin(q)
	}
	incident, beside := q.Unit.Incident, p.besideAsker(q)
	budget := func() string { return ExceededBudget(q.Policy, q.Held, q.Rule, q.Unit.Self.Labels, beside, now) }
	// The breaker is only about nodes that are taken out of service.
	breaker := func() (t Trip) {
		if q.Held.TakesOut(q.Rule) {
			t = TripBreaker(q.Policy.Breaker, q.Breaker, beside, now)
		}
		return t
	}
	a := p.AskGuard(q)
	if a.By != "" {
		a.also(ByBudget, budget())
	} else if why := budget(); why != "" {
		a.Refusal = Refusal{ByBudget, why}
	} else if incident == nil || !incident.Stands {
		if trip := breaker(); trip.Reason != "" {
			a.Refusal, a.Opened, a.RetryAt = Refusal{ByBreaker, trip.Reason}, trip.Opened, trip.RetryAt
		}
		return a
	}
	if a.By != "" && q.Breaker != nil {
		a.also(ByBreaker, breaker().Reason)
	}
	return a
}

// AskGuard asks the guard against common causes alone.
func (p Peers) AskGuard(q Question) (a Answer) {
	why := Correlated(q.Policy, q.Condition, q.Unit.Self, p.Beside(q.Unit.Incident))
	if why == "" {
		return Answer{}
	}
	if q.Unit.WhyNone != "" {
		why, a.ForOthers = why+noIncident+q.Unit.WhyNone, true
	}
	a.Refusal = Refusal{BySuspect, why}
	return a
}

// askOrigin is the answer about a victim. What its record says of the origin is not enough, because a record can be forged.
func (p Peers) askOrigin(q Question) Answer {
	a, self := Answer{ForOthers: true}, q.Unit.Self
	domain, configured := q.Policy.Domain(self.Domain.Label)
	switch {
	case !configured || !p.IsOriginOf(q.Unit.Origin, domain, self.Domain, self.Link) || !p.IsTainted(q.Unit.Origin):
		a.Refusal = Refusal{ByOrigin, "which is not quarantined"}
	case p.AreTooMany(domain, self.Domain, self.Link):
		a.Refusal = Refusal{ByOrigin, "but " + self.Domain.String() + " has more nodes than a domain can have"}
	}
	return a
}

func (a *Answer) also(by, why string) {
	if why != "" {
		a.Too = append(a.Too, Refusal{by, why})
	}
}
