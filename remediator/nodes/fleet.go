package nodes

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// fleet is the sum of all nodes for the limits, as the cache, the pending writes and the memory of quarantines show them. A node is
// summed up anew when one of these has changed for it, and all are when the policy has. [Controller.deciding] guards it.
type fleet struct {
	policy *policy.Policy // nil: nothing is summed up
	peers  *limits.Fleet
	memory limits.Memory
}

// follow passes the changes of nodes in the cache that can change a decision, and notes all of them before, heartbeats included: a decision
// knows of what came before the change that it was made for. While the fleet is summed up and no decision is being made, it is brought up
// to date at once, so that the next decision need not do it for all.
func (c *Controller) follow(ctx context.Context) predicate.Predicate {
	return predicate.And(predicate.NewPredicateFuncs(func(n client.Object) bool {
		c.pending.Touch(n.GetName())
		if c.deciding.TryLock() {
			defer c.deciding.Unlock()
			if c.fleet.policy != nil {
				_ = c.refreshFleet(ctx, c.fleet.policy) // the next decision reports it, and tries again
			}
		}
		return true
	}), changed, c.counted())
}

// counted tells the burst of the nodes that will be reconciled.
func (c *Controller) counted() predicate.Predicate {
	every := predicate.NewPredicateFuncs(func(n client.Object) bool {
		c.burst.Change(n.GetName(), n.GetResourceVersion())
		return true
	})
	changes := every.CreateFunc
	every.CreateFunc = func(e event.CreateEvent) bool {
		if !e.IsInInitialList {
			return changes(e)
		}
		c.burst.LookAgain(e.Object.GetName())
		return true
	}
	return every
}

// peers are all nodes but one. The result is valid until the next call.
func (c *Controller) peers(ctx context.Context, p *policy.Policy, except string) (limits.Peers, error) {
	if err := c.rememberLost(ctx); err != nil {
		return limits.Peers{}, err
	}
	if err := c.refreshFleet(ctx, p); err != nil {
		return limits.Peers{}, err
	}
	return c.fleet.peers.Others(except), nil
}

// rememberLost remembers the doubtful writes of nodes that were deleted or replaced, which nobody has noticed yet.
func (c *Controller) rememberLost(ctx context.Context) error {
	for name, w := range c.pending.AllDoubtful() {
		n, err := c.cachedNode(ctx, name)
		if err != nil {
			return err
		}
		if n == nil || n.UID != w.UID {
			c.rememberDoubtful(w)
		}
	}
	return nil
}

// refreshFleet brings the fleet up to date. After an error it begins anew.
func (c *Controller) refreshFleet(ctx context.Context, p *policy.Policy) error {
	memory := c.breaker.remembered()
	if c.fleet.policy != p {
		return c.sumUpAll(ctx, p, memory)
	}
	names := c.pending.TakeTouched()
	if !memory.Is(c.fleet.memory) {
		maps.Copy(names, memory.Differing(c.fleet.memory))
		c.fleet.memory = memory
	}
	for name := range names {
		n, err := c.cachedNode(ctx, name)
		if err != nil {
			c.fleet = fleet{}
			return err
		}
		c.put(name, n)
	}
	return nil
}

// sumUpAll begins anew.
func (c *Controller) sumUpAll(ctx context.Context, p *policy.Policy, memory limits.Memory) error {
	c.fleet = fleet{}
	c.pending.TakeTouched() // before the nodes are read: what changes from now on is summed up again
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	c.fleet = fleet{p, limits.NewFleet(), memory}
	for name := range memory {
		c.put(name, nil)
	}
	for i := range nodes.Items {
		c.put(nodes.Items[i].Name, &nodes.Items[i])
	}
	return nil
}

// cachedNode is the node in the cache, which must not be changed; nil: there is none.
func (c *Controller) cachedNode(ctx context.Context, name string) (*corev1.Node, error) {
	var n corev1.Node
	err := c.client.Get(ctx, client.ObjectKey{Name: name}, &n, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return &n, nil
}

// peerAsWritten sums up a node with the write that is pending. One that gives a place back does so once the cache shows it: it may still
// fail, and the quarantine of another node may reach the API server before it.
func (c *Controller) peerAsWritten(n *corev1.Node, remembered *limits.NodeStarts) limits.Peer {
	shown := peers.With(c.fleet.policy, n, remembered, c.domains.of(n))
	if !c.pending.HasRecord(n.Name) {
		return shown
	}
	n = n.DeepCopy()
	c.pending.Overlay(n)
	written := peers.With(c.fleet.policy, n, remembered, c.domains.of(n))
	if !c.dryRun && (shown.OutOfService && !written.OutOfService || shown.Soft && !written.Soft) {
		return shown
	}
	return written
}

// put sums up the node of a name. Without one that is a peer, what is remembered of it counts.
func (c *Controller) put(name string, n *corev1.Node) {
	remembered := c.fleet.memory[name]
	switch {
	case n != nil && !node.Excluded(n):
		peer := c.peerAsWritten(n, remembered)
		c.domains.note(n, peer.Domain)
		c.fleet.peers.Put(peer)
	case remembered != nil:
		c.fleet.peers.Put(remembered.GonePeer(name))
	default:
		c.fleet.peers.Delete(name)
	}
}
