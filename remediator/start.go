package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/pitcrew-dev/pitcrew/remediator/away"
	"github.com/pitcrew-dev/pitcrew/remediator/watchguard"
)

const (
	// shortestWait and longestWait are between two tries to reach an API server that is away.
	shortestWait, longestWait = 200 * time.Millisecond, 5 * time.Second
	// sayEvery is how often the log says that the API server is still away.
	sayEvery = time.Minute
)

// waitForManager makes the manager. While the API server is away it waits, alive but not ready: a process that ends is started again by the
// kubelet with a back-off of up to five minutes, which would go on after the API server is back.
func waitForManager(ctx context.Context, o options, now clock.WithDelayedExecution) (ctrl.Manager, error) {
	guard := watchguard.New(metrics.Registry, now, ctrl.Log)
	return whileAway(ctx, o.healthAddress, now, func() (ctrl.Manager, error) { return newManager(o, guard) })
}

// whileAway tries until the error is not that the API server is away.
func whileAway[T any](ctx context.Context, healthAddress string, now clock.PassiveClock, try func() (T, error)) (result T, err error) {
	if result, err = try(); !isAway(err) {
		return result, err
	}
	var said time.Time
	for pause := shortestWait; ; pause = min(2*pause, longestWait) {
		if now.Since(said) >= sayEvery {
			ctrl.Log.Error(err, "The API server does not answer, or refuses; waiting until it serves")
			said = now.Now()
		}
		if err := aliveFor(ctx, healthAddress, wait.Jitter(pause, 0.1)); err != nil {
			return result, err
		}
		if result, err = try(); !isAway(err) {
			return result, err
		}
	}
}

// isAway reports whether a request failed because the API server did not answer, or answered with an error: while it starts, that may be
// any, such as Forbidden until it has read the roles.
func isAway(err error) bool {
	var status apierrors.APIStatus
	return away.Is(err) || errors.As(err, &status)
}

// aliveFor serves /healthz with 200 and everything else, /readyz among it, with 503 for a while. The manager needs the address afterwards.
func aliveFor(ctx context.Context, address string, pause time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, pause)
	defer cancel()
	if address != "0" {
		listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", address)
		if err != nil {
			return fmt.Errorf("serve the health checks: %w", err)
		}
		server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path != "/healthz" {
				http.Error(w, "the API server does not answer", http.StatusServiceUnavailable)
			}
		})}
		stopped := context.AfterFunc(ctx, func() { _ = server.Close() })
		defer stopped()
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve the health checks: %w", err)
		}
	}
	<-ctx.Done()
	if cause := context.Cause(ctx); errors.Is(cause, context.DeadlineExceeded) {
		return nil
	}
	return context.Cause(ctx)
}
