package nodes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// startsPause is the time between two writes of the starts of quarantines: a burst of a thousand taints must not become a
// thousand writes of one ConfigMap. What is not written when the process ends is in the records on the nodes, except for
// nodes that are deleted within that time.
const startsPause = time.Second

// loadStarts takes over the starts in the ConfigMap; b.mu must be held. If they were read before, all that may have changed
// is that a person has deleted the ConfigMap: that closes the breaker and makes nothing undone. They may have been read since
// this answer was asked for, and others remembered.
func (b *breakerStore) loadStarts(ctx context.Context, text string, now time.Time) {
	if b.loaded {
		if text == "" && len(b.memory) > 0 {
			b.startsChanged()
		}
		return
	}
	stored, err := limits.ParseMemory(text, now)
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "The starts of earlier quarantines are lost, except for those in the records of nodes")
	}
	if b.memory = stored; text != "" && stored.String() != text {
		b.startsChanged()
	}
}

// remembered is what is known of the starts of quarantines.
func (b *breakerStore) remembered() limits.Memory {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.memory
}

// remember notes the start of a quarantine of a node; nil: there is none.
func (b *breakerStore) remember(p *policy.Policy, n *corev1.Node, s *limits.Start) {
	keep := limits.RememberFor(p)
	if s == nil || keep == 0 {
		return
	}
	entry := s.EntryOf(p, n)
	b.mu.Lock()
	defer b.mu.Unlock()
	changed := false
	if b.memory, changed = b.memory.With(entry, keep, b.clock.Now()); changed {
		b.startsChanged()
	}
}

// rememberRecord notes the quarantine in the record of a node, which this process may not have started. r may be nil. A record
// without its taint, or of no rule of the policy, may be forged.
func (b *breakerStore) rememberRecord(p *policy.Policy, n *corev1.Node, r *quarantine.Record, now time.Time) {
	if r == nil || r.Phase != quarantine.Quarantined || r.NodeUID != n.UID || now.Sub(r.QuarantinedAt) >= limits.RememberFor(p) ||
		knownRule(p, r.Taint.Rule) == "" || r.Taint.HeldFor != "" || !r.IsTainted(p, n) {
		return
	}
	b.remember(p, n, &limits.Start{Rule: r.Taint.Rule, At: r.QuarantinedAt, Soft: limits.IsSoft(r.Taint.Effect)})
}

// startsChanged has the starts written, without waiting for it; b.mu must be held.
func (b *breakerStore) startsChanged() {
	if b.dryRun {
		return
	}
	select {
	case b.unsavedStarts <- struct{}{}:
	default: // a write is due anyway
	}
}

// saveStarts writes the starts that the policy still needs.
func (b *breakerStore) saveStarts(ctx context.Context) error {
	b.mu.Lock()
	if b.keep > 0 {
		b.memory, _ = b.memory.Prune(b.keep, b.clock.Now())
	}
	text := b.memory.String()
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, b.deadline)
	defer cancel()
	if err := b.writeKey(ctx, limits.StartsKey, text); err != nil {
		return fmt.Errorf("write the starts of quarantines: %w", err)
	}
	return nil
}

// startsSaver writes the starts of quarantines beside the decisions, which do not wait for it.
type startsSaver struct {
	*breakerStore
	// pause is the time between two writes, retry that after one that failed.
	pause, retry time.Duration
}

// Start runs until the context ends, and then writes what is left.
func (s *startsSaver) Start(ctx context.Context) error {
	for {
		wait := s.pause
		select {
		case <-ctx.Done():
			return s.finish(ctx)
		case <-s.unsavedStarts:
			if err := s.saveStarts(ctx); err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "Failed to save quarantine start times; retrying")
				s.mu.Lock()
				s.startsChanged()
				s.mu.Unlock()
				wait = s.retry
			}
		}
		select {
		case <-ctx.Done():
			return s.finish(ctx)
		case <-time.After(wait):
		}
	}
}

func (s *startsSaver) finish(ctx context.Context) error {
	select {
	case <-s.unsavedStarts:
		return s.saveStarts(context.WithoutCancel(ctx))
	default:
		return nil
	}
}
