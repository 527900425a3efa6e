// Package pending holds the writes of nodes that the cache does not show yet, and those whose answers were lost.
package pending

import (
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Writes are the records that this process has written, or may have written, and that the cache does not show yet or,
// in a dry run, ever. They keep the places under the budgets. There is at most one for each node.
type Writes struct {
	DryRun bool

	mu     sync.Mutex
	byNode map[string]Write
	// touched are the nodes that must be summed up anew, because of a write or of what the cache shows.
	touched touched
}

// Write is a record that was written over a version of a node, or is being written.
type Write struct {
	Record *causes.Record
	UID    types.UID
	// Over is the resourceVersion of the node that it was computed from.
	Over string
	// earlier was written over the same version; the cache shows neither. nil: there was none.
	earlier *Write
	// Unanswered is set while it is not known whether the node has the record.
	Unanswered *Unanswered
	// failed is set once the node is known not to have it. It keeps its place until the node is decided again.
	failed bool
}

// Unanswered is what is to be reported once the node is known to carry the decision.
type Unanswered struct {
	Decision quarantine.Decision
	Started  time.Time
	// Node is as it was to be written.
	Node *corev1.Node
}

// New makes an empty one.
func New(dryRun bool) *Writes {
	return &Writes{DryRun: dryRun, byNode: map[string]Write{}}
}

// Add notes that a record is written over a node.
func (w *Writes) Add(before *corev1.Node, record *causes.Record) {
	w.mu.Lock()
	defer w.mu.Unlock()
	write := Write{Record: record, UID: before.UID, Over: before.ResourceVersion}
	if last, ok := w.byNode[before.Name]; ok && last.UID == write.UID && last.Over == write.Over {
		last.earlier = nil
		write.earlier = &last
	}
	w.set(before.Name, &write)
}

// set changes what is pending for a node; nil: nothing. w.mu must be held.
func (w *Writes) set(node string, write *Write) {
	if write != nil {
		w.byNode[node] = *write
	} else {
		delete(w.byNode, node)
	}
	w.touched.add(node)
}

// Discard drops the write of a node that is gone.
func (w *Writes) Discard(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(node, nil)
}

// Refused drops a write that the API server has refused. The one before it stands if the cache does not show it yet: the
// Refused one was computed from an old version.
func (w *Writes) Refused(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.set(node, w.byNode[node].earlier)
}

// Doubt notes that the answer to a write was lost, so that the node may have it or not.
func (w *Writes) Doubt(node string, lost Unanswered) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if pending, ok := w.byNode[node]; ok {
		pending.Unanswered = &lost
		w.set(node, &pending)
	}
}

// Doubtful is the write of the node whose answer was lost, if there is one.
func (w *Writes) Doubtful(node string) (Write, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[node]
	return pending, ok && pending.Unanswered != nil
}

// Settle ends the doubt about a write by what the node is now; nil: it is gone. It reports whether the node has the write.
func (w *Writes) Settle(node string, now *corev1.Node) (written bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[node]
	if !ok || pending.Unanswered == nil {
		return false
	}
	pending.Unanswered, pending.earlier = nil, nil
	if now == nil || now.UID != pending.UID {
		w.set(node, nil)
		return false
	}
	if now.ResourceVersion == pending.Over {
		pending.failed = true
		w.set(node, &pending)
		return false
	}
	text := ""
	if pending.Record != nil {
		text = pending.Record.String()
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

// DropFailed gives up the place of a write that the node does not have. The node is decided right after it.
func (w *Writes) DropFailed(node string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byNode[node].failed {
		w.set(node, nil)
	}
}

// Overlay changes a node as the cache shows it into the node as it was written. A write only succeeds on the version it was
// computed from, so a cache that shows any other version shows the write, or what came in its place. A doubt outlives that until
// [Writes.Settle] ends it: the decision is still to be reported, or remembered.
func (w *Writes) Overlay(n *corev1.Node) {
	w.mu.Lock()
	defer w.mu.Unlock()
	pending, ok := w.byNode[n.Name]
	if !ok {
		return
	}
	if pending.UID != n.UID || pending.Over != n.ResourceVersion && !w.DryRun {
		if pending.Unanswered == nil {
			w.set(n.Name, nil)
		}
		return
	}
	quarantine.Overlay(n, pending.Record)
}

// HasRecord reports whether the write of a record is pending. One that removes a record frees no place until the cache shows it.
func (w *Writes) HasRecord(node string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byNode[node].Record != nil
}

// AllDoubtful are the writes whose answers were lost, by node.
func (w *Writes) AllDoubtful() map[string]Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	lost := map[string]Write{}
	for name, pending := range w.byNode {
		if pending.Unanswered != nil {
			lost[name] = pending
		}
	}
	return lost
}

// All copies the pending writes, by node.
func (w *Writes) All() map[string]Write {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.byNode)
}

// Touch notes that something has changed of a node.
func (w *Writes) Touch(node string) { w.touched.add(node) }

// TakeTouched returns the nodes that were touched, and notes further ones from now on.
func (w *Writes) TakeTouched() map[string]bool { return w.touched.take() }

// touched are the names of nodes of which something has changed since they were summed up. The order in which they are noted and
// summed up does not matter: what is summed up is what the cache shows then.
type touched struct {
	mu    sync.Mutex
	names map[string]bool // nil: nobody takes them yet
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
