package memory

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// startsPause is the time between two writes of the starts of quarantines: a burst of a thousand taints must not become a
// thousand writes of one ConfigMap. What is not written when the process ends is in the records on the nodes, except for
// nodes that are deleted within that time.
const startsPause = time.Second

func parseStarts(text string, now time.Time) limits.Memory {
	stored, err := limits.ParseMemory(text, now)
	if err != nil {
		ctrl.Log.Error(err, "Failed to read the starts of earlier quarantines; counting those in the records of nodes")
	}
	return stored
}

// takeStarts takes over the starts in the ConfigMap. If they were read before, all that may have changed is that a person has deleted the
// ConfigMap: that closes the breaker and makes nothing undone.
func (b *Breaker) takeStarts(text string, version int) {
	if loaded, _ := b.starts.State(); !loaded {
		b.starts.Take(text, version)
		if _, unsaved := b.starts.State(); unsaved {
			b.saveLater()
		}
	} else if known := b.starts.Get(); text == "" && len(known) > 0 {
		b.starts.Set(known)
		b.saveLater()
	}
}

// Remembered returns what is known of the starts of quarantines.
func (b *Breaker) Remembered() limits.Memory { return b.starts.Get() }

// Remember notes the start of a quarantine of a node; nil: there is none.
func (b *Breaker) Remember(p *policy.Policy, n *corev1.Node, s *limits.Start) {
	keep := limits.RememberFor(p)
	if s == nil || keep == 0 {
		return
	}
	entry := s.EntryOf(p, n)
	if b.starts.Update(func(m limits.Memory) (limits.Memory, bool) { return m.With(entry, keep, b.clock.Now()) }) {
		b.saveLater()
	}
}

// RememberRecord notes the quarantine in the record of a node, which this process may not have started. r may be nil. A record without its
// taint, or of no rule of the policy, may be forged.
func (b *Breaker) RememberRecord(p *policy.Policy, n *corev1.Node, r *causes.Record, now time.Time) {
	if r == nil || r.Phase != causes.Quarantined || r.NodeUID != n.UID || now.Sub(r.QuarantinedAt) >= limits.RememberFor(p) ||
		KnownRule(p, r.Taint.Rule) == "" || r.Taint.HeldFor != "" || !r.IsTainted(p, n) {
		return
	}
	b.Remember(p, n, &limits.Start{Rule: r.Taint.Rule, At: r.QuarantinedAt, Soft: limits.IsSoft(r.Taint.Effect)})
}

// KnownRule returns the name of a rule of the policy, or of a quarantine by hand; any other becomes empty: whoever forges records must not
// make up labels of metrics.
func KnownRule(p *policy.Policy, name string) string {
	if _, ok := p.Rule(name); ok || name == policy.ByHand {
		return name
	}
	return ""
}

// saveLater has the starts written, without waiting for it.
func (b *Breaker) saveLater() {
	if b.dryRun {
		return
	}
	select {
	case b.due <- struct{}{}:
	default: // a write is due anyway
	}
}

// Prune forgets the starts that are older than keep.
func (b *Breaker) Prune(keep time.Duration) {
	b.starts.Update(func(m limits.Memory) (limits.Memory, bool) { return m.Prune(keep, b.clock.Now()) })
}

// SaveStarts writes the starts that the policy still needs.
func (b *Breaker) SaveStarts(ctx context.Context) error {
	b.mu.Lock()
	keep := b.keep
	b.mu.Unlock()
	if keep > 0 {
		b.Prune(keep)
	}
	if err := b.starts.Save(ctx); err != nil {
		return fmt.Errorf("write the starts of quarantines: %w", err)
	}
	return nil
}

// Start writes the starts of quarantines beside the decisions, which do not wait for it, until the context ends.
func (b *Breaker) Start(ctx context.Context) error {
	return b.saveStartsEvery(ctx, startsPause, limits.RetryBlocked)
}

// saveStartsEvery pauses between two writes, and longer after one that failed. At the end it writes what is left.
func (b *Breaker) saveStartsEvery(ctx context.Context, pause, retry time.Duration) error {
	for {
		wait := pause
		select {
		case <-ctx.Done():
			return b.SaveStarts(context.WithoutCancel(ctx))
		case <-b.due:
			if err := b.SaveStarts(ctx); err != nil {
				ctrl.LoggerFrom(ctx).Error(err, "Failed to save quarantine start times; retrying")
				b.saveLater()
				wait = retry
			}
		}
		select {
		case <-ctx.Done():
			return b.SaveStarts(context.WithoutCancel(ctx))
		case <-time.After(wait):
		}
	}
}
