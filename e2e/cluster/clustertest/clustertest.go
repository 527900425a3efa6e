// Package clustertest gives the tests of one package one cluster.
//
//	func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{JobSet: true}) }
//
//	func TestX(t *testing.T) { c := clustertest.Get(t) ... }
package clustertest

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

var shared struct {
	sync.Mutex
	ctx     context.Context
	opts    cluster.Options
	cluster *cluster.Cluster
	err     error
}

// Main runs the tests of a package and closes their cluster, also on Ctrl-C. The cluster is started by the first test
// that asks for it.
func Main(m *testing.M, opts cluster.Options) {
	if opts.Progress == nil {
		opts.Progress = os.Stderr
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	shared.ctx, shared.opts = ctx, opts
	context.AfterFunc(ctx, func() {
		fmt.Fprintln(os.Stderr, context.Cause(ctx))
		closeCluster()
		stop() // from here on the signal ends this process
		_ = syscall.Kill(os.Getpid(), syscall.SIGINT)
	})
	m.Run() // the testing package exits with its result
	closeCluster()
}

// Get returns the package's cluster. The other tests of the package share its nodes and namespaces: use
// names that no other test has.
func Get(t *testing.T) *cluster.Cluster {
	t.Helper()
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil && shared.err == nil {
		shared.cluster, shared.err = cluster.Start(shared.ctx, shared.opts)
	}
	if shared.err != nil {
		t.Fatal(shared.err)
	}
	if err := context.Cause(shared.cluster.Context()); err != nil {
		t.Fatal(err)
	}
	return shared.cluster
}

// FreeAddress is a host:port on which nothing listens.
func FreeAddress(t testing.TB) string {
	t.Helper()
	address, err := cluster.FreeAddress()
	if err != nil {
		t.Fatal(err)
	}
	return address
}

// Until polls until check returns nil, see [cluster.Poll]. After patience it fails the test with the last error.
func Until(t testing.TB, patience time.Duration, what string, check func() error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := cluster.Poll(ctx, func(context.Context) error { return check() }); err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// Outage stops the API server of c until end, or until the test ends: the tests after it need it. Then the controllers begin anew, too,
// see [cluster.Cluster.RestartControllers]. Only the goroutine of the test may call end.
func Outage(t testing.TB, c *cluster.Cluster) (end func()) {
	t.Helper()
	return outage(t, c, c.StopAPIServer, c.StartAPIServer)
}

// Frozen is [Outage] with an API server that is frozen: it hangs, see [cluster.Cluster.FreezeAPIServer].
func Frozen(t testing.TB, c *cluster.Cluster) (end func()) {
	t.Helper()
	return outage(t, c, c.FreezeAPIServer, c.ThawAPIServer)
}

func outage(t testing.TB, c *cluster.Cluster, stop func(), start func(context.Context) error) (end func()) {
	t.Helper()
	stop()
	over := false
	end = func() {
		t.Helper()
		if over {
			return
		}
		over = true
		if err := start(c.Context()); err != nil { // that of the test has ended when its cleanups run
			t.Fatal(err)
		}
		c.RestartControllers()
	}
	t.Cleanup(end)
	return end
}

func closeCluster() {
	shared.Lock()
	defer shared.Unlock()
	if shared.cluster == nil {
		return
	}
	if err := shared.cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}
