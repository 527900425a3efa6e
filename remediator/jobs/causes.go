package jobs

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// maxConfirmed bounds the memory of confirmed causes. Of more, the oldest are looked up again.
const maxConfirmed = 10_000

// causes confirms the causes that the records of jobs name. A cause is true if this process was called for it, by the node
// controller, for a failed pod or for a job that stands still, or if the quarantine record of that Node has it. Whoever may write a job cannot write either.
type causes struct {
	// client has the cache of the nodes: to confirm a cause costs no request.
	client client.Reader

	mu        sync.Mutex
	confirmed *lru.Cache
}

// causeKey is what a cause has to have in common with the quarantine.
type causeKey struct {
	id, node string
	nodeUID  types.UID
}

func newCauses(cached client.Reader) *causes {
	return &causes{client: cached, confirmed: lru.New(maxConfirmed)}
}

// remember keeps a cause that this process was called for.
func (k *causes) remember(c restart.Cause) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.confirmed.Add(causeKey{c.ID, c.Node, c.NodeUID}, nil)
}

// confirm reports whether a cause is true.
func (k *causes) confirm(ctx context.Context, c restart.Cause) (bool, error) {
	k.mu.Lock()
	_, known := k.confirmed.Get(causeKey{c.ID, c.Node, c.NodeUID})
	k.mu.Unlock()
	if known || c.ID == "" || c.Kind() == restart.JobStalled {
		return known, nil
	}
	var node corev1.Node
	if err := k.client.Get(ctx, client.ObjectKey{Name: c.Node}, &node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return false, nil
		}
		return false, fmt.Errorf("get node %s: %w", c.Node, err)
	}
	if !hasCause(&node, c) {
		return false, nil
	}
	k.remember(c)
	return true, nil
}

// hasCause reports whether the Node's own record has the quarantine, or had it lately.
func hasCause(node *corev1.Node, c restart.Cause) bool {
	rec, err := quarantine.RecordOf(node)
	if err != nil || rec == nil || rec.NodeUID != node.UID || c.NodeUID != node.UID {
		return false
	}
	return slices.ContainsFunc(append([]quarantine.Quarantine{rec.Quarantine}, rec.Last...), func(q quarantine.Quarantine) bool {
		return q.ID == c.ID && q.Taint != nil
	})
}
