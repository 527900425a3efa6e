package nodes

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// pendingWrites are the records that this process has written, or may have written, and that the cache does not show yet or,
// in a dry run, ever. They keep the places under the budgets. There is at most one for each node.
type pendingWrites struct {
	dryRun bool

	mu     sync.Mutex
	byNode map[string]pendingWrite
	// touched are the nodes that must be summed up anew, because of a write or of what the cache shows.
	touched touched
}

// pendingWrite is a record that was written over a version of a node, or is being written.
type pendingWrite struct {
	record *quarantine.Record
	uid    types.UID
	// over is the resourceVersion of the node that it was computed from.
	over string
	// earlier was written over the same version; the cache shows neither. nil: there was none.
	earlier *pendingWrite
	// unanswered is set while it is not known whether the node has the record.
	unanswered *unansweredWrite
	// failed is set once the node is known not to have it. It keeps its place until the node is decided again.
	failed bool
}

// unansweredWrite is what is to be reported once the node is known to carry the decision.
type unansweredWrite struct {
	decision quarantine.Decision
	started  time.Time
	// node is as it was to be written.
	node *corev1.Node
}

func newPendingWrites(dryRun bool) *pendingWrites {
	return &pendingWrites{dryRun: dryRun, byNode: map[string]pendingWrite{}}
}

// add notes that a record is written over a node.
func (w *pendingWrites) add(before *corev1.Node, record *quarantine.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	write := pendingWrite{record: record, uid: before.UID, over: before.ResourceVersion}
	if last, ok := w.byNode[before.Name]; ok && last.uid == write.uid && last.over == write.over {
		last.earlier = nil
		write.earlier = &last
	}
	w.set(before.Name, &write)
}

// set changes what is pending for a node; nil: nothing. w.mu must be held.
func (w *pendingWrites) set(node string, write *pendingWrite) {
	if write != nil {
		w.byNode[node] = *write
	} else {
		delete(w.byNode, node)
	}
	w.touched.add(node)
}

// discard drops the write of a node that is gone.
func (w *pendingWrites) discard(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(node, nil)
}

// refused drops a write that the API server has refused. The one before it stands if the cache does not show it yet: the
// refused one was computed from an old version.
func (w *pendingWrites) refused(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(node, w.byNode[node].earlier)
}

// doubt notes that the answer to a write was lost, so that the node may have it or not.
func (w *pendingWrites) doubt(node string, lost unansweredWrite) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pending, ok := w.byNode[node]; ok {
		pending.unanswered = &lost
		w.set(node, &pending)
	}
}

// doubtful is the write of the node whose answer was lost, if there is one.
func (w *pendingWrites) doubtful(node string) (pendingWrite, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[node]
	return pending, ok && pending.unanswered != nil
}

// settle ends the doubt about a write by what the node is now; nil: it is gone. It tells whether the node has the write.
func (w *pendingWrites) settle(node string, now *corev1.Node) (written bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[node]
	if !ok || pending.unanswered == nil {
		return false
	}
	pending.unanswered, pending.earlier = nil, nil
	if now == nil || now.UID != pending.uid {
		w.set(node, nil)
		return false
	}
	if now.ResourceVersion == pending.over {
		pending.failed = true
		w.set(node, &pending)
		return false
	}
	text := ""
	if pending.record != nil {
		text = pending.record.String()
	}
	if now.Annotations[conditions.AnnotationQuarantine] != text {
		// Another writer came first or later. What it wrote is input like any record, so it is not put over the cache.
		pending.failed = true
		w.set(node, &pending)
		return false
	}
	w.set(node, &pending)
	return true
}

// dropFailed gives up the place of a write that the node does not have. The node is decided right after it.
func (w *pendingWrites) dropFailed(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byNode[node].failed {
		w.set(node, nil)
	}
}

// overlay changes a node as the cache shows it into the node as it was written. A write only succeeds on the version it was
// computed from, so a cache that shows any other version shows the write, or what came in its place. A doubt outlives that until
// [pendingWrites.settle] ends it: the decision is still to be reported, or remembered.
func (w *pendingWrites) overlay(n *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[n.Name]
	if !ok {
		return
	}
	if pending.uid != n.UID || pending.over != n.ResourceVersion && !w.dryRun {
		if pending.unanswered == nil {
			w.set(n.Name, nil)
		}
		return
	}
	quarantine.Overlay(n, pending.record)
}

// hasRecord tells whether the write of a record is pending. One that removes a record frees no place until the cache shows it.
func (w *pendingWrites) hasRecord(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byNode[node].record != nil
}

// allDoubtful are the writes whose answers were lost, by node.
func (w *pendingWrites) allDoubtful() map[string]pendingWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := map[string]pendingWrite{}
	for name, pending := range w.byNode {
		if pending.unanswered != nil {
			lost[name] = pending
		}
	}
	return lost
}

// all copies the pending writes, by node.
func (w *pendingWrites) all() map[string]pendingWrite {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.byNode)
}
