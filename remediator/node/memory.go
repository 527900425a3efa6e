package node

import (
	"maps"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
)

// memory is what this process has done and cannot read back, yet or, in a dry run, ever. Losing it costs a repeated Event
// or a refused write, nothing else.
type memory struct {
	mu      sync.Mutex
	written map[string]written
	said    map[string]Blocked
	// kept is the evidence that is known to be kept, by node.
	kept   map[string]string
	dryRun bool
}

// written is the record that was written over a version of a node, or is being written.
type written struct {
	record *Record
	uid    types.UID
	over   string
}

func (m *memory) remember(before *corev1.Node, record *Record) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.written[before.Name] = written{record, before.UID, before.ResourceVersion}
}

// unwritten drops a write that was refused. Should an earlier one stand that the cache does not show yet, then what is decided
// next is decided on an old version, and refused as well.
func (m *memory) unwritten(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.written, node)
}

// recall changes a node as the cache shows it into the node as it was written. A write only succeeds on the version it was
// computed from, so a cache that shows any other version shows the write, or what came after it.
func (m *memory) recall(n *corev1.Node) {
	m.mu.Lock()
	defer m.mu.Unlock()
	w, ok := m.written[n.Name]
	if !ok {
		return
	}
	if w.uid != n.UID || w.over != n.ResourceVersion && !m.dryRun {
		delete(m.written, n.Name)
		return
	}
	s := State{Record: w.record, Marks: marksOf(n)}
	if w.record != nil && w.record.Phase == Quarantined {
		s.Marks.put(&w.record.Quarantine)
	} else if w.record != nil && w.record.Phase == Released {
		s.Marks.strip(&w.record.Quarantine)
	}
	s.apply(n)
}

func (m *memory) all() map[string]written {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.written)
}

// news tells whether this has not been said about the node.
func (m *memory) news(node string, b *Blocked) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if b == nil {
		delete(m.said, node)
		return false
	}
	said, ok := m.said[node]
	m.said[node] = *b
	return !ok || said.Rule != b.Rule || said.Reason != b.Reason
}

func (m *memory) forget(node string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.written, node)
	delete(m.said, node)
	delete(m.kept, node)
}

func (m *memory) keeps(node, evidence string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.kept[node] == evidence
}

func (m *memory) keep(node, evidence string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.kept[node] = evidence
}
