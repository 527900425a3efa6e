package away_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/remediator/away"
)

func request(name string) reconcile.Request {
	return reconcile.Request{NamespacedName: types.NamespacedName{Name: name}}
}

func TestWhatIsAnAPIServerThatIsAway(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://10.0.0.1", Err: &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}}
	nodes := schema.GroupResource{Resource: "nodes"}
	for err, want := range map[error]bool{
		nil: false, refused: true, fmt.Errorf("patch node a: %w", refused): true, context.DeadlineExceeded: true,
		apierrors.NewServiceUnavailable("starting"): true, apierrors.NewTooManyRequests("busy", 1): true, apierrors.NewInternalError(errors.New("x")): true,
		apierrors.NewTimeoutError("slow", 1): true, apierrors.NewServerTimeout(nodes, "get", 1): true,
		apierrors.NewForbidden(nodes, "a", errors.New("no")): false, apierrors.NewNotFound(nodes, "a"): false,
		apierrors.NewConflict(nodes, "a", errors.New("old")): false, errors.New("a record cannot be read"): false,
	} {
		if got := away.Is(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestEachObjectIsTriedLessOftenAndTheLogHasALineAMinute(t *testing.T) {
	clock := clocktesting.NewFakePassiveClock(time.Now())
	logged := 0
	ctx := ctrl.LoggerInto(t.Context(), funcr.New(func(string, string) { logged++ }, funcr.Options{}))
	failure := error(syscall.ECONNREFUSED)
	r := away.Wait(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{RequeueAfter: time.Hour}, failure
	}), clock)
	next := func(name string) time.Duration {
		t.Helper()
		result, err := r.Reconcile(ctx, request(name))
		if !errors.Is(err, failure) && err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	var last time.Duration
	for _, want := range []time.Duration{200, 400, 800, 1600, 3200, 5000, 5000} {
		if last = next("a"); last != want*time.Millisecond {
			t.Errorf("tried again after %s, not %d ms", last, want)
		}
	}
	if other := next("b"); other >= last || logged != 1 {
		t.Errorf("another object after %s, %d lines", other, logged)
	}
	clock.SetTime(clock.Now().Add(time.Minute))
	if next("b"); logged != 2 {
		t.Errorf("%d lines after a minute", logged)
	}
	failure = nil
	if after := next("a"); after != time.Hour {
		t.Errorf("back, but after %s", after)
	}
	failure = syscall.ECONNREFUSED
	if after := next("a"); after != 200*time.Millisecond {
		t.Errorf("away again: %s", after)
	}
}

func TestOtherErrorsAndTheEndAreReportedAsTheyAre(t *testing.T) {
	other := errors.New("forbidden")
	failing := func(err error) reconcile.Reconciler {
		return away.Wait(reconcile.Func(func(context.Context, reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{}, err
		}), clocktesting.NewFakePassiveClock(time.Now()))
	}
	if _, err := failing(other).Reconcile(t.Context(), request("a")); !errors.Is(err, other) {
		t.Errorf("%v", err)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	if _, err := failing(syscall.ECONNREFUSED).Reconcile(ended, request("a")); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("%v", err)
	}
}
