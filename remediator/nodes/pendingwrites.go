package nodes

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// pendingWrites are the records that this process has written and that the cache does not show yet or, in a dry run, ever.
// Losing them costs a refused write, nothing else. There is at most one for each node.
type pendingWrites struct {
	dryRun bool

	mu     sync.Mutex
	byNode map[string]pendingWrite
}

// pendingWrite is a record that was written over a version of a node, or is being written.
type pendingWrite struct {
	record *quarantine.Record
	uid    types.UID
	// over is the resourceVersion of the node that it was computed from.
	over string
}

func newPendingWrites(dryRun bool) *pendingWrites {
	return &pendingWrites{dryRun: dryRun, byNode: map[string]pendingWrite{}}
}

// add notes that a record is written over a node.
func (w *pendingWrites) add(before *corev1.Node, record *quarantine.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.byNode[before.Name] = pendingWrite{record, before.UID, before.ResourceVersion}
}

// discard drops a write that was refused, or that of a node that is gone. Should an earlier write stand that the cache does
// not show yet, then the next decision is made on an old version, and is refused as well.
func (w *pendingWrites) discard(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.byNode, node)
}

// overlay changes a node as the cache shows it into the node as it was written. A write only succeeds on the version it was
// computed from, so a cache that shows any other version shows the write, or what came after it.
func (w *pendingWrites) overlay(n *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[n.Name]
	if !ok {
		return
	}
	if pending.uid != n.UID || pending.over != n.ResourceVersion && !w.dryRun {
		delete(w.byNode, n.Name)
		return
	}
	quarantine.Overlay(n, pending.record)
}

// all copies the pending writes, by node.
func (w *pendingWrites) all() map[string]pendingWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.byNode)
}
