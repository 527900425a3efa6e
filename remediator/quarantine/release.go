package quarantine

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
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
	rule, validates := s.conditions.ValidatingRule(q)
	if validates && visits.Validated && visits.Release != nil && q.IsHealthy() {
		return choice{do: releaseNode, release: ending{how: onRequest}}
	}
	c := choice{wait: wait{blocked: missingRule(&s.conditions, q)}}
	allowed := s.conditions.AllowsRelease(q, neverExempt)
	if !allowed && !s.conditions.Maintained {
		if c.release.origin, c.wait.forOthers = s.endedOrigin(); c.release.origin != "" {
			c.do, c.release.how = releaseNode, originEnded
			return c
		}
		c.wait.blocked = cmp.Or(c.wait.blocked, lostOrigin(s.record.Taint, s.observed.Peers))
	}
	isOpen := validates && !visits.Validated
	switch {
	case allowed && !isOpen:
		c.do = releaseNode
	case allowed && !s.isTainted() && !s.confirmed():
		c.do, c.release.how = releaseNode, unvalidated
	case validates && c.wait.blocked == nil && !s.conditions.Maintained:
		c.wait.blocked = visits.awaited(rule.Name, causes.CauseNames(s.record), allowed)
	}
	return c
}

// neverExempt is for quarantines that wait for each cause.
func neverExempt(*causes.Cause) bool { return false }

// missingRule reports that the policy no longer has the rule of a cause; nil: it has all of them.
func missingRule(a *causes.Assessment, q *causes.Quarantine) (b *causes.Blocked) {
	for i := range q.Causes {
		c := &q.Causes[i]
		if _, ok := a.RuleOf(c); !ok && c.Rule != policy.ByHand {
			b = causes.NewBlocked(c.Rule, causes.BlockedByMissingRule,
				"the policy no longer has rule %s, so it cannot be decided when %s has cleared; only `kubectl pitcrew release` releases the node",
				c.Rule, c.Condition)
		}
	}
	return b
}

// awaited returns what a release waits for: one that the causes allow, or one that a person asked for.
func (v Visits) awaited(rule, names string, allowed bool) *causes.Blocked {
	const without = "`kubectl pitcrew release --without-validation` releases it without"
	by := v.Release
	switch {
	case by != nil && v.Validated:
		return causes.NewBlocked(rule, causes.BlockedByValidation,
			"the node has passed its validation, and %s asked to release it then, but %s has not cleared; "+without,
			cmp.Or(by.Clean().User, UnknownUser), names)
	case by != nil:
		return causes.NewBlocked(rule, causes.BlockedByValidation,
			"%s asked to release the node; it waits for its validation (rule %s has validate: true); "+without,
			cmp.Or(by.Clean().User, UnknownUser), rule)
	case allowed:
		return causes.NewBlocked(rule, causes.BlockedByValidation,
			"%s has cleared; the node waits for its validation under load (rule %s has validate: true); "+without,
			names, rule)
	}
	return nil
}

// endedOrigin is the node whose broken link has made all faults that have not cleared, once its quarantine has ended; empty: there is none.
// waits is set if the quarantine of such a node goes on.
func (s *situation) endedOrigin() (origin string, waits bool) {
	isOver := func(c *causes.Cause) bool {
		if c.Link.Origin == "" {
			return false
		}
		// That an origin is not quarantined proves nothing until it was seen quarantined, and nothing if it is missing.
		if s.record.Taint.HeldFor != c.Link.Origin || !s.observed.Peers.HasReturned(c.Link.Origin) {
			waits = true
			return false
		}
		origin = c.Link.Origin
		return true
	}
	if !s.conditions.AllowsRelease(&s.record.Quarantine, isOver) {
		return "", waits
	}
	return origin, waits
}

// lostOrigin reports that nothing will show any more when the origin of a victim is repaired; nil: something may.
func lostOrigin(t *causes.Taint, peers limits.Peers) *causes.Blocked {
	if t.HeldFor == "" || peers.IsQuarantined(t.HeldFor) || peers.HasReturned(t.HeldFor) {
		return nil
	}
	return causes.NewBlocked(t.Rule, causes.BlockedByOrigin,
		"the node is held for the broken link of node %s, and nothing shows that it was repaired: that Node is gone, was created anew or "+
			"is left alone; the node returns when its own faults have cleared, or by `kubectl pitcrew release`", t.HeldFor)
}

