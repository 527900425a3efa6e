package nodes

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// A person closes the breaker by changing the ConfigMap; the remediator finds it within seconds, and one that takes over
// finds it open.
func TestTheBreakerIsReadWhileItIsOpen(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	stored := &configMap{}
	p := &policy.Policy{Breaker: &policy.Breaker{}}
	b := &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline}
	open := func() bool {
		t.Helper()
		if err := b.refresh(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		return b.state(p) != nil
	}
	set := func(s *limits.BreakerState) {
		t.Helper()
		b.set(s)
		if err := b.save(t.Context()); err != nil {
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
	b = &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline}
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
	b = &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline, dryRun: true}
	if set(&limits.BreakerState{OpenedAt: clock.Now()}); stored.state != "" || !open() {
		t.Errorf("a dry run wrote %q", stored.state)
	}
}

func TestABreakerThatCannotBeStoredIsInForceAndStoredLater(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	stored := &configMap{down: errors.New("no API server today")}
	p := &policy.Policy{Breaker: &policy.Breaker{}}
	b := &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline}
	b.set(&limits.BreakerState{OpenedAt: clock.Now()})
	if err := b.save(t.Context()); !errors.Is(err, stored.down) {
		t.Errorf("got %v", err)
	}
	stored.down = nil
	for after, want := range []struct{ stored bool }{{false}, {true}} { // at once, and later
		clock.SetTime(clock.Now().Add(time.Duration(after) * limits.RetryBlocked))
		if err := errors.Join(b.refresh(t.Context(), p), b.save(t.Context())); err != nil {
			t.Fatal(err)
		}
		if b.state(p) == nil {
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
	b := &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline}
	if err := b.refresh(t.Context(), p); !errors.Is(err, stored.down) {
		t.Errorf("a breaker whose state is not known is taken for closed: %v", err)
	}
	b.set(&limits.BreakerState{OpenedAt: clock.Now()})
	b.unsaved = false
	clock.SetTime(clock.Now().Add(limits.RetryBlocked))
	if err := b.refresh(t.Context(), p); err != nil || b.state(p) == nil {
		t.Errorf("open %v, %v", b.state(p), err)
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
			b := &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline, dryRun: dryRun}
			for range 3 {
				if err := errors.Join(b.refresh(t.Context(), p), b.save(t.Context())); err != nil {
					t.Fatal(err)
				}
				clock.SetTime(clock.Now().Add(limits.RetryBlocked))
			}
			if got := b.state(p); got == nil || !got.OpenedAt.Equal(start) {
				t.Errorf("%s: open since %v, want %s", text, got, start)
			}
			if dryRun && stored.state != text {
				t.Errorf("a dry run wrote %q", stored.state)
			}
			if stored.state = ""; dryRun {
				continue
			}
			clock.SetTime(clock.Now().Add(limits.RetryBlocked))
			if err := b.refresh(t.Context(), p); err != nil || b.state(p) != nil {
				t.Errorf("%s: a person closed it and it is %v, %v", text, b.state(p), err)
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
	b := &breakerStore{apiReader: stored, client: stored, clock: clock, deadline: breakerDeadline}
	b.set(nil)
	first := make(chan error, 1)
	go func() { first <- b.save(context.Background()) }()
	await(t, "the first write", stored.reached)
	b.set(&limits.BreakerState{OpenedAt: clock.Now()})
	if err := b.save(t.Context()); err == nil {
		t.Error("the later state was written beside the earlier one")
	}
	close(stored.may)
	if err := await(t, "the end of the first write", first); err != nil {
		t.Fatal(err)
	}
	if err := b.save(t.Context()); err != nil {
		t.Fatal(err)
	}
	if limits.ParseBreaker(stored.state, clock.Now()) == nil {
		t.Errorf("the ConfigMap has state %q, want an open breaker", stored.state)
	}
}

// hanging is an API server that never answers one request for the breaker's ConfigMap.
type hanging struct {
	client.Client
	read, write atomic.Bool   // the next one hangs
	hangs       chan struct{} // closed while it hangs
}

func (h *hanging) hang(ctx context.Context) error {
	close(h.hangs)
	<-ctx.Done()
	return ctx.Err()
}

func (h *hanging) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if key.Name == conditions.BreakerConfigMap && h.read.CompareAndSwap(true, false) {
		return h.hang(ctx)
	}
	return h.Client.Get(ctx, key, object, opts...)
}

