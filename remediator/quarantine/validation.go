package quarantine

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Visits is what the visits to a node say about one quarantine of it. It is input, as [Seen] explains: it lets nobody release a node
// whose causes have not cleared.
type Visits struct {
	// Quarantine is the id of the quarantine that the rest is about.
	Quarantine string
	// Validated is set once the node has passed a validation for it, in its present boot and since the last fault of a cause.
	Validated bool
	// Release is who asked to release the node after a validation; nil: nobody.
	Release *Manual
	// Advice is what they recommend: "return", "reboot" or "replace"; empty: nothing. AdvisedAt is since when.
	Advice    string
	AdvisedAt time.Time
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

// NeedsValidation tells whether a rule of a quarantine asks for a validation before the node returns.
func NeedsValidation(p *policy.Policy, q *Quarantine) bool {
	_, needs := (&assessment{policy: p}).validatingRule(q)
	return needs
}

// visits is what is known about the quarantine of the record.
func (d *decider) visits() Visits {
	if v := d.observed.Visits; d.record != nil && v.Quarantine == d.record.ID {
		return v
	}
	return Visits{}
}

// isHealthy tells whether no condition of a cause reports a fault. A manual quarantine has none.
func (q *Quarantine) isHealthy() bool {
	return !slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.Rule != policy.ByHand && c.HealthySince.IsZero() })
}

// releaseOnRequest releases a validated node for the person who asked for that, and tells whether it did. What stands is not released:
// the request may be forged, and whoever knows better can release the node without a validation.
func (d *decider) releaseOnRequest() bool {
	by := d.visits().Release
	_, validates := d.conditions.validatingRule(&d.record.Quarantine)
	if by == nil || !validates || !d.visits().Validated || !d.record.isHealthy() {
		return false
	}
	d.releaseManually()
	who := by.clean()
	d.record.ReleaseUser, d.record.ReleaseReason = who.User, who.Reason
	d.checkManualRelease()
	d.event(corev1.EventTypeNormal, ReleaseByHand, "%s", by.Note("passed its validation and was released"))
	return true
}

// isUnvalidated tells whether a rule asks for a validation that the node has not passed.
func (d *decider) isUnvalidated() bool {
	_, validates := d.conditions.validatingRule(&d.record.Quarantine)
	return validates && !d.visits().Validated
}

// blockUnvalidated says what a release waits for: one that the causes allow, or one that a person asked for.
func (d *decider) blockUnvalidated(allowed bool) {
	const without = "`kubectl pitcrew release --without-validation` releases it without"
	rule, validates := d.conditions.validatingRule(&d.record.Quarantine)
	by := d.visits().Release
	switch {
	case !validates || d.result.Blocked != nil:
	case by != nil && d.visits().Validated:
		d.block(rule.Name, BlockedByValidation, "the node has passed its validation, and %s asked to release it then, but %s has not cleared; "+without,
			cmp.Or(by.clean().User, UnknownUser), causeNames(d.record))
	case by != nil:
		d.block(rule.Name, BlockedByValidation, "%s asked to release the node; it waits for its validation (rule %s has validate: true); "+without,
			cmp.Or(by.clean().User, UnknownUser), rule.Name)
	case allowed:
		d.block(rule.Name, BlockedByValidation, "%s has cleared; the node waits for its validation under load (rule %s has validate: true); "+without,
			causeNames(d.record), rule.Name)
	}
}
