// Package pending holds the records that were written over nodes and that the cache does not show yet.
package pending

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/resourceversion"
)

// Kind is a kind of record, with R as its pointer type; a nil pointer is no record.
type Kind[R comparable] struct {
	Annotation string
	// Text is the annotation of a record; empty: there is none.
	Text func(R) string
	// Overlay changes a node into what it is with the record.
	Overlay func(*corev1.Node, R)
}

// Writes are the records that this process has written, or may have written, and that the cache does not show yet or,
// in a dry run, ever. They keep the places under the limits. There is at most one for each node. L is what is to be reported once the
// node is known to have a write whose answer was lost.
type Writes[R comparable, L any] struct {
	DryRun bool
	kind   Kind[R]

	mu     sync.Mutex
	byNode map[string]Write[R, L]
	// touched are the nodes that must be summed up again, because of a write or of what the cache shows.
	touched touched
}

// Write is a record that was written over a version of a node, or is being written.
type Write[R comparable, L any] struct {
	Record R
	UID    types.UID
	// Over is the resourceVersion of the node that it was computed from.
	Over string
	// Lost is set while it is not known whether the node has the record.
	Lost *L
	// earlier was written over the same version; the cache shows neither. nil: there was none.
	earlier *Write[R, L]
	// failed is set once the node is known not to have it. It keeps its place until the node is decided again.
	failed bool
}

// New makes an empty one.
func New[R comparable, L any](kind Kind[R], dryRun bool) *Writes[R, L] {
	return &Writes[R, L]{DryRun: dryRun, kind: kind, byNode: map[string]Write[R, L]{}}
}

// Add notes that a record is written over a node.
func (w *Writes[R, L]) Add(before *corev1.Node, record R) {
	w.mu.Lock()
	defer w.mu.Unlock()
	write := Write[R, L]{Record: record, UID: before.UID, Over: before.ResourceVersion}
	if last, ok := w.byNode[before.Name]; ok && last.UID == write.UID && last.Over == write.Over {
		last.earlier = nil
		write.earlier = &last
	}
	w.set(before.Name, &write)
}

// set changes what is pending for a node; nil: nothing. w.mu must be held.
func (w *Writes[R, L]) set(node string, write *Write[R, L]) {
	if write != nil {
		w.byNode[node] = *write
	} else {
		delete(w.byNode, node)
	}
	w.touched.add(node)
}

// Discard drops the write of a node that is gone.
func (w *Writes[R, L]) Discard(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(node, nil)
}

// Refused drops a write that the API server has refused. The one before it stands if the cache does not show it yet: the
// Refused one was computed from an old version.
func (w *Writes[R, L]) Refused(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(node, w.byNode[node].earlier)
}

// Doubt notes that the answer to a write was lost, so that the node may have it or not.
func (w *Writes[R, L]) Doubt(node string, lost L) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pending, ok := w.byNode[node]; ok {
		pending.Lost = &lost
		w.set(node, &pending)
	}
}

// Doubtful is the write of the node whose answer was lost, if there is one.
func (w *Writes[R, L]) Doubtful(node string) (Write[R, L], bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[node]
	return pending, ok && pending.Lost != nil
}

// Settle ends the doubt about a write by what the node is now; nil: it is gone. It reports whether the node has the write.
func (w *Writes[R, L]) Settle(node string, now *corev1.Node) (written bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[node]
	if !ok || pending.Lost == nil {
		return false
	}
	pending.Lost, pending.earlier = nil, nil
	if now == nil || now.UID != pending.UID {
		w.set(node, nil)
		return false
	}
	if now.ResourceVersion == pending.Over {
		pending.failed = true
		w.set(node, &pending)
		return false
	}
	if now.Annotations[w.kind.Annotation] != w.kind.Text(pending.Record) {
		// Another writer came first or later. What it wrote is input like any record, so it is not put over the cache.
		pending.failed = true
		w.set(node, &pending)
		return false
	}
	w.set(node, &pending)
	return true
}

// DropFailed gives up the place of a write that the node does not have. The node is decided right after it.
func (w *Writes[R, L]) DropFailed(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byNode[node].failed {
		w.set(node, nil)
	}
}

// Overlay changes a node as the cache shows it into the node as it was written. A doubt outlives what the cache shows until
// [Writes.Settle] ends it: the decision is still to be reported, or remembered.
func (w *Writes[R, L]) Overlay(n *corev1.Node) {
	if write, ok := w.shows(n); ok {
		w.kind.Overlay(n, write.Record)
	}
}

// Overlaid is a node as it was written, if the cache does not show that: a copy, or the node itself.
func (w *Writes[R, L]) Overlaid(n *corev1.Node) *corev1.Node {
	write, ok := w.shows(n)
	if !ok {
		return n
	}
	return w.With(n, write)
}

// With is a node with a write of [Writes.All], unless it is newer: a copy, or the node itself.
func (w *Writes[R, L]) With(n *corev1.Node, write Write[R, L]) *corev1.Node {
	if w.isOver(write, n) {
		return n
	}
	n = n.DeepCopy()
	w.kind.Overlay(n, write.Record)
	return n
}

// isOver reports whether a node is as new as a write, or as what came in its place. A write only succeeds on the version that it was
// computed from, so each newer one is. The node may be older than that version, which may have been read live.
func (w *Writes[R, L]) isOver(write Write[R, L], n *corev1.Node) bool {
	if write.UID != n.UID || w.DryRun {
		return write.UID != n.UID
	}
	order, err := resourceversion.CompareResourceVersion(n.ResourceVersion, write.Over)
	return order > 0 || err != nil && n.ResourceVersion != write.Over
}

// shows is the write that a node does not have in the cache. One that it has is dropped.
func (w *Writes[R, L]) shows(n *corev1.Node) (Write[R, L], bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[n.Name]
	if !ok || !w.isOver(pending, n) {
		return pending, ok
	}
	if pending.Lost == nil {
		w.set(n.Name, nil)
	}
	return pending, false
}

// HasRecord reports whether the write of a record is pending. One that removes a record frees no place until the cache shows it.
func (w *Writes[R, L]) HasRecord(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	var none R
	return w.byNode[node].Record != none
}

// AllDoubtful are the writes whose answers were lost, by node.
func (w *Writes[R, L]) AllDoubtful() map[string]Write[R, L] {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := map[string]Write[R, L]{}
	for name, pending := range w.byNode {
		if pending.Lost != nil {
			lost[name] = pending
		}
	}
	return lost
}

// All copies the pending writes, by node.
func (w *Writes[R, L]) All() map[string]Write[R, L] {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.byNode)
}

// Touch notes that something has changed of a node.
func (w *Writes[R, L]) Touch(node string) { w.touched.add(node) }

// TakeTouched returns the nodes that were touched, and notes further ones from now on.
func (w *Writes[R, L]) TakeTouched() map[string]bool { return w.touched.take() }

// touched are the names of nodes of which something has changed since they were summed up. The order in which they are noted and
// summed up does not matter: what is summed up is what the cache shows then.
type touched struct {
	mu    sync.Mutex
	names map[string]bool // nil: they are not taken yet
}

func (t *touched) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.names != nil {
		t.names[name] = true
	}
}

// take returns the names and notes further ones from now on.
func (t *touched) take() map[string]bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	taken := t.names
	t.names = map[string]bool{}
	return taken
}
