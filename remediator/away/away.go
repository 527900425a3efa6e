// Package away has controllers wait for an API server that does not answer. Each request of a controller then fails in an instant, so that
// many nodes would be tried, and reported, hundreds of times a second.
package away

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
)

const (
	// shortestPause and longestPause are between two tries to reconcile one object.
	shortestPause, longestPause = 200 * time.Millisecond, 5 * time.Second
	// sayEvery is how often the log says that the API server is still away.
	sayEvery = time.Minute
)

// Is reports whether a request failed because the API server did not answer, or could not.
func Is(err error) bool {
	var failed *url.Error
	var network net.Error
	return errors.As(err, &failed) || errors.As(err, &network) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) ||
		apierrors.IsServerTimeout(err) || apierrors.IsTimeout(err) || apierrors.IsInternalError(err)
}

type reconciler struct {
	reconcile.Reconciler
	retries workqueue.TypedRateLimiter[reconcile.Request]
	clock   clock.PassiveClock

	mu   sync.Mutex
	said time.Time
}

// Wait returns a Reconciler that does what another does. While the API server is away it tries again with a back-off for each object, and
// logs one line a minute.
func Wait(inside reconcile.Reconciler, clock clock.PassiveClock) reconcile.Reconciler {
	limiter := workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](shortestPause, longestPause)
	return &reconciler{Reconciler: inside, retries: limiter, clock: clock}
}

// Reconcile reconciles an object.
func (r *reconciler) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	result, err := r.Reconciler.Reconcile(ctx, request)
	if !Is(err) || ctx.Err() != nil { // the process ends
		r.retries.Forget(request)
		return result, err //nolint:wrapcheck // that of the Reconciler inside
	}
	r.report(ctx, err)
	return reconcile.Result{RequeueAfter: r.retries.When(request), Priority: result.Priority}, nil
}

func (r *reconciler) report(ctx context.Context, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.clock.Since(r.said) >= sayEvery {
		ctrl.LoggerFrom(ctx).Error(err, "The API server does not answer; trying until it does, here and for other objects")
		r.said = r.clock.Now()
	}
}
