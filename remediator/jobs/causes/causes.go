// Package causes confirms what the record of a job says about why it is restarted.
package causes

import (
	"context"
	"fmt"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/lru"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// maxConfirmed bounds the memory of confirmed causes. Of more, the oldest are looked up again.
const maxConfirmed = 10_000

// Confirmed confirms the causes that the records of jobs name. A cause is true if this process was called for it, by the node
// controller, for a failed pod or for a stalled job, or if the quarantine record of that Node has it. Whoever may write a job cannot write
// either.
type Confirmed struct {
	client client.Reader

	mu        sync.Mutex
	confirmed *lru.Cache
}

// causeKey is what a cause has to have in common with the quarantine.
type causeKey struct {
	id, node string
	nodeUID  types.UID
}

// New returns a memory of confirmed causes over the cache of the nodes: to confirm a cause costs no request.
func New(cached client.Reader) *Confirmed {
	return &Confirmed{client: cached, confirmed: lru.New(maxConfirmed)}
}

// Remember keeps a cause that this process was called for.
func (k *Confirmed) Remember(c restart.Cause) {
	k.add(c, c.Kind())
}

func (k *Confirmed) add(c restart.Cause, kind restart.TriggerKind) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.confirmed.Add(causeKey{c.ID, c.Node, c.NodeUID}, kind)
}

// Confirm reports whether a cause is true.
func (k *Confirmed) Confirm(ctx context.Context, c restart.Cause) (bool, error) {
	kind, err := k.Kind(ctx, c)
	return kind != "", err
}

// Kind returns of which kind a true cause is; empty: it is not true. The record of the job does not decide that.
func (k *Confirmed) Kind(ctx context.Context, c restart.Cause) (restart.TriggerKind, error) {
	k.mu.Lock()
	known, ok := k.confirmed.Get(causeKey{c.ID, c.Node, c.NodeUID})
	k.mu.Unlock()
	if ok {
		return known.(restart.TriggerKind), nil //nolint:forcetypeassert // nothing else is in it
	}
	if c.ID == "" || c.Node == "" {
		return "", nil
	}
	var node corev1.Node
	if err := k.client.Get(ctx, client.ObjectKey{Name: c.Node}, &node); err != nil {
		if client.IgnoreNotFound(err) == nil {
			return "", nil
		}
		return "", fmt.Errorf("get node %s: %w", c.Node, err)
	}
	if !hasCause(&node, c) {
		return "", nil
	}
	k.add(c, restart.NodeQuarantined)
	return restart.NodeQuarantined, nil
}

// AnyNodeFault reports whether one of the causes is true, and whether one that is true is the quarantine of a node.
func (k *Confirmed) AnyNodeFault(ctx context.Context, all []restart.Cause) (confirmed, nodeFault bool, err error) {
	for _, c := range all {
		kind, err := k.Kind(ctx, c)
		if err != nil {
			return false, false, err
		}
		confirmed = confirmed || kind != ""
		nodeFault = nodeFault || kind == restart.NodeQuarantined
	}
	return confirmed, nodeFault, nil
}

// hasCause reports whether the Node's own record has the quarantine, or had it lately.
func hasCause(node *corev1.Node, c restart.Cause) bool {
	rec, err := causes.RecordOf(node)
	if err != nil || rec == nil || rec.NodeUID != node.UID || c.NodeUID != node.UID {
		return false
	}
	return slices.ContainsFunc(append([]causes.Quarantine{rec.Quarantine}, rec.Last...), func(q causes.Quarantine) bool {
		return q.ID == c.ID && q.Taint != nil
	})
}

// Of returns those of the causes that are true, in order.
func (k *Confirmed) Of(ctx context.Context, all []restart.Cause) ([]restart.Cause, error) {
	var confirmed []restart.Cause
	for _, c := range all {
		ok, err := k.Confirm(ctx, c)
		if err != nil {
			return nil, err
		}
		if ok {
			confirmed = append(confirmed, c)
		}
	}
	return slices.Clip(confirmed), nil
}
