package outage_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/outage"
)

var silences = flag.Bool("silences", false, "also what takes minutes: silences that end by themselves")

const (
	patience = 3 * time.Minute
	lease    = 5 * time.Second // the default
	// soon is the promise of 10 s, on a machine that does much else.
	soon = 30 * time.Second
	// late is the promise of three minutes after a silence, likewise.
	late = 4 * time.Minute
)

func TestMain(m *testing.M) { clustertest.Main(m, cluster.Options{APIOnly: true}) }

func makeWorld(t *testing.T, maxNodes int, after time.Duration) *outage.World {
	t.Helper()
	w, err := outage.NewWorld(t.Context(), clustertest.Get(t), maxNodes, after)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		var logs []string
		for i, r := range w.Replicas {
			logs = append(logs, fmt.Sprintf("remediator %d:\n%s", i, r.Log()))
		}
		t.Logf("ends of processes: %v", w.Stop())
		if t.Failed() {
			t.Log(strings.Join(logs, "\n"))
		}
		if err := w.Clean(context.Background()); err != nil { //nolint:usetesting // the test's own context has ended by now
			t.Error(err)
		}
	})
	return w
}

// newWorld is a world whose remediators reach the API server as each redirect says, and have tainted a node.
func newWorld(t *testing.T, redirects ...func(*rest.Config)) *outage.World {
	t.Helper()
	w := makeWorld(t, 9, 0)
	if err := w.Start(t.Context(), lease, redirects...); err != nil {
		t.Fatal(err)
	}
	taintedWithin(t, w, patience)
	return w
}

// taintedWithin fails the test unless a new fault is tainted in time.
func taintedWithin(t *testing.T, w *outage.World, limit time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	took, err := w.Fault(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("tainted after %s", took.Round(10*time.Millisecond))
}

// leaderEnds waits until a process has ended.
func leaderEnds(t *testing.T, w *outage.World) {
	t.Helper()
	clustertest.Until(t, patience, "the leader ends", func() error {
		for _, r := range w.Replicas {
			if r.Ended() > 0 {
				return nil
			}
		}
		return errors.New("all processes run")
	})
}

func TestTheNextFaultIsTaintedSoonAfterAnOutage(t *testing.T) {
	t.Run("stopped", func(t *testing.T) {
		w := newWorld(t, nil, nil)
		end := clustertest.Outage(t, w.Cluster)
		leaderEnds(t, w)
		end()
		taintedWithin(t, w, soon)
	})
	t.Run("frozen", func(t *testing.T) {
		w := newWorld(t, nil, nil)
		end := clustertest.Frozen(t, w.Cluster)
		leaderEnds(t, w)
		end()
		taintedWithin(t, w, soon)
	})
	t.Run("connections swallowed", func(t *testing.T) {
		wire, err := clustertest.Get(t).StartWire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(wire.Close)
		w := newWorld(t, wire.Redirect)
		wire.Swallow()
		leaderEnds(t, w)
		taintedWithin(t, w, soon)
	})
}

// A standby whose watch was silent when it begins to lead does not know that the one place of the budget is taken.
func TestAStandbyThatWasSilentDecidesNothing(t *testing.T) {
	s, proxy := silentProxy(t, clustertest.Get(t))
	s.until = []byte(`"phase":"quarantined"`) // the standby sees two faults, and not what the leader does about them
	w := makeWorld(t, 1, 3*time.Second)
	if err := w.Start(t.Context(), lease, nil); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the first replica leads", func() error { return leads(w.Replicas[0]) })
	if err := w.Start(t.Context(), lease, proxy.Redirect); err != nil {
		t.Fatal(err)
	}
	clustertest.Until(t, patience, "the standby watches", s.watches)
	leader, standby := w.Replicas[0], w.Replicas[1]
	var nodes []string
	for range 2 {
		name, err := w.AddNode(t.Context())
		if err == nil {
			err = w.Report(t.Context(), name)
		}
		if err != nil {
			t.Fatal(err)
		}
		nodes = append(nodes, name)
	}
	tainted := func() (n int) {
		for _, name := range nodes {
			is, err := w.IsTainted(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			if is {
				n++
			}
		}
		return n
	}
	clustertest.Until(t, patience, "one is tainted, which the standby does not see", func() error {
		if n := tainted(); n != 1 || s.watches() == nil {
			return fmt.Errorf("%d are, and the standby may still watch", n)
		}
		return nil
	})
	leader.End()
	clustertest.Until(t, patience, "the standby leads and knows that it is late", func() error {
		if !strings.Contains(standby.Log(), "the watch of nodes is late") {
			return errors.New("it does not say so")
		}
		return nil
	})
	if *silences {
		noticed(t, standby)
	}
	if n := tainted(); n != 1 {
		t.Errorf("%d nodes are tainted", n)
	}
}

func leads(r *outage.Replica) error {
	if !r.IsLeader() {
		return errors.New("it does not lead")
	}
	return nil
}

func TestSilentWatchesAreNoticed(t *testing.T) {
	if !*silences {
		t.Skip("make silences runs it")
	}
	t.Run("streams swallowed", func(t *testing.T) {
		s, proxy := silentProxy(t, clustertest.Get(t))
		w := newWorld(t, proxy.Redirect, proxy.Redirect)
		clustertest.Until(t, patience, "the replicas watch", s.watches)
		s.silence()
		taintedWithin(t, w, late)
		noticed(t, w.Replicas...)
	})
	t.Run("restored etcd", func(t *testing.T) {
		// Remediators whose account is refused while the API server starts list anew: in a cluster with several servers they are not.
		w := newWorld(t, nil, nil)
		if err := w.SaveEtcd(t.Context()); err != nil {
			t.Fatal(err)
		}
		taintedWithin(t, w, patience)
		newCached(t, w.Cluster, rest.CopyConfig(w.Admin)).churn(addNode(t, w.Cluster))
		if err := w.RestoreEtcd(t.Context()); err != nil {
			t.Fatal(err)
		}
		taintedWithin(t, w, late)
	})
}

// noticed waits until each replica has noticed a silent watch.
func noticed(t *testing.T, replicas ...*outage.Replica) {
	t.Helper()
	for i, r := range replicas {
		clustertest.Until(t, patience, "the metric", func() error {
			if n, err := r.SilentWatches(t.Context()); err != nil || n == 0 {
				return fmt.Errorf("replica %d: %d silent watches, %w", i, n, err)
			}
			return nil
		})
	}
}

func silentProxy(t *testing.T, c *cluster.Cluster) (*silencer, *cluster.Proxy) {
	t.Helper()
	s := &silencer{}
	proxy, err := c.StartHTTP2Proxy(func(next http.RoundTripper) http.RoundTripper { return s.wrap(next) })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxy.Close)
	return s, proxy
}
