package nodes

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

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
	r.keeps(memory.Options{Client: h, Reader: h, Deadline: deadline})
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
	if diff := cmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" {
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
	if diff := cmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" {
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
	want := []string{causes.NodeQuarantined, causes.BreakerOpen, causes.QuarantineBlocked, causes.QuarantineBlocked}
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
	if r.breaker.State(r.policy.Policy()) == nil {
		t.Error("what is not stored is not in force")
	}
}
