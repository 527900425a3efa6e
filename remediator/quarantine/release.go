package quarantine

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// ending is how a quarantine ends.
type ending struct {
	how how
	// origin is the node whose broken link caused the faults, for [originEnded].
	origin string
}

type how int

const (
	// allCleared: every cause has cleared.
	allCleared how = iota
	// unvalidated: every cause has cleared, but the node was in service all the time, and no visit validates such a node.
	unvalidated
	// onRequest: a person has asked for it, and the node has passed its validation.
	onRequest
	// originEnded: all faults that remain are consequences of the broken link of a node whose quarantine has ended.
	originEnded
	// byRemovedTaint: others have removed the taint.
	byRemovedTaint
)

// chooseRelease releases the node when every cause has cleared and the node has passed the validation that a rule asks for. What stands
// is not released on request: the request may be forged, and whoever knows better can release the node without a validation.
func (s *situation) chooseRelease() choice {
	q, visits := &s.record.Quarantine, s.observed.visitsOf(s.record)
	rule, validates := s.conditions.validatingRule(q)
	if validates && visits.Validated && visits.Release != nil && q.isHealthy() {
		return choice{do: releaseNode, release: ending{how: onRequest}}
	}
	c := choice{wait: wait{blocked: missingRule(&s.conditions, q)}}
	allowed := s.conditions.allowsRelease(q, neverExempt)
	if !allowed && !s.conditions.maintained {
		if c.release.origin, c.wait.forOthers = s.endedOrigin(); c.release.origin != "" {
			c.do, c.release.how = releaseNode, originEnded
			return c
		}
	}
	isOpen := validates && !visits.Validated
	switch {
	case allowed && !isOpen:
		c.do = releaseNode
	case allowed && !s.isTainted() && !s.confirmed():
		c.do, c.release.how = releaseNode, unvalidated
	case validates && c.wait.blocked == nil && !s.conditions.maintained:
		c.wait.blocked = visits.awaited(rule.Name, causeNames(s.record), allowed)
	}
	return c
}

// neverExempt is for quarantines that wait for each cause.
func neverExempt(*Cause) bool { return false }

// missingRule says that the policy no longer has the rule of a cause; nil: it has all of them.
func missingRule(a *assessment, q *Quarantine) (b *Blocked) {
	for i := range q.Causes {
		c := &q.Causes[i]
		if _, ok := a.ruleOf(c); !ok && c.Rule != policy.ByHand {
			b = blocked(c.Rule, BlockedByMissingRule,
				"the policy no longer has rule %s, so it cannot be decided when %s has cleared; only `kubectl pitcrew release` releases the node",
				c.Rule, c.Condition)
		}
	}
	return b
}

// awaited says what a release waits for: one that the causes allow, or one that a person asked for.
func (v Visits) awaited(rule, causes string, allowed bool) *Blocked {
	const without = "`kubectl pitcrew release --without-validation` releases it without"
	by := v.Release
	switch {
	case by != nil && v.Validated:
		return blocked(rule, BlockedByValidation,
			"the node has passed its validation, and %s asked to release it then, but %s has not cleared; "+without,
			cmp.Or(by.clean().User, UnknownUser), causes)
	case by != nil:
		return blocked(rule, BlockedByValidation,
			"%s asked to release the node; it waits for its validation (rule %s has validate: true); "+without,
			cmp.Or(by.clean().User, UnknownUser), rule)
	case allowed:
		return blocked(rule, BlockedByValidation,
			"%s has cleared; the node waits for its validation under load (rule %s has validate: true); "+without,
			causes, rule)
	}
	return nil
}

// allowsRelease reports whether every cause of a quarantine has cleared by the rules of its class. isOver reports of a cause that has not
// cleared whether the quarantine need not wait for it.
func (a *assessment) allowsRelease(q *Quarantine, isOver func(*Cause) bool) bool {
	boot := a.node.Status.NodeInfo.BootID
	for i := range q.Causes {
		switch c := &q.Causes[i]; {
		case !a.hasCleared(c):
			if !isOver(c) {
				return false
			}
		case c.Repair == conditions.Replace: // only a person knows that the part was replaced
			return false
		case c.Repair == conditions.Reboot && (boot == "" || boot == c.BootID):
			return false
		}
	}
	return !q.ManualReleaseOnly
}

// endedOrigin is the node whose broken link has made all faults that have not cleared, once its quarantine has ended; empty: there is none.
// waits is set if the quarantine of such a node goes on.
func (s *situation) endedOrigin() (origin string, waits bool) {
	isOver := func(c *Cause) bool {
		if c.Link.Origin == "" {
			return false
		}
		// That an origin is not quarantined proves nothing until it was seen quarantined.
		if s.record.Taint.HeldFor != c.Link.Origin || s.observed.Peers.IsQuarantined(c.Link.Origin) {
			waits = true
			return false
		}
		origin = c.Link.Origin
		return true
	}
	if !s.conditions.allowsRelease(&s.record.Quarantine, isOver) {
		return "", waits
	}
	return origin, waits
}

