package quarantine

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// DescribeNotReady says since when a node is not Ready, and why as far as its condition Ready tells.
func DescribeNotReady(c corev1.NodeCondition) string {
	since := c.LastTransitionTime.UTC().Format(time.RFC3339)
	return fmt.Sprintf("Ready is %s since %s (%s)", c.Status, since, Clip(c.Message, conditions.MaxMessage/4))
}

// Unhandled says that a node is not Ready and no rule acts on that, and why; empty for any other node.
func Unhandled(p *policy.Policy, n *corev1.Node, now time.Time) string {
	c, ok := node.NotReady(n)
	if !ok {
		return ""
	}
	if rule, _, ok := p.Match(n.Labels, c); !ok || rule.AlertOnly {
		return DescribeNotReady(c) + ", and no rule of the policy acts on that"
	}
	r, err := RecordOf(n)
	if err != nil {
		return ""
	}
	if why := whyNotReadyIsNoFault(p, n, r, c, now); why != "" {
		return DescribeNotReady(c) + why
	}
	return ""
}

// whyNotReadyIsNoFault explains, as the end of a sentence, why a node that is not Ready is left alone; empty: it is not. Such a node
// hangs no job, and quarantines of all that a cluster has would use up the limits. A quarantine that stands goes on.
func whyNotReadyIsNoFault(p *policy.Policy, n *corev1.Node, r *Record, ready corev1.NodeCondition, now time.Time) string {
	if r == nil || r.closed() || !r.hasCause(corev1.NodeReady) {
		since := node.NotReadySince(n, ready)
		switch {
		case node.NeverReady(n, ready):
			return ", as it has been since it was created, so the node is taken for one that has yet to start"
		case !since.IsZero() && now.Sub(since) >= p.Budget.ParkedAfter:
			return ", longer than budget.parkedAfter, so the node is taken for switched off"
		}
	}
	if r != nil && r.Phase == Quarantined {
		return ""
	}
	if key := node.DeletionTaint(n); key != "" {
		return "; the node has taint " + key + ", so this is taken for planned work"
	}
	if n.Spec.Unschedulable { // our own cordon ends with the quarantine
		return "; the node was cordoned by someone else, so this is taken for planned work"
	}
	return ""
}

// isReady tells whether the problem is that the node is not Ready.
func (p problem) isReady() bool { return p.condition.Type == corev1.NodeReady }
