package nodes

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// knownKey is the key of ConfigMap [conditions.KnownConfigMap].
const knownKey = "known"

// knownStore remembers what quarantines put on nodes by the policies that were in force: what was put there must be removed
// although the policy has changed since, but what a record merely claims must not. It is written when the policy brings
// something new.
type knownStore struct {
	client    client.Client
	apiReader client.Reader
	namespace string
	dryRun    bool
	clock     clock.PassiveClock

	mu     sync.Mutex
	known  handoff.Known
	policy *policy.Policy // the last that known has
	// loaded is set once the ConfigMap was read, unsaved while it lacks something.
	loaded, unsaved bool
	triedAt         time.Time
}

// of is what is known; nil: only the present policy is.
func (s *knownStore) of(p *policy.Policy) *handoff.Known {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	known := s.known
	if s.policy != p { // changed since refresh
		known = handoff.KnownOf(p).With(known)
	}
	return &known
}

// refresh reads the ConfigMap once, and writes it when the policy has brought something new. It fails only while the ConfigMap
// was never read; a write that fails is tried again every few seconds.
func (s *knownStore) refresh(ctx context.Context, p *policy.Policy) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.loaded && s.policy == p && !s.unsaved {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, breakerDeadline)
	defer cancel()
	if !s.loaded {
		var stored corev1.ConfigMap
		err := s.apiReader.Get(ctx, client.ObjectKey{Namespace: s.namespace, Name: conditions.KnownConfigMap}, &stored)
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("read what earlier policies put on nodes: %w", err)
		}
		s.known, s.loaded = handoff.ParseKnown(stored.Data[knownKey]), true
	}
	if s.policy != p {
		before := s.known.String()
		s.known, s.policy = handoff.KnownOf(p).With(s.known), p
		s.unsaved = s.unsaved || s.known.String() != before
	}
	s.save(ctx)
	return nil
}

// save writes the ConfigMap if it lacks something. The lock is not held during the request, which no other decision waits for.
func (s *knownStore) save(ctx context.Context) {
	now := s.clock.Now()
	if !s.unsaved || s.dryRun || now.Sub(s.triedAt) < limits.RetryBlocked {
		return
	}
	s.triedAt = now
	text := s.known.String()
	s.mu.Unlock()
	err := s.write(ctx, text)
	s.mu.Lock()
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to save what the policy puts on nodes; retrying")
		return
	}
	s.unsaved = s.known.String() != text
}

func (s *knownStore) write(ctx context.Context, text string) error {
	if err := writeKey(ctx, s.client, client.ObjectKey{Namespace: s.namespace, Name: conditions.KnownConfigMap}, knownKey, text); err != nil {
		return fmt.Errorf("write what the policy puts on nodes: %w", err)
	}
	return nil
}
