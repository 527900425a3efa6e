package memory

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
)

// Known remembers what quarantines put on nodes by the policies that were in force: what was put there must be removed although the policy
// has changed since, but what a record merely claims must not. It is written when the policy brings something new. A nil Known knows
// nothing.
type Known struct {
	store keystore.Store[handoff.Known]

	mu     sync.Mutex
	policy *policy.Policy // the last that the store has
}

// NewKnown returns one that has read nothing yet.
func NewKnown(o Options) *Known {
	return &Known{store: keystore.Store[handoff.Known]{
		Key: o.key(conditions.KnownConfigMap, handoff.KnownKey), Clock: o.Clock, DryRun: o.DryRun, Retry: limits.RetryBlocked,
		Parse: func(text string, _ time.Time) handoff.Known { return handoff.ParseKnown(text) }, Text: handoff.Known.String,
	}}
}

// Of returns what is known; nil: only the present policy is.
func (k *Known) Of(p *policy.Policy) *handoff.Known {
	if k == nil {
		return nil
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	known := k.store.Get()
	if k.policy != p { // changed since Refresh
		known = handoff.KnownOf(p).With(known)
	}
	return &known
}

// Refresh reads the ConfigMap once, and writes it when the policy has brought something new. It fails only while the ConfigMap was never
// read; a write that fails is tried again every few seconds.
func (k *Known) Refresh(ctx context.Context, p *policy.Policy) error {
	if k == nil {
		return nil
	}
	if err := k.store.Load(ctx); err != nil {
		return fmt.Errorf("read what earlier policies put on nodes: %w", err)
	}
	k.add(p)
	if err := k.store.Save(ctx); err != nil && !errors.Is(err, keystore.ErrUnanswered) {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to save what the policy puts on nodes; retrying")
	}
	return nil
}

// add adds what a policy can put on nodes.
func (k *Known) add(p *policy.Policy) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.policy != p {
		k.store.Update(func(known handoff.Known) (handoff.Known, bool) {
			all := handoff.KnownOf(p).With(known)
			return all, all.String() != known.String()
		})
		k.policy = p
	}
}
