package memory

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

func newBreaker(api client.Client, c clock.PassiveClock, dryRun bool) *Breaker {
	return NewBreaker(Options{Client: api, Reader: api, Clock: c, DryRun: dryRun})
}

// await waits for a channel, and fails the test if nothing comes.
func await[T any](t *testing.T, what string, c <-chan T) (got T) {
	t.Helper()
	select {
	case got = <-c:
	case <-time.After(time.Minute):
		t.Fatalf("waited in vain for %s", what)
	}
	return got
}

// A person closes the breaker by changing the ConfigMap; the remediator finds it within seconds, and one that takes over
// finds it open.
func TestTheBreakerIsReadWhileItIsOpen(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	stored := &configMap{}
	p := &policy.Policy{Breaker: &policy.Breaker{}}
	b := newBreaker(stored, clock, false)
	open := func() bool {
		t.Helper()
		if err := b.Refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return b.State(p) != nil
	}
	set := func(s *limits.BreakerState) {
		t.Helper()
		b.Set(s)
		if err := b.Save(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if open() {
			t.Fatal("a breaker that nobody opened is open")
		}
	}
	if stored.reads != 1 {
		t.Fatalf("a closed breaker was read %d times", stored.reads)
	}
	set(&limits.BreakerState{OpenedAt: clock.Now()})
	b = newBreaker(stored, clock, false)
	if !open() {
		t.Error("who takes over does not find it open")
	}
	stored.state = ""
	if !open() {
		t.Error("it is read for every node")
	}
	clock.SetTime(clock.Now().Add(limits.RetryBlocked))
	if open() {
		t.Error("a person closed it and it was not read")
	}
	b = newBreaker(stored, clock, true)
	if set(&limits.BreakerState{OpenedAt: clock.Now()}); stored.state != "" || !open() {
		t.Errorf("a dry run wrote %q", stored.state)
	}
}

func TestABreakerThatCannotBeStoredIsInForceAndStoredLater(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	stored := &configMap{down: errors.New("no API server today")}
	p := &policy.Policy{Breaker: &policy.Breaker{}}
	b := newBreaker(stored, clock, false)
	b.Set(&limits.BreakerState{OpenedAt: clock.Now()})
	if err := b.Save(t.Context()); !errors.Is(err, stored.down) {
		t.Errorf("got %v", err)
	}
	stored.down = nil
	for after, want := range []struct{ stored bool }{{false}, {true}} { // at once, and later
		clock.SetTime(clock.Now().Add(time.Duration(after) * limits.RetryBlocked))
		if err := errors.Join(b.Refresh(t.Context(), p), b.Save(t.Context())); err != nil {
			t.Fatal(err)
		}
		if b.State(p) == nil {
			t.Error("what is not stored is not in force")
		}
		if got := stored.state != ""; got != want.stored {
			t.Errorf("stored %v, want %v", got, want.stored)
		}
	}
	if stored.reads != 0 {
		t.Errorf("read %d times before it was stored", stored.reads)
	}
}

func TestAnOpenBreakerThatCannotBeReadStaysOpen(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	stored := &configMap{down: errors.New("no API server today")}
	p := &policy.Policy{Breaker: &policy.Breaker{}}
	b := newBreaker(stored, clock, false)
	if err := b.Refresh(t.Context(), p); !errors.Is(err, stored.down) {
		t.Errorf("a breaker whose state is not known is taken for closed: %v", err)
	}
	b.Set(&limits.BreakerState{OpenedAt: clock.Now()})
	stored.down = nil
	if err := b.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	stored.down = errors.New("no API server today")
	clock.SetTime(clock.Now().Add(limits.RetryBlocked))
	if err := b.Refresh(t.Context(), p); err != nil || b.State(p) == nil {
		t.Errorf("open %v, %v", b.State(p), err)
	}
}

// Attack 10: what is not credible is replaced in the ConfigMap, so that it cools down from then on.
func TestABreakerFromTheFutureCoolsDown(t *testing.T) {
	p := &policy.Policy{Breaker: &policy.Breaker{CoolDown: time.Hour}}
	for _, text := range []string{`{"openedAt":"2099-01-01T00:00:00Z"}`, "{"} {
		for _, dryRun := range []bool{false, true} {
			clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
			start := clock.Now()
			stored := &configMap{state: text}
			b := newBreaker(stored, clock, dryRun)
			for range 3 {
				if err := errors.Join(b.Refresh(t.Context(), p), b.Save(t.Context())); err != nil {
					t.Fatal(err)
				}
				clock.SetTime(clock.Now().Add(limits.RetryBlocked))
			}
			if got := b.State(p); got == nil || !got.OpenedAt.Equal(start) {
				t.Errorf("%s: open since %v, want %s", text, got, start)
			}
			if dryRun && stored.state != text {
				t.Errorf("a dry run wrote %q", stored.state)
			}
			if stored.state = ""; dryRun {
				continue
			}
			clock.SetTime(clock.Now().Add(limits.RetryBlocked))
			if err := b.Refresh(t.Context(), p); err != nil || b.State(p) != nil {
				t.Errorf("%s: a person closed it and it is %v, %v", text, b.State(p), err)
			}
		}
	}
}

// configMap is an API server with one ConfigMap.
type configMap struct {
	client.Client
	state string
	reads int
	down  error
}

func (c *configMap) Get(_ context.Context, _ client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	if c.down != nil {
		return c.down
	}
	c.reads++
	object.(*corev1.ConfigMap).Data = map[string]string{"state": c.state}
	return nil
}

func (c *configMap) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if c.down != nil {
		return c.down
	}
	c.state = object.(*corev1.ConfigMap).Data["state"]
	return nil
}

// slow is a ConfigMap that writes the first change only when it may.
type slow struct {
	*configMap
	reached, may chan struct{}
	later        atomic.Bool
}

func (s *slow) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if s.later.CompareAndSwap(false, true) {
		close(s.reached)
		<-s.may
	}
	return s.configMap.Patch(ctx, object, patch, opts...)
}

// Else the ConfigMap would have the state of the slower write, and the next read would bring it back.
func TestASlowWriteOfTheBreakerDoesNotUndoALaterOne(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	stored := &slow{configMap: &configMap{}, reached: make(chan struct{}), may: make(chan struct{})}
	b := newBreaker(stored, clock, false)
	b.Set(nil)
	first := make(chan error, 1)
	go func() { first <- b.Save(context.Background()) }()
	await(t, "the first write", stored.reached)
	b.Set(&limits.BreakerState{OpenedAt: clock.Now()})
	if err := b.Save(t.Context()); err == nil {
		t.Error("the later state was written beside the earlier one")
	}
	close(stored.may)
	if err := await(t, "the end of the first write", first); err != nil {
		t.Fatal(err)
	}
	if err := b.Save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if limits.ParseBreaker(stored.state, clock.Now()) == nil {
		t.Errorf("the ConfigMap has state %q, want an open breaker", stored.state)
	}
}
