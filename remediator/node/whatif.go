package node

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Outcome is what would become of a node.
type Outcome struct {
	Before, After *corev1.Node
	Decision
}

// WhatIf says what a remediator with this policy would do now about all nodes of a cluster. It decides in the order of their
// names, each node after what was decided about the ones before it, and writes nothing. paused is why everything is paused,
// breaker the ConfigMap [conditions.BreakerConfigMap] or nil.
func WhatIf(p *policy.Policy, nodes []corev1.Node, paused string, breaker *corev1.ConfigMap, now time.Time) []Outcome {
	var open *BreakerState
	if breaker != nil && p.Breaker != nil {
		open = parseBreaker(breaker.Data["state"], now)
	}
	outcomes := make([]Outcome, len(nodes))
	for i := range nodes {
		outcomes[i] = Outcome{Before: &nodes[i], After: &nodes[i]}
	}
	slices.SortFunc(outcomes, func(a, b Outcome) int { return cmp.Compare(a.Before.Name, b.Before.Name) })
	peers := make([]Peer, len(outcomes))
	for i, o := range outcomes {
		peers[i] = peerOf(p, o.Before)
	}
	for i := range outcomes {
		o := &outcomes[i]
		observation := Observation{Node: o.Before, Paused: paused, Breaker: open}
		observation.Record, observation.RecordErr = RecordOf(o.Before)
		// The peers matter to nobody else, see [Controller.observe].
		matters := observation.Record != nil || open != nil || len(peers[i].Turned) > 0
		for k := range outcomes {
			if matters && k != i && !handsOff(outcomes[k].Before) {
				observation.Peers = append(observation.Peers, peers[k])
			}
		}
		o.Decision = Decide(p, observation, now)
		if set := o.SetBreaker; set != nil {
			open = set
			if set.OpenedAt.IsZero() {
				open = nil
			}
		}
		if o.changes(o.Before) {
			o.After = o.Before.DeepCopy()
			o.State.apply(o.After)
			peers[i] = peerOf(p, o.After)
		}
	}
	return outcomes
}
