package visit

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Of returns what the record of visits on a Node reports about the present quarantine of it, for [quarantine.Decide]. q may be nil. A
// record that cannot be read reports nothing, so no validation has passed.
func Of(n *corev1.Node, q *causes.Record, now time.Time) quarantine.Visits {
	if q == nil {
		return quarantine.Visits{}
	}
	r, err := RecordOf(n)
	if err != nil || r == nil {
		return quarantine.Visits{}
	}
	v := quarantine.Visits{Quarantine: q.ID, Validated: r.Validated(n, q, now)}
	if request := r.Request; request != nil && request.Kind == RequestRelease && request.Quarantine == q.ID {
		v.Release = &quarantine.Manual{User: request.User, Reason: request.Reason}
	}
	if advice := r.Advice; advice != nil && advice.Quarantine == q.ID {
		v.Advice, v.AdvisedAt = advice.Do, advice.At
	}
	return v
}
