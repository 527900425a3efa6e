package quarantine

import (
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// failedSince is when two independent witnesses on a node of a domain, the fabric ports and one more, have begun to say that the node has
// failed; the zero value: they do not. Of several such pairs it is the one whose conditions began closest together. isCurrent tells whether a
// condition that matches a rule counts now.
//
// A driver, a rollout of it or its detector can be wrong about many nodes at once, and makes conditions of many types. A rollout that restarts
// the nodes makes them not Ready, too. Neither takes down the ports of the fabric, so these must have failed.
func failedSince(p *policy.Policy, n *corev1.Node, r *Record, domain limits.Domain, isCurrent func(corev1.NodeCondition, policy.Rule) bool) limits.Span {
	d, configured := p.Domain(domain.Label)
	if !configured || d.Incidents == nil || isWorkedOn(n, r) || deletionTaint(n) != "" || r != nil && r.Phase == Released && r.ManualReleaseActive {
		return limits.Span{}
	}
	var ports, others []time.Time
	for _, c := range n.Status.Conditions {
		witness := conditions.WitnessOf(string(c.Type))
		rule, _, matches := p.Match(n.Labels, c)
		switch acts := matches && !rule.AlertOnly && !rule.Observe && isCurrent(c, rule); {
		case c.Type == corev1.NodeReady:
			if _, notReady := NotReady(n); notReady && (acts || !matches) && !hasNeverBeenReady(n, c) {
				others = append(others, c.LastTransitionTime.UTC())
			}
		case !acts:
		case witness == conditions.FabricPorts:
			ports = append(ports, c.LastTransitionTime.UTC())
		case witness != "":
			others = append(others, c.LastTransitionTime.UTC())
		}
	}
	var closest limits.Span
	for _, a := range ports {
		for _, b := range others {
			pair := limits.Span{From: a, Until: b}
			if b.Before(a) {
				pair = limits.Span{From: b, Until: a}
			}
			if apart := pair.Until.Sub(pair.From); apart <= d.Window && (closest.From.IsZero() || apart < closest.Until.Sub(closest.From)) {
				closest = pair
			}
		}
	}
	return closest
}

// failed is [failedSince] for the node of the decision.
func (d *decider) failed() limits.Span {
	return failedSince(d.policy, d.observed.Node, d.record, d.domain, d.conditions.isCurrent)
}

// incident is the incident as a part of which the node is to be quarantined for a problem; nil: it is not. The problem must be of a witness,
// and of the same time. why explains that the node is in none although it has failed.
func (d *decider) incident(p problem) (incident *limits.Incident, why string) {
	domain, configured := d.policy.Domain(d.domain.Label)
	if !configured || domain.Incidents == nil || limits.IsSoft(p.rule.Taint.Effect) || p.reach != wholeNode ||
		!p.isReady() && conditions.WitnessOf(string(p.condition.Type)) == "" {
		return nil, ""
	}
	failed, since := d.failed(), p.condition.LastTransitionTime.Time
	if since.Sub(failed.From).Abs() > domain.Window || since.Sub(failed.Until).Abs() > domain.Window {
		return nil, ""
	}
	if incident, why = d.observed.Peers.IncidentOf(domain, limits.Peer{Domain: d.domain, Failed: failed}); incident == nil {
		return nil, why
	}
	for _, other := range d.conditions.problems {
		isPorts := conditions.WitnessOf(string(other.condition.Type)) == conditions.FabricPorts
		if isPorts && limits.Correlated(d.policy, other.condition, d.self(other), d.observed.Peers.Beside(incident)) != "" {
			return nil, fmt.Sprintf("ports are down in other domains than %s, too", d.domain)
		}
	}
	return incident, ""
}

// ofIncident says that the node is quarantined as a part of an incident, if it is.
func (d *decider) ofIncident(p problem) string {
	incident, _ := d.incident(p)
	if incident == nil {
		return ""
	}
	return fmt.Sprintf("; one of %d nodes or more of %s that have failed together, which use up one place of each limit", incident.Nodes, incident.Domain)
}