// release ends the quarantine, and says how.
func (d *decider) release(e ending) {
	r := d.record
	lasted := d.now.Sub(r.QuarantinedAt).Round(time.Second)
	switch e.how {
	case allCleared:
		reason := causes.NodeReleased
		if r.IsIsolated() {
			reason = causes.DeviceReleased
		}
		d.endQuarantine(causes.ByPitcrew)
		d.event(corev1.EventTypeNormal, reason, "%s has cleared; released after %s%s",
			causes.CauseNames(r), lasted, d.conditions.AlertOnlyCauses(r))
	case unvalidated:
		d.endQuarantine(causes.ByPitcrew)
		d.event(corev1.EventTypeWarning, causes.NodeReleased, "%s has cleared; released without the validation that a rule asks for, "+
			"because the node was in service already: taint %s was removed, and this remediator has never seen it", causes.CauseNames(r), r.Taint)
	case onRequest:
		by := d.observed.visitsOf(d.record).Release
		d.releaseManually(*by)
		d.event(corev1.EventTypeNormal, causes.ReleaseByHand, "%s", by.Note("passed its validation and was released"))
	case originEnded:
		// The faults are still reported, because nothing has reset the GPUs, so the release covers them like a manual one: only other faults,
		// or worse ones, quarantine the node until they have cleared.
		for i := range r.Causes {
			c := &r.Causes[i]
			condition, _ := d.conditions.ConditionOf(c)
			if m, err := conditions.ParseMessage(condition.Message); err == nil && c.Link.Origin != "" {
				c.Repair = max(c.Repair, m.Repair) // the release covers the fault as it is reported
			}
			c.Cover(condition)
		}
		d.endQuarantine(causes.ByPitcrew)
		r.ManualReleaseActive = true
		d.event(corev1.EventTypeNormal, causes.NodeReleased,
			"the quarantine of node %s, whose broken link caused the faults of this one, has ended; released after %s, though %s is still reported",
			e.origin, lasted, causes.CauseNames(r))
	case byRemovedTaint:
		d.releaseManually(Manual{})
		r.ManualReleaseActive = true
		r.DropCleared(&d.conditions, &d.next)
		until := ""
		if names := causes.CauseNames(r); names != "" {
			until = " until " + names + " has cleared"
		}
		d.event(corev1.EventTypeNormal, causes.ReleaseByHand, "taint %s was removed: the node stays released%s", r.Taint, until)
	}
	d.updateNotices()
	r.ResumeManualRelease()
}

func (d *decider) endQuarantine(by string) {
	d.removeTaint()
	d.record.Isolation, d.record.DevicesUnknownSince = nil, time.Time{}
	d.record.Phase, d.record.ReleasedBy, d.record.ReleasedAt = causes.Released, by, d.now
	if by == causes.ByPerson {
		d.record.Repairs = nil
	}
}

// Visits is what the visits to a node say about one quarantine of it. It is input, as [seen.Seen] explains: it lets no one release a node
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
func (o *Observation) visitsOf(r *causes.Record) Visits {
	if r != nil && o.Visits.Quarantine == r.ID {
		return o.Visits
	}
	return Visits{}
}

// NeedsValidation reports whether a rule of a quarantine asks for a validation before the node returns.
func NeedsValidation(p *policy.Policy, q *causes.Quarantine) bool {
	_, needs := (&causes.Assessment{Policy: p}).ValidatingRule(q)
	return needs
}

// releaseManually ends the quarantine by the decision of a person, which covers the faults that stand now and those that an earlier
// such decision still covers.
func (d *decider) releaseManually(by Manual) {
	before := d.record.ManualRelease()
	d.endQuarantine(causes.ByPerson)
	by = by.Clean()
	d.record.ReleaseUser, d.record.ReleaseReason = by.User, by.Reason
	d.record.ManualReleaseActive = slices.ContainsFunc(d.record.Causes, func(c causes.Cause) bool { return c.Rule != policy.ByHand })
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		condition, _ := d.conditions.ConditionOf(c)
		c.Cover(condition)
	}
	if before == nil {
		return
	}
	for _, earlier := range before.Causes {
		i := slices.IndexFunc(d.record.Causes, func(c causes.Cause) bool { return c.Condition == earlier.Condition })
		if i < 0 {
			if len(d.record.Causes) < causes.MaxCauses {
				d.record.Causes, d.record.ManualReleaseActive = append(d.record.Causes, earlier), true
			}
			continue
		}
		c := &d.record.Causes[i]
		c.Repair = max(c.Repair, earlier.Repair)
		for _, message := range earlier.Covered {
			if len(c.Covered) < causes.MaxCovered && !slices.Contains(c.Covered, message) {
				c.Covered = append(c.Covered, message)
			}
		}
	}
}

// updateEarlierRelease brings a manual release up to date over which another fault has begun a suspicion or a quarantine. It must not
// outlive its faults, and then cover the next ones.
func (d *decider) updateEarlierRelease() {
	q := d.record.ManualRelease()
	if q == nil || q == &d.record.Quarantine {
		return
	}
	released := causes.Record{Boot: d.record.Boot, Quarantine: *q}
	d.conditions.UpdateCauses(&released, &d.next)
	*q = released.Quarantine
	if q.DropCleared(&d.conditions, &d.next); !q.ManualReleaseActive {
		d.find() // every fault counts again
	}
}
