package quarantine

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// PeerOf sums up a node for the limits of others. Nodes that are [Excluded] are no peers.
func PeerOf(p *policy.Policy, n *corev1.Node) limits.Peer {
	peer := limits.Peer{Labels: n.Labels, OutOfService: n.Spec.Unschedulable, ProblemSince: map[corev1.NodeConditionType]time.Time{}}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			peer.OutOfService = true
		}
		if _, _, ok := p.Match(n.Labels, c); ok {
			peer.ProblemSince[c.Type] = c.LastTransitionTime.Time
		}
	}
	record, err := RecordOf(n)
	switch {
	case err != nil:
		// Of another version, or forged: the record proves nothing, so only what else is on the node counts.
		peer.OutOfService = peer.OutOfService || hasTaintOf(p, n)
		return peer
	case record == nil:
		return peer
	case record.Phase == Quarantined:
		peer.OutOfService, peer.Rule = true, record.Taint.Rule
	case record.Phase == Suspect:
		peer.Waiting = slices.ContainsFunc(record.Causes, func(c Cause) bool {
			rule, ok := p.Rule(c.Rule)
			_, isProblem := peer.ProblemSince[c.Condition]
			return c.Due && isProblem && ok && !rule.Observe
		})
	}
	for _, q := range append([]Quarantine{record.Quarantine}, record.Last...) {
		if q.Taint != nil {
			peer.Starts = append(peer.Starts, limits.Start{Rule: q.Taint.Rule, At: q.QuarantinedAt})
		}
	}
	return peer
}

// hasTaintOf tells whether a node has a taint with which a quarantine takes nodes out of service.
func hasTaintOf(p *policy.Policy, n *corev1.Node) bool {
	known := handoff.KnownOf(p)
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && (t.Key == conditions.TaintUnhealthy || known.HasTaint(t))
	})
}

// NeedsPeers tells whether [Decide] needs the peers of a node: most nodes are healthy, and then it does not.
func NeedsPeers(p *policy.Policy, n *corev1.Node, r *Record, breaker *limits.BreakerState) bool {
	return r != nil || breaker != nil || len(PeerOf(p, n).ProblemSince) > 0
}
