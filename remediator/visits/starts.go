package visits

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// startsStore keeps the last starts of repairs in a ConfigMap. The leader reads it once and writes it before each action. A nil store
// remembers nothing.
type startsStore struct {
	keystore.Store[starts.Ring]

	saving sync.Mutex // held during a write: who comes next waits for it
}

func newStartsStore(key keystore.Key, c clock.PassiveClock) *startsStore {
	return &startsStore{Store: keystore.Store[starts.Ring]{Key: key, Parse: parseStarts, Text: starts.Ring.String, Clock: c}}
}

func parseStarts(text string, now time.Time) starts.Ring {
	ring, err := starts.Parse(text, now)
	if err != nil {
		ctrl.Log.Error(err, "Failed to read the starts of earlier repairs; counting those in the records of nodes")
	}
	return ring
}

// load reads the starts, unless they are known.
func (s *startsStore) load(ctx context.Context) error {
	if s == nil {
		return nil
	}
	return s.Load(ctx)
}

// all are the starts that are remembered. They must not be changed.
func (s *startsStore) all() starts.Ring {
	if s == nil {
		return nil
	}
	return s.Get()
}

// save stores the last action in the record of a node. Its Job may be created only then.
func (s *startsStore) save(ctx context.Context, p *policy.Repair, n *corev1.Node, r *visit.Record, now time.Time) error {
	if s == nil || r == nil || r.Current == nil || r.Current.Kind != visit.Repair || len(r.Repairs) == 0 {
		return nil
	}
	last := r.Repairs[len(r.Repairs)-1]
	start := starts.Of(p, n, last.Quarantine, last.Template, last.At)
	if err := s.Load(ctx); err != nil {
		return err
	}
	s.saving.Lock()
	defer s.saving.Unlock()
	s.Update(func(ring starts.Ring) (starts.Ring, bool) { return ring.With(start, p, now), !ring.Has(start) })
	return s.Save(ctx)
}

// dropUndone forgets the last action of a record if the next record does not have it: the action has done nothing. The ConfigMap has that
// with the next start.
func (s *startsStore) dropUndone(n *corev1.Node, before, after *visit.Record) {
	if s == nil || before == nil || after == nil || len(before.Repairs) == 0 || len(after.Repairs) >= len(before.Repairs) {
		return
	}
	undone := before.Repairs[len(before.Repairs)-1]
	start := starts.Of(nil, n, undone.Quarantine, undone.Template, undone.At)
	s.Update(func(ring starts.Ring) (starts.Ring, bool) { return ring.Without(start), ring.Has(start) })
}

// saveStart stores the start of the action that the record of a node begins.
func (c *Controller) saveStart(ctx context.Context, n *corev1.Node) error {
	r, err := visit.RecordOf(n)
	if err != nil {
		return err
	}
	if err := c.starts.save(ctx, c.policy.Policy().Repair, n, r, c.clock.Now()); err != nil {
		return fmt.Errorf("no repair of node %s begins before its start is stored: %w", n.Name, err)
	}
	return nil
}

// earlier are the starts on nodes of the name that the record of the node does not have. r may be nil.
func (s *startsStore) earlier(n *corev1.Node, r *visit.Record) starts.Ring {
	return s.all().Unknown(n.Name, r.Repaired)
}
