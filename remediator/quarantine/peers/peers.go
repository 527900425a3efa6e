// Package peers sums up nodes for the limits of others. It is pure.
package peers

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// Of sums up a node for the limits of others. Nodes that are [node.Excluded] are no peers.
func Of(p *policy.Policy, n *corev1.Node) limits.Peer {
	return With(p, n, nil, limits.Domain{})
}

// With is [Of], with what is remembered of nodes with the node's name, nil: nothing, and with the domain of the node before it
// lost the label.
func With(p *policy.Policy, n *corev1.Node, remembered *limits.NodeStarts, domain limits.Domain) limits.Peer {
	peer := limits.Peer{Name: n.Name, Labels: n.Labels, Unchecked: !p.Checks(n), Claims: node.Claims(n)}
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
	record, err := causes.RecordOf(n)
	peer.Domain, peer.Link = causes.DomainIn(p, n, record, domain), linkOf(p, n, record)
	peer.Failed = FailedSince(p, n, record, peer.Domain, func(c corev1.NodeCondition, rule policy.Rule) bool {
		var boot time.Time
		if record != nil && record.NodeUID == n.UID {
			boot = record.Boot.Seen
		}
		_, ok := causes.CurrentWithin(c, rule, boot)
		return ok
	})
	switch {
	case err == nil:
		known := describe(&peer, record, p, n)
		remembered.AddTo(&peer, n.UID, known)
		return peer
	case hasTaintOf(p, n):
		// Of another version, or forged: the record proves nothing, so only what else is on the node counts.
		outByQuarantine(&peer)
	}
	remembered.AddTo(&peer, n.UID, time.Time{})
	return peer
}

// describe adds to a peer what the record tells of it, and returns when its latest quarantine began or changed; zero: there was none.
// r may be nil.
func describe(peer *limits.Peer, r *causes.Record, p *policy.Policy, n *corev1.Node) (known time.Time) {
	switch {
	case r == nil:
		return time.Time{}
	case r.Phase == causes.Quarantined && limits.IsSoft(r.Taint.Effect):
		peer.Soft, peer.Rule = true, r.Taint.Rule
		peer.Waiting = waits(r, p, n, func(r policy.Rule) bool { return !limits.IsSoft(r.Taint.Effect) })
	case r.Phase == causes.Quarantined:
		outByQuarantine(peer)
		peer.Rule, peer.HeldFor = r.Taint.Rule, r.Taint.HeldFor
		if rule, _ := p.Rule(r.Taint.Rule); rule.Condition == corev1.NodeReady {
			// The quarantine takes nothing away that a node without a heartbeat does not, so it is parked after the same time.
			if ready, notReady := node.NotReady(n); notReady {
				peer.ParkedSince = node.NotReadySince(n, ready)
			}
		}
	case r.Phase == causes.Suspect:
		peer.Waiting = waits(r, p, n, func(policy.Rule) bool { return true })
	}
	for i, q := range append([]causes.Quarantine{r.Quarantine}, r.Last...) {
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

// outByQuarantine counts a peer as out of service for as long as the quarantine lasts, whatever the node shows.
func outByQuarantine(peer *limits.Peer) {
	peer.OutOfService, peer.Why, peer.ParkedSince = true, limits.Quarantined, time.Time{}
}

// hasTaintOf reports whether a node has a taint with which a quarantine takes nodes out of service.
func hasTaintOf(p *policy.Policy, n *corev1.Node) bool {
	known := handoff.KnownOf(p)
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule && (t.Key == conditions.TaintUnhealthy || known.HasTaint(t))
	})
}

// waits are the spans in which a cause that is due, and still a problem, waits for a rule that enforces and that filter accepts.
// They are true of the node as it is, at whatever time: peers are kept until the node changes.
func waits(r *causes.Record, p *policy.Policy, n *corev1.Node, filter func(policy.Rule) bool) (spans []limits.Span) {
	maintained, ends := node.MaintainedUntil(n)
	if !ends {
		return nil
	}
	for _, c := range n.Status.Conditions {
		matched, _, isProblem := p.Match(n.Labels, c)
		if !isProblem || !slices.ContainsFunc(r.Causes, func(cause causes.Cause) bool {
			rule, ok := p.Rule(cause.Rule)
			return cause.Condition == c.Type && cause.Due && ok && !rule.Observe && filter(rule)
		}) {
			continue
		}
		if span, ok := causes.CurrentWithin(c, matched, r.Boot.Seen); ok {
			if maintained.After(span.From) {
				span.From = maintained
			}
			spans = append(spans, span)
		}
	}
	return spans
}

// linkOf is the role of a node for others. A node that is being worked on, or that others have cordoned, is no victim: its faults may be
// those of the work.
func linkOf(p *policy.Policy, n *corev1.Node, r *causes.Record) limits.LinkFault {
	if len(p.Domains) == 0 || r != nil && r.Phase == causes.Released && r.ManualReleaseActive {
		return limits.LinkFault{}
	}
	takesPart := !isWorkedOn(n, r)
	if r != nil && r.NodeUID == n.UID && !r.Closed() {
		for _, c := range r.Causes {
			rule, known := p.Rule(c.Rule)
			if known && c.Link.Role != "" && c.HealthySince.IsZero() && (takesPart || c.Link.Role == limits.Origin) {
				return r.LinkFault(&c, rule.Observe)
			}
		}
	}
	for _, c := range n.Status.Conditions {
		// Since when the node is an origin counts by the time at which we have seen it, which a record has.
		if units.RoleOf(c) != limits.Victim || !takesPart {
			continue
		}
		if rule, _, matches := p.Match(n.Labels, c); matches && !rule.AlertOnly {
			return limits.LinkFault{Role: limits.Victim, Since: c.LastTransitionTime.UTC(), Observed: rule.Observe}
		}
	}
	return limits.LinkFault{}
}

// isWorkedOn tells of a node that its faults may be those of planned work: it is maintained, or others have cordoned it.
func isWorkedOn(n *corev1.Node, r *causes.Record) bool {
	return node.MarkedMaintained(n) || n.Spec.Unschedulable && (r == nil || r.HandOff == nil || !r.HandOff.Cordon)
}

// FailedSince is [units.FailedSince] of a node in its domain; the zero value if its faults may be those of planned work.
func FailedSince(
	p *policy.Policy, n *corev1.Node, r *causes.Record, domain limits.Domain, isCurrent func(corev1.NodeCondition, policy.Rule) bool,
) limits.Span {
	d, configured := p.Domain(domain.Label)
	if !configured || d.Incidents == nil || isWorkedOn(n, r) || node.DeletionTaint(n) != "" ||
		r != nil && r.Phase == causes.Released && r.ManualReleaseActive {
		return limits.Span{}
	}
	return units.FailedSince(p, n, d.Window, isCurrent)
}

// AreNeeded reports whether Decide needs the peers of a node: most nodes are healthy, and then it does not.
func AreNeeded(p *policy.Policy, n *corev1.Node, r *causes.Record, breaker *limits.BreakerState) bool {
	return r != nil || breaker != nil || slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		_, _, ok := p.Match(n.Labels, c)
		return ok
	})
}
