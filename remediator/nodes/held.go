package nodes

import (
	"context"
	"slices"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// limitsState is what the budgets and the breaker say follows from, but for the time.
type limitsState struct {
	fleet   *limits.Fleet
	changes int
	// openedAt is zero while the breaker is closed.
	openedAt time.Time
}

// limits is the state as of the last decision.
func (f *fleet) limits(p *policy.Policy) limitsState {
	s := limitsState{fleet: f.peers}
	if s.fleet != nil {
		s.changes = s.fleet.Changes()
	}
	if open := f.breaker.State(p); open != nil {
		s.openedAt = open.OpenedAt
	}
	return s
}

// noteHeld notes whether a budget, the breaker or what other nodes are holds back a decision, and by which state.
func (f *fleet) noteHeld(p *policy.Policy, node string, d quarantine.Decision) {
	if d.Limited || d.WaitsForOthers {
		f.held[node] = f.limits(p)
	} else {
		delete(f.held, node)
	}
}

// waker has the nodes decided again that a limit holds back, when it may do so no longer. Each of them would have to ask every few seconds
// else.
type waker struct {
	*Controller
	retry func(ctx context.Context, node string)
	every time.Duration
}

// Start runs until the context ends.
func (w *waker) Start(ctx context.Context) error {
	ticker := time.NewTicker(w.every)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		names, err := w.findRetries(ctx)
		if err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to read whether a limit still holds nodes back; deciding each again within a minute")
		}
		for _, name := range names {
			w.retry(ctx, name)
		}
	}
}

// findRetries names the nodes that a limit has held back and that may find a place now. It reads an open breaker, which a person may have
// closed.
func (w *waker) findRetries(ctx context.Context) (names []string, err error) {
	w.deciding.Lock()
	waiting := len(w.fleet.held) > 0
	w.deciding.Unlock()
	if !waiting {
		return nil, nil
	}
	p := w.policy.Policy()
	if err := w.breaker.Refresh(ctx, p); err != nil {
		return nil, err
	}
	w.deciding.Lock()
	defer w.deciding.Unlock()
	if err := w.fleet.refresh(ctx, p); err != nil {
		return nil, err
	}
	now := w.fleet.limits(p)
	for name, state := range w.fleet.held {
		if state != now {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
