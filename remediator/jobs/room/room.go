// Package room searches room for ranks that have to move. It reads, live, the pods of the nodes that come into question.
package room

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// Search searches room for those ranks of a job that have to move, others being what other jobs need, too. A node whose pods are too many
// or too large to judge has none: whoever may create pods can bring that about, and must not hold up the restart.
func Search(
	ctx context.Context, api client.Reader, t restart.Trigger, ranks []corev1.Pod, nodes []corev1.Node, others []capacity.Claim, now time.Time,
) (*capacity.Search, error) {
	search := capacity.New(t, ranks, nodes, others, now)
	for node := range search.Nodes() {
		var there corev1.PodList
		switch err := api.List(ctx, &there, client.MatchingFieldsSelector{Selector: podreader.ActiveOf(node.Name)}); {
		case err == nil:
			search.Place(node, there.Items)
		case !errors.Is(err, slim.ErrTooLarge):
			return nil, fmt.Errorf("list the pods on node %s: %w", node.Name, err)
		}
	}
	return search, nil
}
