package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

func TestWhatCountsAsAnAPIServerThatIsAway(t *testing.T) {
	refused := &url.Error{Op: "Get", URL: "https://10.0.0.1/api", Err: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}}
	for err, want := range map[error]bool{
		nil: false, refused: true, fmt.Errorf("make the manager: %w", refused): true, context.DeadlineExceeded: true,
		apierrors.NewServiceUnavailable("starting"): true, apierrors.NewTooManyRequests("busy", 1): true, apierrors.NewInternalError(errors.New("x")): true,
		apierrors.NewTimeoutError("slow", 1): true, apierrors.NewUnauthorized("no"): true, errors.New("find a cluster: no kubeconfig"): false,
		apierrors.NewForbidden(schema.GroupResource{}, "", nil):                                                true,
		apierrors.NewGenericServerResponse(http.StatusTeapot, "get", schema.GroupResource{}, "", "", 0, false): true,
	} {
		if got := isAway(err); got != want {
			t.Errorf("%v: %t", err, got)
		}
	}
}

func TestTheStartEndsWithItsContextOrAnotherError(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	away, tries := apierrors.NewServiceUnavailable("starting"), 0
	_, err := whileAway(ctx, "0", clock.RealClock{}, func() (int, error) {
		if tries++; tries == 2 {
			cancel()
		}
		return 0, away
	})
	if !errors.Is(err, context.Canceled) || tries != 2 {
		t.Errorf("%v after %d tries", err, tries)
	}
	other := errors.New("forbidden")
	if _, err := whileAway(t.Context(), "0", clock.RealClock{}, func() (int, error) {
		if tries++; tries > 3 {
			return 0, other
		}
		return 0, away
	}); !errors.Is(err, other) {
		t.Errorf("%v", err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	if _, err := whileAway(t.Context(), taken.Addr().String(), clock.RealClock{}, func() (int, error) { return 0, away }); err == nil || errors.Is(err, away) {
		t.Errorf("an address that is taken: %v", err)
	}
}

func TestAStartWithoutAnAPIServerWaitsForIt(t *testing.T) {
	tm := newTeam(t, "late", 1, nil)
	policy := tm.policy(1, "clearAfter: 1s")
	tm.report(tm.nodes[0], "True", lost)
	address := clustertest.FreeAddress(t)
	if err := errors.Join(tm.InstallRemediator(t.Context()), components.BuildOurs(t.Context(), tm.Root, "./remediator")); err != nil {
		t.Fatal(err)
	}
	cfg, err := tm.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator")
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig, err := tm.WriteKubeconfig("late", cfg)
	if err != nil {
		t.Fatal(err)
	}
	end := clustertest.Outage(t, tm.Cluster)
	// Not of the cluster, which asks the API server for its token.
	remediator := exec.CommandContext(t.Context(), filepath.Join(tm.Root, "bin", "remediator"),
		"-kubeconfig", kubeconfig, "-policy", policy, alone, "-metrics-bind-address", "0", "-health-probe-bind-address", address)
	var log bytes.Buffer
	remediator.Stderr = &log
	defer func() {
		if t.Failed() {
			t.Logf("log:\n%s", &log)
		}
	}()
	if err := remediator.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- remediator.Wait() }()
	get := func(path string) (status int, err error) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return 0, err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err
		}
		return response.StatusCode, response.Body.Close()
	}
	tm.until("it is alive and not ready", func() error {
		alive, err := get("/healthz")
		ready, notReady := get("/readyz")
		if err := errors.Join(err, notReady); err != nil {
			return err
		}
		if alive != http.StatusOK || ready != http.StatusServiceUnavailable {
			return fmt.Errorf("/healthz %d, /readyz %d", alive, ready)
		}
		return nil
	})
	end()
	_, r := tm.becomes(tm.nodes[0], causes.Quarantined)
	if r.Causes[0].Condition != conditions.GPUXidError {
		t.Errorf("causes %v", r.Causes)
	}
	tm.until("it is ready", func() error {
		if ready, err := get("/readyz"); err != nil || ready != http.StatusOK {
			return fmt.Errorf("/readyz %d, %w", ready, err)
		}
		return nil
	})
	if err := remediator.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil || !strings.Contains(log.String(), "The API server does not answer") {
		t.Errorf("%v, log:\n%s", err, &log)
	}
}
