package quarantine

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// releaseManually ends the quarantine by the decision of a person, which covers the faults that stand now and those that an earlier
// such decision still covers.
func (d *decider) releaseManually() {
	before := d.record.manualRelease()
	d.release(ByPerson)
	d.record.ManualReleaseActive = slices.ContainsFunc(d.record.Causes, func(c Cause) bool { return c.Rule != policy.ByHand })
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		condition, ok := d.conditions.conditionOf(c)
		if ok && conditions.Ours(string(c.Condition)) && condition.Status == corev1.ConditionTrue {
			c.Message = Clip(condition.Message, conditions.MaxMessage)
		}
	}
	if before == nil {
		return
	}
	for _, c := range before.Causes {
		if !d.record.hasCause(c.Condition) && len(d.record.Causes) < maxCauses {
			d.record.Causes, d.record.ManualReleaseActive = append(d.record.Causes, c), true
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
func (r *Record) resumeManualRelease() bool {
	if r.Phase != Released || r.ManualReleaseActive || len(r.Last) == 0 || !r.Last[0].ManualReleaseActive {
		return false
	}
	r.Quarantine, r.Last[0] = r.Last[0], r.Quarantine
	r.Last[0].HandOff = nil // nothing of it is on the node any more
	return true
}

// newFaults is the message of a condition of ours with only the faults that have come since the manual release; empty if none has, or
// if the message names no subjects. The message names the class of its worst fault alone, so a new fault counts as that one, with
// one exception: another fault of a GPU or port that was released counts only if it may be of the class that was released. The parts
// of a message are sorted by class first, then by subject and text: a part before a larger one is of a worse class.
func (q *Quarantine) newFaults(condition corev1.NodeCondition) string {
	if q == nil || !conditions.Ours(string(condition.Type)) || condition.Status != corev1.ConditionTrue {
		return ""
	}
	i := slices.IndexFunc(q.Causes, func(c Cause) bool { return c.Condition == condition.Type })
	if i < 0 {
		return ""
	}
	released, err := conditions.ParseMessage(q.Causes[i].Message)
	if err != nil {
		return ""
	}
	now, err := conditions.ParseMessage(condition.Message)
	if err != nil {
		return ""
	}
	isNew := func(i int) bool {
		part := now.Parts[i]
		if slices.Contains(released.Parts, part) {
			return false
		}
		if !slices.ContainsFunc(released.Parts, func(p conditions.Part) bool { return p.Subject == part.Subject }) {
			return true
		}
		isMilder := slices.ContainsFunc(now.Parts[:i], func(before conditions.Part) bool {
			return cmp.Or(cmp.Compare(before.Subject, part.Subject), cmp.Compare(before.Text, part.Text)) > 0
		})
		return now.Repair >= released.Repair && !isMilder
	}
	found := conditions.Message{Repair: now.Repair}
	for i, part := range now.Parts {
		if isNew(i) {
			found.Parts = append(found.Parts, part)
		}
	}
	// Faults that the message had no room for at the release may show now.
	if len(found.Parts)+now.More <= released.More {
		return ""
	}
	if len(found.Parts) == 0 {
		return condition.Message
	}
	return found.String()
}

// isCovered tells whether the problem of a cause is only what a manual release before this quarantine covers.
func (r *Record) isCovered(p problem) bool {
	q := r.manualRelease()
	return r.Phase != Released && q != nil && q.hasCause(p.condition.Type) && q.covers(p)
}
