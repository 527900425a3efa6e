// Package simulate finds out what a remediator would do now about all nodes of a cluster. It is pure.
package simulate

import (
	"cmp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Outcome is what would become of a node.
type Outcome struct {
	// Before and After are the same object when nothing would change.
	Before, After *corev1.Node
	quarantine.Decision
}

// Stored is what remediators have remembered; nil: there is no such ConfigMap.
type Stored struct {
	// Breaker is [conditions.BreakerConfigMap], and Known [conditions.KnownConfigMap].
	Breaker, Known *corev1.ConfigMap
}

// Run decides about all nodes in the order of their names, each node after what was decided about the ones before it, and
// writes nothing. paused is why everything is paused, empty when it is not.
func Run(p *policy.Policy, nodes []corev1.Node, paused string, stored Stored, now time.Time) []Outcome {
	var open *limits.BreakerState
	if stored.Breaker != nil && p.Breaker != nil {
		open = limits.ParseBreaker(stored.Breaker.Data[limits.BreakerKey], now)
	}
	outcomes := make([]Outcome, len(nodes))
	for i := range nodes {
		outcomes[i] = Outcome{Before: &nodes[i], After: &nodes[i]}
	}
	slices.SortFunc(outcomes, func(a, b Outcome) int { return cmp.Compare(a.Before.Name, b.Before.Name) })
	memory, known := remembered(stored.Breaker, now), handoff.KnownIn(p, stored.Known)
	fleet := fleetOf(p, nodes, memory)
	for i := range outcomes {
		o := &outcomes[i]
		observation := quarantine.Observation{Node: o.Before, Paused: paused, Breaker: open, Known: &known}
		observation.Record, observation.RecordErr = causes.RecordOf(o.Before)
		observation.Visits = visit.Of(o.Before, observation.Record, now)
		observation.Seen = seen.AssumeDecided(o.Before, observation.Record)
		if peers.AreNeeded(p, o.Before, observation.Record, open) {
			observation.Peers = fleet.Others(o.Before.Name)
		}
		o.Decision = quarantine.Decide(p, observation, now)
		if o.SetBreaker != nil {
			open = o.SetBreaker.OrClosed()
		}
		if o.Changes(o.Before) {
			o.After = o.Before.DeepCopy()
			o.State.Apply(o.After)
			if o.Started != nil {
				memory, _ = memory.With(o.Started.EntryOf(p, o.After), limits.RememberFor(p), now)
			}
			fleet.Put(peers.With(p, o.After, memory[o.After.Name], limits.Domain{}))
		}
	}
	return outcomes
}

// Peers sums up all nodes for [limits.Uses]. breaker is [Stored.Breaker].
func Peers(p *policy.Policy, nodes []corev1.Node, breaker *corev1.ConfigMap, now time.Time) limits.Peers {
	return fleetOf(p, nodes, remembered(breaker, now)).Others("")
}

// fleetOf sums up the nodes that are peers, and what is remembered of others.
func fleetOf(p *policy.Policy, nodes []corev1.Node, memory limits.Memory) *limits.Fleet {
	fleet, present := limits.NewFleet(), map[string]bool{}
	for i := range nodes {
		if n := &nodes[i]; !node.Excluded(n) {
			present[n.Name] = true
			fleet.Put(peers.With(p, n, memory[n.Name], limits.Domain{}))
		}
	}
	for _, gone := range memory.GonePeers(func(node string) bool { return present[node] }) {
		fleet.Put(gone)
	}
	return fleet
}

// remembered reads what the ConfigMap remembers; nothing if it cannot be read, as the remediator does.
func remembered(breaker *corev1.ConfigMap, now time.Time) limits.Memory {
	if breaker == nil {
		return nil
	}
	memory, err := limits.ParseMemory(breaker.Data[limits.StartsKey], now)
	if err != nil {
		return nil
	}
	return memory
}
