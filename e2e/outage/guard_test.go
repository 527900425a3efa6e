package outage_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/remediator/watchguard"
)

// silencer is a way to the API server on which watches of nodes can fall silent.
type silencer struct {
	// until is in what makes a watch fall silent, which is lost; nil: nothing does.
	until []byte

	mu      sync.Mutex
	streams []*stream
}

// stream is the answer to a watch.
type stream struct {
	io.ReadCloser
	ctx    context.Context
	all    *silencer
	silent bool // all.mu must be held
}

// Read reads what the server sends. What it sends to a silent stream is lost, also its end.
func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	if s.all.isLost(s, p[:n]) {
		<-s.ctx.Done()
		return 0, s.ctx.Err()
	}
	return n, err
}

func (s *silencer) isLost(stream *stream, sent []byte) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	stream.silent = stream.silent || s.until != nil && bytes.Contains(sent, s.until)
	return stream.silent
}

func (s *silencer) wrap(next http.RoundTripper) http.RoundTripper {
	return cluster.RoundTripper(func(r *http.Request) (*http.Response, error) {
		answer, err := next.RoundTrip(r)
		if err == nil && r.URL.Path == "/api/v1/nodes" && r.URL.Query().Get("watch") != "" {
			body := &stream{ReadCloser: answer.Body, ctx: r.Context(), all: s}
			answer.Body = body
			s.mu.Lock()
			s.streams = append(s.streams, body)
			s.mu.Unlock()
		}
		return answer, err
	})
}

// silence has all present watches of nodes get nothing any more.
func (s *silencer) silence() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, each := range s.streams {
		each.silent = true
	}
}

// watches fails unless a watch of nodes is under way that is not silent.
func (s *silencer) watches() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.ContainsFunc(s.streams, func(each *stream) bool { return !each.silent && each.ctx.Err() == nil }) {
		return errors.New("no watch of nodes")
	}
	return nil
}

// cached is a cache of nodes behind a guard whose clock stands still.
type cached struct {
	testing.TB
	api      client.Client
	clock    *clocktesting.FakeClock
	registry *prometheus.Registry
	store    cache.Store
}

func newCached(t *testing.T, c *cluster.Cluster, cfg *rest.Config) *cached {
	t.Helper()
	w := &cached{TB: t, api: c.Client, clock: clocktesting.NewFakeClock(time.Now()), registry: prometheus.NewRegistry()}
	cfg.Wrap(watchguard.New(w.registry, w.clock, logr.Discard()).Wrap)
	api, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	factory := informers.NewSharedInformerFactory(api, 0)
	informer := factory.Core().V1().Nodes().Informer()
	w.store = informer.GetStore()
	ctx, stop := context.WithCancel(t.Context())
	factory.Start(ctx.Done())
	t.Cleanup(func() {
		stop()
		factory.Shutdown()
	})
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		t.Fatal("no cache")
	}
	return w
}

func (w *cached) mark(name, value string) {
	w.Helper()
	patch := fmt.Appendf(nil, `{"metadata":{"labels":{"mark":%q}}}`, value)
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := w.api.Patch(w.Context(), n, client.RawPatch("application/merge-patch+json", patch)); err != nil {
		w.Fatal(err)
	}
}

func (w *cached) shows(name, value string) error {
	object, found, err := w.store.GetByKey(name)
	if err != nil || !found {
		return fmt.Errorf("node %s: found %t, %w", name, found, err)
	}
	if got := object.(*corev1.Node).Labels["mark"]; got != value {
		return fmt.Errorf("node %s is marked %q, not %q", name, got, value)
	}
	return nil
}

// becomes waits until the cache shows a mark. Meanwhile the clock of the guard goes on about as the real one does: it waits by it before
// it connects again.
func (w *cached) becomes(name, value string) {
	w.Helper()
	moved := time.Now()
	clustertest.Until(w, patience, "the cache follows", func() error {
		w.clock.Step(time.Since(moved))
		moved = time.Now()
		return w.shows(name, value)
	})
}

// becomesAfterSilence waits until the cache shows a mark, and moves the clock of the guard on beyond its limit now and then: a watch that is
// healthy, but gets nothing in that moment, must have time to begin anew.
func (w *cached) becomesAfterSilence(name, value string) {
	w.Helper()
	var moved time.Time
	clustertest.Until(w, patience, "the cache follows after a silence", func() error {
		err := w.shows(name, value)
		if err != nil && time.Since(moved) > 3*time.Second {
			w.clock.Step(watchguard.MaxSilence + time.Second)
			moved = time.Now()
		}
		return err
	})
	if metrics, err := w.registry.Gather(); err != nil || len(metrics) == 0 {
		w.Errorf("metrics of silent watches: %v, %v", metrics, err)
	}
}

func TestAStreamThatAProxySwallowsIsBegunAnew(t *testing.T) {
	c := clustertest.Get(t)
	name := addNode(t, c)
	s, proxy := silentProxy(t, c)
	if err := c.InstallRemediator(t.Context()); err != nil {
		t.Fatal(err)
	}
	cfg, err := c.ServiceAccountConfig(t.Context(), "pitcrew", "pitcrew-remediator") // a client certificate goes through no proxy
	if err != nil {
		t.Fatal(err)
	}
	proxy.Redirect(cfg)
	w := newCached(t, c, cfg)
	w.mark(name, "before")
	w.becomes(name, "before")
	s.silence()
	w.mark(name, "after")
	w.becomesAfterSilence(name, "after")
}

// After a restore a watch goes on from a version that the API server has not reached yet, and is silent until it has:
// https://github.com/kubernetes/kubernetes/issues/107457.
func TestACacheFollowsARestoredEtcd(t *testing.T) {
	c := clustertest.Get(t)
	name := addNode(t, c)
	w := newCached(t, c, rest.CopyConfig(c.Admin)) // it is refused nothing while the API server starts, which would have it list anew
	if err := c.SaveEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.churn(name)
	if err := c.RestoreEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.mark(name, "new")
	w.becomesAfterSilence(name, "new")
}

// churn makes more versions than an API server writes when it starts, and waits until the cache shows the last one.
func (w *cached) churn(name string) {
	w.Helper()
	for i := range 500 {
		w.mark(name, fmt.Sprint(i))
	}
	w.becomes(name, "499")
}

func addNode(t *testing.T, c *cluster.Cluster) string {
	t.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{GenerateName: "gpu-"}}
	if err := c.Client.Create(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := c.DeleteNodes(context.Background(), n.Name); err != nil {
			t.Error(err)
		}
	})
	return n.Name
}