// release ends the quarantine, and says how.
func (d *decider) release(e ending) {
	r := d.record
	lasted := d.now.Sub(r.QuarantinedAt).Round(time.Second)
	switch e.how {
	case allCleared:
		reason := NodeReleased
		if r.IsIsolated() {
			reason = DeviceReleased
		}
		d.endQuarantine(ByPitcrew)
		d.event(corev1.EventTypeNormal, reason, "%s has cleared; released after %s%s", causeNames(r), lasted, d.conditions.alertOnlyCauses(r))
	case unvalidated:
		d.endQuarantine(ByPitcrew)
		d.event(corev1.EventTypeWarning, NodeReleased, "%s has cleared; released without the validation that a rule asks for, "+
			"because the node was in service already: taint %s was removed, and this remediator has never seen it", causeNames(r), r.Taint)
	case onRequest:
		by := d.observed.visitsOf(d.record).Release
		d.releaseManually(*by)
		d.event(corev1.EventTypeNormal, ReleaseByHand, "%s", by.Note("passed its validation and was released"))
	case originEnded:
		// The faults are still reported, because nothing has reset the GPUs, so the release covers them like a manual one: only other faults,
		// or worse ones, quarantine the node until they have cleared.
		for i := range r.Causes {
			c := &r.Causes[i]
			condition, _ := d.conditions.conditionOf(c)
			if m, err := conditions.ParseMessage(condition.Message); err == nil && c.Link.Origin != "" {
				c.Repair = max(c.Repair, m.Repair) // the release covers the fault as it is reported
			}
			c.cover(condition)
		}
		d.endQuarantine(ByPitcrew)
		r.ManualReleaseActive = true
		d.event(corev1.EventTypeNormal, NodeReleased,
			"the quarantine of node %s, whose broken link caused the faults of this one, has ended; released after %s, though %s is still reported",
			e.origin, lasted, causeNames(r))
	case byRemovedTaint:
		d.releaseManually(Manual{})
		r.ManualReleaseActive = true
		r.dropCleared(&d.conditions, &d.next)
		until := ""
		if names := causeNames(r); names != "" {
			until = " until " + names + " has cleared"
		}
		d.event(corev1.EventTypeNormal, ReleaseByHand, "taint %s was removed: the node stays released%s", r.Taint, until)
	}
	d.updateNotices()
	r.resumeManualRelease()
}

func (d *decider) endQuarantine(by string) {
	d.removeTaint()
	d.record.Isolation, d.record.DevicesUnknownSince = nil, time.Time{}
	d.record.Phase, d.record.ReleasedBy, d.record.ReleasedAt = Released, by, d.now
	if by == ByPerson {
		d.record.Repairs = nil
	}
}

// Visits is what the visits to a node say about one quarantine of it. It is input, as [Seen] explains: it lets no one release a node
// whose causes have not cleared.
type Visits struct {
	// Quarantine is the id of the quarantine that the rest is about.
	Quarantine string
	// Validated is set once the node has passed a validation for it, in its present boot and since the last fault of a cause.
	Validated bool
	// Release is who asked to release the node after a validation; nil: no one.
	Release *Manual
	// Advice is what they recommend: "return", "reboot" or "replace"; empty: nothing. AdvisedAt is since when.
	Advice    string
	AdvisedAt time.Time
}

// visitsOf is what is known about the quarantine of a record.
func (o *Observation) visitsOf(r *Record) Visits {
	if r != nil && o.Visits.Quarantine == r.ID {
		return o.Visits
	}
	return Visits{}
}

// validatingRule is a rule of a cause that asks for a validation before the node returns; false: none does. A rule that only observes
// asks for nothing, and no rule belongs to a manual quarantine.
func (a *assessment) validatingRule(q *Quarantine) (policy.Rule, bool) {
	for i := range q.Causes {
		c := &q.Causes[i]
		if rule, ok := a.ruleOf(c); ok && c.Due && rule.Validate && !rule.Observe {
			return rule, true
		}
	}
	return policy.Rule{}, false
}

// NeedsValidation reports whether a rule of a quarantine asks for a validation before the node returns.
func NeedsValidation(p *policy.Policy, q *Quarantine) bool {
	_, needs := (&assessment{policy: p}).validatingRule(q)
	return needs
}

// isHealthy reports whether no condition of a cause reports a fault. A manual quarantine has none.
func (q *Quarantine) isHealthy() bool {
	return !slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.Rule != policy.ByHand && c.HealthySince.IsZero() })
}
