package limits

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Correlated explains why a problem is rather one of the detector, or of what the nodes share. It is empty when it is not.
// condition is that of self, of which Labels, Domain and Link are read. Nodes whose condition the broken link of another one explains
// do not count, nor do those that others maintain, nor those of its domain for a node that takes part in an incident. It needs no memory:
// the nodes themselves show since when they have been faulty, so the suspicion lasts until their conditions change.
//
// For nodes that are not Ready their zone is always a scope: zones fail as a whole, and so do the networks between them.
func Correlated(p *policy.Policy, condition corev1.NodeCondition, self Peer, peers Peers) string {
	guard, labels := p.Correlated, self.Labels
	if guard == nil {
		return ""
	}
	isExplained := explained(p, self, condition.Type, peers)
	since, isReady := condition.LastTransitionTime.Time, condition.Type == corev1.NodeReady
	scopes := guard.Scopes
	if isReady && !slices.Contains(scopes, corev1.LabelTopologyZone) {
		scopes = append(slices.Clone(scopes), corev1.LabelTopologyZone)
	}
	for _, scope := range scopes {
		value, labelled := labels[scope]
		if scope != "" && !labelled {
			continue
		}
		there := peers.in(scope, labels)
		nodes, times := 1+there.checked+there.unchecked, []time.Time{since}
		isTooMany := func(count int) bool { return count >= guard.MinNodes && count*100 > nodes*guard.MaxPercent }
		if !isTooMany(1 + peers.countNotable()) {
			continue
		}
		maintained := peers.honoured(nil, since)
		for peer := range peers.notable(always.Add(-1)) {
			if peer.Gone || scope != "" && peer.Labels[scope] != value || isExplained(peer) {
				continue
			}
			at, ok := peer.ProblemSince[condition.Type]
			if ok && at.Sub(since).Abs() <= guard.Window && !maintained.explain(peer, condition.Type, at) {
				times = append(times, at)
			}
		}
		if count := mostWithin(times, since, guard.Window); isTooMany(count) {
			where := "the cluster"
			if scope != "" {
				where = scope + "=" + labels[scope]
			}
			if isReady {
				return fmt.Sprintf("%d of %d nodes of %s are not Ready, all within %s: more likely the network or the control plane than the nodes",
					count, nodes, where, guard.Window)
			}
			return fmt.Sprintf("%d of %d nodes of %s became faulty within %s: the detector, or what they share, is suspect",
				count, nodes, where, guard.Window)
		}
	}
	return ""
}

// mostWithin is the largest number of times within one window that includes a given one.
func mostWithin(times []time.Time, including time.Time, window time.Duration) int {
	slices.SortFunc(times, time.Time.Compare)
	most, first := 0, 0
	for last, at := range times {
		for at.Sub(times[first]) > window {
			first++
		}
		if !times[first].After(including) && !at.Before(including) {
			most = max(most, last-first+1)
		}
	}
	return most
}
