// Package memory keeps what the controller of Nodes remembers beyond the lives of nodes and leaders, in keys of ConfigMaps: the state of
// the breaker, the starts of quarantines, and what policies put on nodes.
package memory

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
)

// Options say where something is kept.
type Options struct {
	Client client.Client
	// Reader reads from the API server: the manager's cache holds one ConfigMap, and none of these.
	Reader    client.Reader
	Namespace string
	DryRun    bool
	Clock     clock.PassiveClock
	// Deadline bounds a request, [keystore.Deadline] unless set.
	Deadline time.Duration
}

func (o Options) key(configMap, name string) keystore.Key {
	return keystore.Key{
		Client: o.Client, Reader: o.Reader, Deadline: o.Deadline,
		ConfigMap: client.ObjectKey{Namespace: o.Namespace, Name: configMap}, Name: name,
	}
}

// Breaker keeps the state of the breaker in a ConfigMap, so that a new leader finds it open. Only the leader opens it; a person closes it
// with `kubectl pitcrew reset`. The ConfigMap also holds the starts of quarantines, see starts.go.
//
// Decisions are made one at a time and go by the state in memory, so Refresh and Save are called outside of them: a request that hangs
// delays the node that it was made for, for at most the deadline, and no other.
type Breaker struct {
	clock  clock.PassiveClock
	dryRun bool
	state  keystore.Store[*limits.BreakerState]
	starts keystore.Store[limits.Memory]
	// due holds a value while the starts are to be written.
	due chan struct{}

	mu sync.Mutex
	// readAt is when the last refresh began, or when this process has set the state.
	readAt time.Time
	keep   time.Duration // of starts
}

// NewBreaker returns one whose state is not known yet.
func NewBreaker(o Options) *Breaker {
	return &Breaker{
		clock: o.Clock, dryRun: o.DryRun, due: make(chan struct{}, 1),
		state: keystore.Store[*limits.BreakerState]{
			Key: o.key(conditions.BreakerConfigMap, limits.BreakerKey), Clock: o.Clock, DryRun: o.DryRun, Retry: limits.RetryBlocked,
			Parse: limits.ParseBreaker, Text: (*limits.BreakerState).String,
		},
		starts: keystore.Store[limits.Memory]{
			Key: o.key(conditions.BreakerConfigMap, limits.StartsKey), Clock: o.Clock, DryRun: o.DryRun,
			Parse: parseStarts, Text: limits.Memory.String,
		},
	}
}

// Refresh reads the ConfigMap if the policy has limits: once, because only this process opens the breaker, and again every few seconds
// while it is open, because a person may close it. It fails only while the state is not known at all; an open breaker stays open.
func (b *Breaker) Refresh(ctx context.Context, p *policy.Policy) error {
	now, version := b.clock.Now(), b.state.Version()
	known, unsaved := b.state.State()
	b.mu.Lock()
	again := p.Breaker != nil && b.state.Get() != nil && !b.dryRun && now.Sub(b.readAt) >= limits.RetryBlocked
	b.keep = limits.RememberFor(p)
	if b.keep == 0 || unsaved || known && !again {
		b.mu.Unlock()
		return nil
	}
	b.readAt = now // others go on with what is known
	b.mu.Unlock()

	startsVersion := b.starts.Version()
	stored, err := b.state.ReadAll(ctx)
	switch {
	case err != nil && known:
		ctrl.LoggerFrom(ctx).Error(err, "Failed to read whether the breaker was closed; it stays open")
		return nil
	case err != nil:
		return fmt.Errorf("read the breaker: %w", err)
	}
	b.takeStarts(stored[limits.StartsKey], startsVersion)
	b.state.Take(stored[limits.BreakerKey], version)
	return nil
}

// State returns nil while the breaker is closed, and without a breaker in the policy.
func (b *Breaker) State(p *policy.Policy) *limits.BreakerState {
	if p.Breaker == nil {
		return nil
	}
	return b.state.Get()
}

// Set changes the state for all further decisions; nil closes the breaker. In a dry run it is never saved.
func (b *Breaker) Set(s *limits.BreakerState) {
	b.state.Set(s)
	b.read()
}

func (b *Breaker) read() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.readAt = b.clock.Now()
}

// Save writes a state that the ConfigMap does not have yet. After an error it is to be called again; it tries once every few seconds. If
// the process ends before, the records on the nodes make the next leader open the breaker again, as long as the quarantines in them began
// within the policy's window.
func (b *Breaker) Save(ctx context.Context) error {
	if _, unsaved := b.state.State(); !unsaved {
		return nil
	}
	if err := b.state.Save(ctx); err != nil {
		return fmt.Errorf("write the breaker: %w", err)
	}
	b.read()
	return nil
}
