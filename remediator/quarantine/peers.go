package quarantine

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// PeerOf sums up a node for the limits of others. Nodes that are [Excluded] are no peers.
func PeerOf(p *policy.Policy, n *corev1.Node) limits.Peer {
	return PeerWith(p, n, nil, limits.Domain{})
}

// PeerWith is [PeerOf], with what is remembered of nodes with the node's name, nil: nothing, and with the domain of the node before it
// lost the label.
func PeerWith(p *policy.Policy, n *corev1.Node, remembered *limits.NodeStarts, domain limits.Domain) limits.Peer {
	peer := limits.Peer{Name: n.Name, Labels: n.Labels, Unchecked: !p.Checks(n)}
	peer.Why, peer.ParkedSince = units.OutOfService(n)
	peer.OutOfService = peer.Why != ""
	for _, c := range n.Status.Conditions {
		if _, _, ok := p.Match(n.Labels, c); ok {
			peer.AddProblem(c)
		}
	}
	ready, notReady := node.NotReady(n)
	if notReady { // a sign of an outage even if no rule is for the node
		peer.AddProblem(ready)
	}
	record, err := RecordOf(n)
	peer.Domain, peer.Link = domainOf(p, n, record, domain), linkOf(p, n, record)
	peer.Failed = failedSince(p, n, record, peer.Domain, func(c corev1.NodeCondition, rule policy.Rule) bool {
		var boot time.Time
		if record != nil && record.NodeUID == n.UID {
			boot = record.Boot.Seen
		}
		_, ok := currentWithin(c, rule, boot)
		return ok
	})
	switch {
	case err == nil:
		known := record.describePeer(&peer, p, n)
		remembered.AddTo(&peer, n.UID, known)
		return peer
	case hasTaintOf(p, n):
		// Of another version, or forged: the record proves nothing, so only what else is on the node counts.
		outByQuarantine(&peer)
	}
	remembered.AddTo(&peer, n.UID, time.Time{})
	return peer
}

// describePeer adds to a peer what the record tells of it, and returns when its latest quarantine began or changed; zero: there was none.
// r may be nil.
func (r *Record) describePeer(peer *limits.Peer, p *policy.Policy, n *corev1.Node) (known time.Time) {
	switch {
	case r == nil:
		return time.Time{}
	case r.Phase == Quarantined && limits.IsSoft(r.Taint.Effect):
		peer.Soft, peer.Rule = true, r.Taint.Rule
		peer.Waiting = r.waits(p, n, func(r policy.Rule) bool { return !limits.IsSoft(r.Taint.Effect) })
	case r.Phase == Quarantined:
		outByQuarantine(peer)
		peer.Rule, peer.HeldFor = r.Taint.Rule, r.Taint.HeldFor
		if rule, _ := p.Rule(r.Taint.Rule); rule.Condition == corev1.NodeReady {
			// The quarantine takes nothing away that the silence of the node does not, so it is parked after the same time.
			if ready, notReady := node.NotReady(n); notReady {
				peer.ParkedSince = node.NotReadySince(n, ready)
			}
		}
	case r.Phase == Suspect:
		peer.Waiting = r.waits(p, n, func(policy.Rule) bool { return true })
	}
	for i, q := range append([]Quarantine{r.Quarantine}, r.Last...) {
		if q.Taint == nil {
			continue
		}
		for _, at := range []time.Time{q.QuarantinedAt, q.Taint.Since} {
			if at.After(known) {
				known = at
			}
		}
		if q.Taint.HeldFor == "" {
			peer.Starts = append(peer.Starts, limits.Start{
				Rule: q.Taint.Rule, At: q.QuarantinedAt, Soft: limits.IsSoft(q.Taint.Effect), Proven: i == 0 && r.IsTainted(p, n),
			})
		}
	}
	return known
}

// hasTaintOf tells whether a node has a taint with which a quarantine takes nodes out of service.
func hasTaintOf(p *policy.Policy, n *corev1.Node) bool {
	known := handoff.KnownOf(p)
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && (t.Key == conditions.TaintUnhealthy || known.HasTaint(t))
	})
}

// IsTainted tells whether the node carries the taint of its quarantine, and the policy knows it. A kubelet can forge the record
// and not the taint.
func (r *Record) IsTainted(p *policy.Policy, n *corev1.Node) bool {
	return r.Phase == Quarantined && r.Isolation == nil && handoff.KnownOf(p).HasTaint(r.Taint.NodeTaint()) && hasTaint(n.Spec.Taints, r.Taint)
}

// outByQuarantine counts a peer as out of service for as long as the quarantine lasts, whatever the node shows.
func outByQuarantine(peer *limits.Peer) {
	peer.OutOfService, peer.Why, peer.ParkedSince = true, limits.Quarantined, time.Time{}
}

// waits are the spans in which a cause that is due, and still a problem, waits for a rule that enforces and that filter accepts.
// They are true of the node as it is, at whatever time: peers are kept until the node changes.
func (r *Record) waits(p *policy.Policy, n *corev1.Node, filter func(policy.Rule) bool) (spans []limits.Span) {
	maintained, ends := node.MaintainedUntil(n)
	if !ends {
		return nil
	}
	for _, c := range n.Status.Conditions {
		matched, _, isProblem := p.Match(n.Labels, c)
		if !isProblem || !slices.ContainsFunc(r.Causes, func(cause Cause) bool {
			rule, ok := p.Rule(cause.Rule)
			return cause.Condition == c.Type && cause.Due && ok && !rule.Observe && filter(rule)
		}) {
			continue
		}
		if span, ok := currentWithin(c, matched, r.Boot.Seen); ok {
			if maintained.After(span.From) {
				span.From = maintained
			}
			spans = append(spans, span)
		}
	}
	return spans
}

// NeedsPeers tells whether [Decide] needs the peers of a node: most nodes are healthy, and then it does not.
func NeedsPeers(p *policy.Policy, n *corev1.Node, r *Record, breaker *limits.BreakerState) bool {
	return r != nil || breaker != nil || slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		_, _, ok := p.Match(n.Labels, c)
		return ok
	})
}
