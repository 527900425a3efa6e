package node

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// breaker keeps the [BreakerState] in a ConfigMap, so that a new leader finds it open. Only the leader opens it; a person
// closes it with `kubectl pitcrew reset`.
type breaker struct {
	client    client.Client
	reader    client.Reader // the manager's cache holds one ConfigMap, and not this one
	namespace string
	dryRun    bool
	now       func() time.Time

	open   *BreakerState
	loaded bool
	readAt time.Time
}

// state is nil while the breaker is closed. While it is open it is read again every few seconds, for a person may have
// closed it; nobody else opens it, so a closed one is read once.
func (b *breaker) state(ctx context.Context, p *policy.Policy) (*BreakerState, error) {
	if p.Breaker == nil {
		return nil, nil
	}
	if b.loaded && (b.open == nil || b.dryRun || b.now().Sub(b.readAt) < retryBlocked) {
		return b.open, nil
	}
	var stored corev1.ConfigMap
	err := b.reader.Get(ctx, client.ObjectKey{Namespace: b.namespace, Name: conditions.BreakerConfigMap}, &stored)
	if client.IgnoreNotFound(err) != nil {
		return nil, fmt.Errorf("read the breaker: %w", err)
	}
	b.open, b.loaded, b.readAt = parseBreaker(stored.Data["state"], b.now()), true, b.now()
	return b.open, nil
}

// parseBreaker takes what it cannot read for a breaker that has just opened.
func parseBreaker(text string, now time.Time) *BreakerState {
	if text == "" {
		return nil
	}
	var s BreakerState
	if err := json.Unmarshal([]byte(text), &s); err != nil || s.OpenedAt.IsZero() || s.OpenedAt.After(now) {
		return &BreakerState{OpenedAt: now}
	}
	return &s
}

// set writes the state; nil closes the breaker.
func (b *breaker) set(ctx context.Context, s *BreakerState) error {
	text := ""
	if s != nil {
		data, err := json.Marshal(s)
		if err != nil {
			return fmt.Errorf("encode the breaker: %w", err)
		}
		text = string(data)
	}
	if !b.dryRun {
		if err := b.write(ctx, text); err != nil {
			return fmt.Errorf("write the breaker: %w", err)
		}
	}
	b.open, b.loaded, b.readAt = s, true, b.now()
	return nil
}

func (b *breaker) write(ctx context.Context, text string) error {
	object := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: b.namespace, Name: conditions.BreakerConfigMap}}
	before := object.DeepCopy()
	object.Data = map[string]string{"state": text}
	err := b.client.Patch(ctx, object.DeepCopy(), client.MergeFrom(before), client.FieldOwner(Name))
	if apierrors.IsNotFound(err) {
		return b.client.Create(ctx, object, client.FieldOwner(Name))
	}
	return err
}

// setBreaker makes the decision about the breaker come true.
func (c *Controller) setBreaker(ctx context.Context, d Decision) error {
	if d.SetBreaker == nil {
		return nil
	}
	state := d.SetBreaker
	e := Event{corev1.EventTypeWarning, BreakerOpen, "no node is quarantined until it closes; releases go on"}
	if state.OpenedAt.IsZero() {
		state = nil
		e = Event{corev1.EventTypeNormal, BreakerClosed, "it has cooled down and no node waits"}
	} else if d.Blocked != nil {
		e.Message = d.Blocked.Message + "; " + e.Message
	}
	if err := c.breaker.set(ctx, state); err != nil {
		return err
	}
	c.showBreaker(state)
	c.announce(ctx, e)
	return nil
}

func (c *Controller) showBreaker(s *BreakerState) {
	open := 0.0
	if s != nil {
		open = 1
	}
	c.metrics.breakerOpen.Set(open)
}
