package units

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// OutOfService returns what keeps a node out of service without a quarantine, and since when; empty when nothing does, and a
// zero time when that is not known.
func OutOfService(n *corev1.Node) (why string, since time.Time) {
	if c, ok := node.NotReady(n); ok {
		why, since = limits.NotReady, node.NotReadySince(n, c)
	}
	if !n.Spec.Unschedulable {
		return why, since
	}
	// Of two reasons the earlier one counts: a machine that is parked may be switched off later.
	if at := node.CordonedAt(n); since.IsZero() || !at.IsZero() && at.Before(since) {
		since = at
	}
	return limits.Cordoned, since
}
