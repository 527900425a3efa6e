package quarantine

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/release"
)

// maxCovered is how many releases of the same condition a record remembers.
const maxCovered = 4

// releaseManually ends the quarantine by the decision of a person, which covers the faults that stand now and those that an earlier
// such decision still covers.
func (d *decider) releaseManually(by Manual) {
	before := d.record.manualRelease()
	d.endQuarantine(ByPerson)
	by = by.clean()
	d.record.ReleaseUser, d.record.ReleaseReason = by.User, by.Reason
	d.record.ManualReleaseActive = slices.ContainsFunc(d.record.Causes, func(c Cause) bool { return c.Rule != policy.ByHand })
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		condition, _ := d.conditions.conditionOf(c)
		c.cover(condition)
	}
	if before == nil {
		return
	}
	for _, earlier := range before.Causes {
		i := slices.IndexFunc(d.record.Causes, func(c Cause) bool { return c.Condition == earlier.Condition })
		if i < 0 {
			if len(d.record.Causes) < maxCauses {
				d.record.Causes, d.record.ManualReleaseActive = append(d.record.Causes, earlier), true
			}
			continue
		}
		c := &d.record.Causes[i]
		c.Repair = max(c.Repair, earlier.Repair)
		for _, message := range earlier.Covered {
			if len(c.Covered) < maxCovered && !slices.Contains(c.Covered, message) {
				c.Covered = append(c.Covered, message)
			}
		}
	}
}

// cover notes that a manual release covers what the cause's condition says; if it reports no fault, what it said.
func (c *Cause) cover(condition corev1.NodeCondition) {
	message := c.Message
	if condition.Status == corev1.ConditionTrue {
		message = condition.Message
	}
	if c.Covered = nil; conditions.Ours(string(c.Condition)) {
		c.Covered = []string{Clip(message, conditions.MaxMessage)}
	}
}

// coverPresent lets a manual release that does not say what it covers cover what the conditions of the node say now: a version that
// did not keep it wrote the record.
func (r *Record) coverPresent(n *corev1.Node) {
	q := r.manualRelease()
	if q == nil {
		return
	}
	for i := range q.Causes {
		c := &q.Causes[i]
		at := slices.IndexFunc(n.Status.Conditions, func(n corev1.NodeCondition) bool { return n.Type == c.Condition })
		if len(c.Covered) == 0 && at >= 0 && n.Status.Conditions[at].Status != corev1.ConditionUnknown {
			c.cover(n.Status.Conditions[at])
		}
	}
}

// manualRelease is the quarantine whose manual release still covers faults; nil: there is none. Another fault may have begun a
// suspicion, or a quarantine, since.
func (r *Record) manualRelease() *Quarantine {
	switch {
	case r == nil:
	case r.ManualReleaseActive:
		return &r.Quarantine
	case r.Phase != Released && len(r.Last) > 0 && r.Last[0].ManualReleaseActive:
		return &r.Last[0]
	}
	return nil
}

// resumeManualRelease makes the manual release that still covers faults the current one again, once the quarantine after it is over.
func (r *Record) resumeManualRelease() {
	if r.Phase != Released || r.ManualReleaseActive || len(r.Last) == 0 || !r.Last[0].ManualReleaseActive {
		return
	}
	r.Quarantine, r.Last[0] = r.Last[0], r.Quarantine
	r.Last[0].HandOff = nil // nothing of it is on the node any more
}

// updateEarlierRelease brings a manual release up to date over which another fault has begun a suspicion or a quarantine. It must not
// outlive its faults, and then cover the next ones.
func (d *decider) updateEarlierRelease() {
	q := d.record.manualRelease()
	if q == nil || q == &d.record.Quarantine {
		return
	}
	released := Record{Boot: d.record.Boot, Quarantine: *q}
	d.conditions.updateCauses(&released, &d.next)
	*q = released.Quarantine
	if q.dropCleared(&d.conditions, &d.next); !q.ManualReleaseActive {
		d.find() // every fault counts again
	}
}

// dropCleared drops the causes of a manual release that have cleared, and ends it with the last one.
func (q *Quarantine) dropCleared(a *assessment, next *schedule) {
	var left []Cause
	q.ManualReleaseActive = false
	for i := range q.Causes {
		c := &q.Causes[i]
		_, hasRule := a.ruleOf(c)
		if hasRule && a.hasCleared(c) {
			continue
		}
		next.requeueAt(a.clearsAt(c))
		left = append(left, *c)
		if hasRule { // without a rule for its condition a cause can quarantine no node
			q.ManualReleaseActive = true
		}
	}
	if q.ManualReleaseActive && slices.ContainsFunc(left, func(c Cause) bool { return c.Due }) {
		q.Causes = left
	}
}

// newFaults is the message of a condition of ours with only the faults that have come since the manual release, see [release.NewFaults];
// empty if none has.
func (q *Quarantine) newFaults(c corev1.NodeCondition) string {
	if q == nil || !conditions.Ours(string(c.Type)) || c.Status != corev1.ConditionTrue {
		return ""
	}
	i := slices.IndexFunc(q.Causes, func(cause Cause) bool { return cause.Condition == c.Type })
	if i < 0 || len(q.Causes[i].Covered) == 0 {
		return ""
	}
	return release.NewFaults(string(c.Type), c.Message, q.Causes[i].Covered)
}

// isCovered reports whether the problem of a cause is only what a manual release before this quarantine covers.
func (r *Record) isCovered(p problem) bool {
	q := r.manualRelease()
	return r.Phase != Released && q != nil && q.hasCause(p.condition.Type) && q.covers(p)
}
