package nodes

import (
	"context"
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// fleet is the sum of all nodes for the limits, as the cache, the pending writes and the memory of quarantines show them. A node is
// summed up again when one of these has changed for it, and all are when the policy has. [Controller.deciding] guards it.
type fleet struct {
	client  client.Reader // the cache
	pending *writes
	breaker *memory.Breaker
	// dryRun frees a place at once that a write gives back.
	dryRun  bool
	domains domains
	// held are the nodes that a budget or the breaker holds back, by name.
	held map[string]limitsState

	policy *policy.Policy // nil: nothing is summed up
	peers  *limits.Fleet
	memory limits.Memory
}

func newFleet(c *Controller) *fleet {
	return &fleet{client: c.client, pending: c.pending, breaker: c.breaker, dryRun: c.dryRun, domains: domains{},
		held: map[string]limitsState{}}
}

// others are all nodes but one. The result is valid until the next call.
func (f *fleet) others(ctx context.Context, p *policy.Policy, except string) (limits.Peers, error) {
	if err := f.rememberLost(ctx, p); err != nil {
		return limits.Peers{}, err
	}
	if err := f.refresh(ctx, p); err != nil {
		return limits.Peers{}, err
	}
	return f.peers.Others(except), nil
}

// rememberDoubtful notes the start of a write whose answer was lost. It counts, too, once the node is gone, so that no one will
// know whether it was written.
func (f *fleet) rememberDoubtful(p *policy.Policy, w write) {
	f.breaker.Remember(p, w.Lost.Node, w.Lost.Decision.Started)
}

// rememberLost remembers the doubtful writes of nodes that were deleted or replaced, which were not noticed yet.
func (f *fleet) rememberLost(ctx context.Context, p *policy.Policy) error {
	for name, w := range f.pending.AllDoubtful() {
		n, err := cachedNode(ctx, f.client, name)
		if err != nil {
			return err
		}
		if n == nil || n.UID != w.UID {
			f.rememberDoubtful(p, w)
		}
	}
	return nil
}

// refresh brings the fleet up to date. After an error it starts over.
func (f *fleet) refresh(ctx context.Context, p *policy.Policy) error {
	remembered := f.breaker.Remembered()
	if f.policy != p {
		return f.refreshAll(ctx, p, remembered)
	}
	names := f.pending.TakeTouched()
	if !remembered.Is(f.memory) {
		maps.Copy(names, remembered.Differing(f.memory))
		f.memory = remembered
	}
	for name := range names {
		n, err := cachedNode(ctx, f.client, name)
		if err != nil {
			f.policy = nil
			return err
		}
		f.updatePeer(name, n)
	}
	return nil
}

// refreshAll starts over.
func (f *fleet) refreshAll(ctx context.Context, p *policy.Policy, remembered limits.Memory) error {
	f.policy = nil
	f.pending.TakeTouched() // before the nodes are read: what changes from now on is summed up again
	var nodes corev1.NodeList
	if err := f.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		return fmt.Errorf("list nodes: %w", err)
	}
	f.policy, f.peers, f.memory = p, limits.NewFleet(), remembered
	for name := range remembered {
		f.updatePeer(name, nil)
	}
	for i := range nodes.Items {
		f.updatePeer(nodes.Items[i].Name, &nodes.Items[i])
	}
	return nil
}

// cachedNode returns the node in the cache, which must not be changed; nil: there is none.
func cachedNode(ctx context.Context, cache client.Reader, name string) (*corev1.Node, error) {
	var n corev1.Node
	err := cache.Get(ctx, client.ObjectKey{Name: name}, &n, client.UnsafeDisableDeepCopy)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return &n, nil
}

// asWritten sums up a node with the write that is pending. One that gives a place back does so once the cache shows it: it may still
// fail, and the quarantine of another node may reach the API server before it.
func (f *fleet) asWritten(n *corev1.Node, remembered *limits.NodeStarts) limits.Peer {
	shown := peers.With(f.policy, n, remembered, f.domains.of(n))
	if !f.pending.HasRecord(n.Name) {
		return shown
	}
	n = n.DeepCopy()
	f.pending.Overlay(n)
	written := peers.With(f.policy, n, remembered, f.domains.of(n))
	if !f.dryRun && (shown.OutOfService && !written.OutOfService || shown.Soft && !written.Soft) {
		return shown
	}
	return written
}

// updatePeer sums up the node of a name. Without one that is a peer, what is remembered of it counts.
func (f *fleet) updatePeer(name string, n *corev1.Node) {
	remembered := f.memory[name]
	switch {
	case n != nil && !node.Excluded(n):
		peer := f.asWritten(n, remembered)
		f.domains.note(n, peer.Domain)
		f.peers.Put(peer)
	case remembered != nil:
		f.peers.Put(remembered.GonePeer(name))
	default:
		f.peers.Delete(name)
	}
}

// domains remembers the domain of each node, by its name: the label vanishes when the fabric is faulty, often before the fault is
// reported. Without domains in the policy it holds nothing.
type domains map[string]lastDomain

type lastDomain struct {
	node   types.UID
	domain limits.Domain
}

// of is the domain that is remembered of the node; the zero value: none.
func (d domains) of(n *corev1.Node) limits.Domain {
	if last, ok := d[n.Name]; ok && last.node == n.UID {
		return last.domain
	}
	return limits.Domain{}
}

// note remembers the domain of the node, or drops what it remembers.
func (d domains) note(n *corev1.Node, domain limits.Domain) {
	if domain == (limits.Domain{}) {
		delete(d, n.Name)
		return
	}
	d[n.Name] = lastDomain{n.UID, domain}
}
