package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// GivenUp is the repair or the validation that has failed for the quarantine of a node, if the node now waits for a person; nil: it
// does not. A person who has stopped the visit, has asked for another one, or has switched repairs off knows.
func GivenUp(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record) *visit.Visit {
	if q = standing(n, q); q == nil || p.Repair == nil || r == nil || r.Current != nil || r.Stopped == q.ID ||
		r.Request != nil && r.Request.Quarantine == q.ID {
		return nil
	}
	for i := range r.Last {
		v := &r.Last[i]
		if v.Quarantine == q.ID && (v.Kind == visit.Repair || v.Kind == visit.Validation) {
			if v.Phase != visit.Failed || v.Kind == visit.Repair && p.Repair.Mode == policy.RepairOff {
				return nil
			}
			return v
		}
	}
	return nil
}

// AwaitsApproval tells whether the repair of a node waits for a person to approve it.
func AwaitsApproval(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record, now time.Time) bool {
	if p.Repair == nil || standing(n, q) == nil || r != nil && r.Current != nil {
		return false // the step of a visit under way needs its Job
	}
	waits := Next(p, Facts{Node: n, Record: r, Quarantine: q}, now).Waits
	return waits != nil && waits.Reason == waitsForApproval
}
