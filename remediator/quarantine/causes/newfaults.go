package causes

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/release"
)

// MaxCovered is how many releases of the same condition a record remembers.
const MaxCovered = 4

// Cover notes that a manual release covers what the cause's condition reports; if it reports no fault, what it said.
func (c *Cause) Cover(condition corev1.NodeCondition) {
	message := c.Message
	if condition.Status == corev1.ConditionTrue {
		message = condition.Message
	}
	if c.Covered = nil; conditions.Ours(string(c.Condition)) {
		c.Covered = []string{Clip(message, conditions.MaxMessage)}
	}
}

// CoverPresent lets a manual release that does not say what it covers cover what the conditions of the node say now: a version that
// did not keep it wrote the record.
func (r *Record) CoverPresent(n *corev1.Node) {
	q := r.ManualRelease()
	if q == nil {
		return
	}
	for i := range q.Causes {
		c := &q.Causes[i]
		at := slices.IndexFunc(n.Status.Conditions, func(n corev1.NodeCondition) bool { return n.Type == c.Condition })
		if len(c.Covered) == 0 && at >= 0 && n.Status.Conditions[at].Status != corev1.ConditionUnknown {
			c.Cover(n.Status.Conditions[at])
		}
	}
}

// ManualRelease is the quarantine whose manual release still covers faults; nil: there is none. Another fault may have begun a
// suspicion, or a quarantine, since.
func (r *Record) ManualRelease() *Quarantine {
	switch {
	case r == nil:
	case r.ManualReleaseActive:
		return &r.Quarantine
	case r.Phase != Released && len(r.Last) > 0 && r.Last[0].ManualReleaseActive:
		return &r.Last[0]
	}
	return nil
}

// ResumeManualRelease makes the manual release that still covers faults the current one again, once the quarantine after it is over.
func (r *Record) ResumeManualRelease() {
	if r.Phase != Released || r.ManualReleaseActive || len(r.Last) == 0 || !r.Last[0].ManualReleaseActive {
		return
	}
	r.Quarantine, r.Last[0] = r.Last[0], r.Quarantine
	r.Last[0].HandOff = nil // nothing of it is on the node any more
}

// DropCleared drops the causes of a manual release that have cleared, and ends it with the last one.
func (q *Quarantine) DropCleared(a *Assessment, next *Schedule) {
	var left []Cause
	q.ManualReleaseActive = false
	for i := range q.Causes {
		c := &q.Causes[i]
		_, hasRule := a.RuleOf(c)
		if hasRule && a.hasCleared(c) {
			continue
		}
		next.RequeueAt(a.ClearsAt(c))
		left = append(left, *c)
		if hasRule { // without a rule for its condition a cause can quarantine no node
			q.ManualReleaseActive = true
		}
	}
	if q.ManualReleaseActive && slices.ContainsFunc(left, func(c Cause) bool { return c.Due }) {
		q.Causes = left
	}
}

// NewFaults is the message of a condition of ours with only the faults that have come since the manual release, see [release.NewFaults];
// empty if none has.
func (q *Quarantine) NewFaults(c corev1.NodeCondition) string {
	if q == nil || !conditions.Ours(string(c.Type)) || c.Status != corev1.ConditionTrue {
		return ""
	}
	i := slices.IndexFunc(q.Causes, func(cause Cause) bool { return cause.Condition == c.Type })
	if i < 0 || len(q.Causes[i].Covered) == 0 {
		return ""
	}
	return release.NewFaults(string(c.Type), c.Message, q.Causes[i].Covered)
}

// IsCovered reports whether the problem of a cause is only what a manual release before this quarantine covers.
func (r *Record) IsCovered(p Problem) bool {
	q := r.ManualRelease()
	return r.Phase != Released && q != nil && q.HasCause(p.Condition.Type) && q.covers(p)
}
