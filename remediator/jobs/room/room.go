// Package room searches room for ranks that have to move. It reads, live, the pods of the nodes that come into question.
package room

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
)

// Search searches room for those ranks of a job that have to move, claimed being how many ranks of other jobs need room, too.
func Search(
	ctx context.Context, api client.Reader, t restart.Trigger, ranks []corev1.Pod, nodes []corev1.Node, claimed int, now time.Time,
) (*capacity.Search, error) {
	search := capacity.New(t, ranks, nodes, claimed, now)
	for node := range search.Nodes() {
		var there corev1.PodList
		if err := api.List(ctx, &there, client.MatchingFields{"spec.nodeName": node.Name}); err != nil {
			return nil, fmt.Errorf("list the pods on node %s: %w", node.Name, err)
		}
		search.Place(node, there.Items)
	}
	return search, nil
}
