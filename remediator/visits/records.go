package visits

import (
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// records keep what the annotations of nodes say, so that a look at all nodes parses only what has changed. There is at most one for
// each node.
type records struct {
	mu     sync.Mutex
	byNode map[string]parsedRecord
}

type parsedRecord struct {
	text   string
	record *visit.Record
	err    error
}

func newRecords() *records { return &records{byNode: map[string]parsedRecord{}} }

// of is [repair.RecordOf]. The record must not be changed.
func (r *records) of(n *corev1.Node) (*visit.Record, error) {
	text := n.Annotations[conditions.AnnotationRepair]
	r.mu.Lock()
	defer r.mu.Unlock()
	if text == "" {
		delete(r.byNode, n.Name)
		return visit.RecordOf(n)
	}
	known, ok := r.byNode[n.Name]
	if !ok || known.text != text {
		known = parsedRecord{text: text}
		known.record, known.err = visit.ParseRecord(text)
		r.byNode[n.Name] = known
	}
	if known.err != nil || known.record.NodeUID != n.UID {
		return nil, known.err
	}
	return known.record, nil
}

func (r *records) forget(node string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byNode, node)
}