func (h *hanging) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if object.GetName() == conditions.BreakerConfigMap && h.write.CompareAndSwap(true, false) {
		return h.hang(ctx)
	}
	return h.Client.Patch(ctx, object, patch, opts...)
}

// newHangingRig makes a controller with a breaker that opens after one quarantine.
func newHangingRig(t *testing.T, deadline time.Duration) (rig, *hanging) {
	t.Helper()
	r := newRig(t, "a", "b", "c")
	h := &hanging{Client: r.client, hangs: make(chan struct{})}
	r.policy.Policy().Breaker = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour, Pace: time.Minute}
	r.policy.Policy().Budget = policy.Unlimited
	r.breaker.client, r.breaker.apiReader, r.breaker.deadline = h, h, deadline
	return r, h
}

// start reconciles a node in the background; the channel gets the error.
func (r rig) start(ctx context.Context, name string) <-chan error {
	done := make(chan error, 1)
	go func() {
		_, err := r.Reconcile(ctx, ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
		done <- err
	}()
	return done
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

func TestAReadOfTheBreakerThatHangsHoldsUpNoOtherNode(t *testing.T) {
	r, h := newHangingRig(t, time.Hour)
	h.read.Store(true)
	ctx, cancel := context.WithCancel(t.Context())
	hung := r.start(ctx, "a")
	await(t, "the read for node a", h.hangs)
	if err := await(t, "the decision about node b", r.start(t.Context(), "b")); err != nil {
		t.Error(err)
	}
	if diff := cmp.Diff([]string{quarantine.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
	cancel()
	if err := await(t, "the end of the read", hung); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAReadOfTheBreakerThatHangsEndsAtItsDeadline(t *testing.T) {
	r, h := newHangingRig(t, time.Millisecond)
	h.read.Store(true)
	if err := await(t, "the end of the read", r.start(t.Context(), "a")); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
	r.reconcile(t, "a")
	if diff := cmp.Diff([]string{quarantine.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

func TestAWriteOfTheBreakerThatHangsHoldsUpNoOtherNode(t *testing.T) {
	r, h := newHangingRig(t, time.Hour)
	h.write.Store(true)
	r.reconcile(t, "a")
	ctx, cancel := context.WithCancel(t.Context())
	hung := r.start(ctx, "b")
	await(t, "the write for node b", h.hangs)
	if err := await(t, "the decision about node c", r.start(t.Context(), "c")); err != nil {
		t.Error(err)
	}
	want := []string{quarantine.NodeQuarantined, quarantine.BreakerOpen, quarantine.QuarantineBlocked, quarantine.QuarantineBlocked}
	if diff := cmp.Diff(want, r.reasons()); diff != "" {
		t.Error(diff)
	}
	cancel()
	if err := await(t, "the end of the write", hung); err != nil {
		t.Errorf("a breaker that is not stored yet fails the decision: %v", err)
	}
	r.clock.SetTime(r.clock.Now().Add(limits.RetryBlocked))
	r.reconcile(t, "c")
	if !slices.Contains(r.client.patched, conditions.BreakerConfigMap) {
		t.Errorf("the breaker was never stored: %v", r.client.patched)
	}
}

func TestAWriteOfTheBreakerThatHangsEndsAtItsDeadline(t *testing.T) {
	r, h := newHangingRig(t, time.Millisecond)
	h.write.Store(true)
	r.reconcile(t, "a")
	if err := await(t, "the end of the write", r.start(t.Context(), "b")); err != nil {
		t.Error(err)
	}
	if r.breaker.state(r.policy.Policy()) == nil {
		t.Error("what is not stored is not in force")
	}
}
