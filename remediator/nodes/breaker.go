package nodes

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
)

// breakerDeadline bounds a request for the ConfigMap of the breaker. An API server that works answers within milliseconds.
const breakerDeadline = 5 * time.Second

// breakerStore keeps the state of the breaker in a ConfigMap, so that a new leader finds it open. Only the leader opens it;
// a person closes it with `kubectl pitcrew reset`. The ConfigMap also holds the starts of quarantines, see starts.go.
//
// Decisions are made one at a time and go by the state in memory, so refresh and save are called outside of them: a request
// that hangs delays the node that it was made for, for at most the deadline, and no other.
type breakerStore struct {
	client    client.Client
	apiReader client.Reader // the manager's cache holds one ConfigMap, and not this one
	namespace string
	dryRun    bool
	clock     clock.PassiveClock
	deadline  time.Duration

	mu   sync.Mutex
	open *limits.BreakerState // nil: closed
	// loaded is set once the state is known, unsaved while the ConfigMap does not have it yet.
	loaded, unsaved bool
	// readAt and triedAt are when the last refresh and the last attempt to save began.
	readAt, triedAt time.Time
	// version counts the calls of set: what was read or written before the last one is out of date.
	version int
	// memory holds the starts of quarantines, unsavedStarts a value while the ConfigMap may not have them.
	memory        limits.Memory
	keep          time.Duration
	unsavedStarts chan struct{}

	saving sync.Mutex // held during a write: a slow one must not land after a later one
}

// refresh reads the ConfigMap if the policy has limits: once, because only this process opens the breaker, and again every
// few seconds while it is open, because a person may close it. It fails only while the state is not known at all; an open
// breaker stays open.
func (b *breakerStore) refresh(ctx context.Context, p *policy.Policy) error {
	b.mu.Lock()
	now, known, version := b.clock.Now(), b.loaded, b.version
	again := p.Breaker != nil && b.open != nil && !b.dryRun && now.Sub(b.readAt) >= limits.RetryBlocked
	b.keep = limits.RememberFor(p)
	if b.keep == 0 || b.unsaved || known && !again {
		b.mu.Unlock()
		return nil
	}
	b.readAt = now // others go on with what is known
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, b.deadline)
	defer cancel()
	var stored corev1.ConfigMap
	err := b.apiReader.Get(ctx, client.ObjectKey{Namespace: b.namespace, Name: conditions.BreakerConfigMap}, &stored)
	if client.IgnoreNotFound(err) != nil {
		err = fmt.Errorf("read the breaker: %w", err)
		if known {
			ctrl.LoggerFrom(ctx).Error(err, "Cannot tell whether the breaker was closed; it stays open")
			return nil
		}
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.loadStarts(ctx, stored.Data[limits.StartsKey], now)
	if b.version == version {
		text := stored.Data[limits.BreakerKey]
		b.open, b.loaded = limits.ParseBreaker(text, now), true
		b.unsaved = b.open.String() != text && !b.dryRun // what was read was no possible state
	}
	return nil
}

// state is nil while the breaker is closed, and without a breaker in the policy.
func (b *breakerStore) state(p *policy.Policy) *limits.BreakerState {
	b.mu.Lock()
	defer b.mu.Unlock()
	if p.Breaker == nil {
		return nil
	}
	return b.open
}

// set changes the state for all further decisions; nil closes the breaker. In a dry run it is never saved.
func (b *breakerStore) set(s *limits.BreakerState) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.open, b.loaded, b.unsaved, b.readAt, b.triedAt = s, true, !b.dryRun, b.clock.Now(), time.Time{}
	b.version++
}

// save writes a state that the ConfigMap does not have yet. After an error it is to be called again; it tries once every few
// seconds. If the process ends before, the records on the nodes make the next leader open the breaker again, as long as the
// quarantines in them began within the policy's window.
func (b *breakerStore) save(ctx context.Context) error {
	b.mu.Lock()
	now, text, version := b.clock.Now(), b.open.String(), b.version
	if !b.unsaved || !b.triedAt.IsZero() && now.Sub(b.triedAt) < limits.RetryBlocked {
		b.mu.Unlock()
		return nil
	}
	if !b.saving.TryLock() {
		b.mu.Unlock()
		return errors.New("write the breaker: an earlier write has not been answered")
	}
	defer b.saving.Unlock()
	b.triedAt = now
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(ctx, b.deadline)
	defer cancel()
	if err := b.write(ctx, text); err != nil {
		return fmt.Errorf("write the breaker: %w", err)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.version == version {
		b.unsaved, b.readAt = false, now
	}
	return nil
}

func (b *breakerStore) write(ctx context.Context, text string) error {
	return b.writeKey(ctx, limits.BreakerKey, text)
}

// writeKey writes one key of the ConfigMap, and leaves the other.
func (b *breakerStore) writeKey(ctx context.Context, key, text string) error {
	return writeKey(ctx, b.client, client.ObjectKey{Namespace: b.namespace, Name: conditions.BreakerConfigMap}, key, text)
}

// writeKey writes one key of a ConfigMap, which is created if it does not exist, and leaves all others.
func writeKey(ctx context.Context, api client.Client, of client.ObjectKey, key, text string) error {
	return keystore.Key{Client: api, ConfigMap: of, Name: key}.Write(ctx, text)
}

// setBreaker opens or closes the breaker as a decision asks.
func (c *Controller) setBreaker(d quarantine.Decision) {
	if d.SetBreaker == nil {
		return
	}
	state := d.SetBreaker.OrClosed()
	c.breaker.set(state)
	c.metrics.setBreaker(state)
}

// reportBreaker reports that a decision has opened or closed the breaker.
func (c *Controller) reportBreaker(ctx context.Context, d quarantine.Decision) {
	switch {
	case d.SetBreaker == nil:
	case d.SetBreaker.OrClosed() == nil:
		c.emitClusterEvent(ctx, quarantine.Event{Type: corev1.EventTypeNormal, Reason: quarantine.BreakerClosed,
			Message: "the breaker has cooled down and no node waits for it"})
	default:
		message := "no node is quarantined until it closes; releases go on"
		if d.Blocked != nil {
			message = d.Blocked.Message + "; " + message
		}
		c.emitClusterEvent(ctx, quarantine.Event{Type: corev1.EventTypeWarning, Reason: quarantine.BreakerOpen, Message: message})
	}
}
