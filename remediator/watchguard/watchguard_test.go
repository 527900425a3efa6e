package watchguard_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kruntime "k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"github.com/pitcrew-dev/pitcrew/remediator/watchguard"
)

const watching = "/api/v1/nodes?watch=true&allowWatchBookmarks=true"

// world is a server that sends what a test tells it to, and the clock of a Guard in front of a client.
type world struct {
	*testing.T
	client   *http.Client
	url      string
	send     chan string
	clock    *clocktesting.FakeClock
	registry *prometheus.Registry
	logged   []string
	// onRequest may answer a request in place of the server.
	onRequest func(http.ResponseWriter, *http.Request) (done bool)
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, send: make(chan string), clock: clocktesting.NewFakeClock(time.Now()), registry: prometheus.NewRegistry()}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if w.onRequest != nil && w.onRequest(out, r) {
			return
		}
		out.Header().Set("Content-Type", "application/json")
		out.(http.Flusher).Flush()
		for {
			select {
			case text := <-w.send:
				io.WriteString(out, text)
				out.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	server.EnableHTTP2 = true // as the API server
	server.StartTLS()
	t.Cleanup(server.Close)
	log := funcr.New(func(_, text string) { w.logged = append(w.logged, text) }, funcr.Options{})
	w.client, w.url = server.Client(), server.URL
	w.client.Transport = watchguard.New(w.registry, w.clock, log).Wrap(w.client.Transport)
	return w
}

func (w *world) get(path string) io.ReadCloser {
	w.Helper()
	request, err := http.NewRequestWithContext(w.Context(), http.MethodGet, w.url+path, nil)
	if err != nil {
		w.Fatal(err)
	}
	response, err := w.client.Do(request)
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { response.Body.Close() })
	return response.Body
}

// receives sends a bookmark, and waits until it is read.
func (w *world) receives(body io.Reader) {
	w.Helper()
	w.send <- "bookmark\n"
	if _, err := io.ReadFull(body, make([]byte, len("bookmark\n"))); err != nil {
		w.Fatal(err)
	}
}

// ends returns a channel of the error by which the next read ends.
func ends(body io.Reader) <-chan error {
	failed := make(chan error, 1)
	go func() {
		_, err := body.Read(make([]byte, 1))
		failed <- err
	}()
	return failed
}

func TestASilentWatchEnds(t *testing.T) {
	w := newWorld(t)
	body := w.get(watching)
	for range 3 { // bookmarks keep it
		w.clock.Step(watchguard.MaxSilence - time.Second)
		w.receives(body)
	}
	failed := ends(body)
	w.clock.Step(watchguard.MaxSilence + time.Second)
	if err := <-failed; !errors.Is(err, io.EOF) {
		t.Errorf("it ends with %v", err)
	}
	metrics, err := w.registry.Gather()
	if err != nil || len(metrics) != 1 || metrics[0].GetMetric()[0].GetLabel()[0].GetValue() != "nodes" || len(w.logged) != 1 {
		t.Errorf("metrics %v, log %q, error %v", metrics, w.logged, err)
	}
}

func TestWhatIsNoWatchWithBookmarksMayBeSilent(t *testing.T) {
	for _, path := range []string{"/api/v1/nodes", "/api/v1/nodes?watch=true", "/api/v1/namespaces/ml/pods/train-0/log?follow=true"} {
		w := newWorld(t)
		body := w.get(path)
		w.clock.Step(10 * watchguard.MaxSilence)
		w.receives(body)
		if w.clock.HasWaiters() {
			t.Error("a timer runs")
		}
	}
}

func TestAWatchThatEndsLeavesNoTimer(t *testing.T) {
	w := newWorld(t)
	w.get(watching).Close()
	if w.clock.HasWaiters() {
		t.Error("a timer runs")
	}
}

func TestAServerThatDoesNotAnswerAWatchAtAllIsSilent(t *testing.T) {
	fake := clocktesting.NewFakeClock(time.Now())
	asked := make(chan struct{})
	never := roundTrip(func(r *http.Request) (*http.Response, error) {
		close(asked)
		<-r.Context().Done()
		return nil, r.Context().Err()
	})
	client := http.Client{Transport: watchguard.New(prometheus.NewRegistry(), fake, logr.Discard()).Wrap(never)}
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server"+watching, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-asked
		fake.Step(watchguard.MaxSilence + time.Second)
	}()
	response, err := client.Do(request)
	if err == nil {
		response.Body.Close()
		t.Error("it is answered")
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// listing is a source of a server that cannot send a list as events.
type listing struct{ *cache.ListWatch }

func (*listing) IsWatchListSemanticsUnSupported() bool { return true }

// A reflector of client-go takes the end of a silent watch for one that the server has ended, and lists before it watches again.
func TestAReflectorListsAnewAfterASilence(t *testing.T) {
	w := newWorld(t)
	var lists atomic.Int32
	var version atomic.Value
	watching := make(chan struct{}, 10)
	w.onRequest = func(out http.ResponseWriter, r *http.Request) (done bool) {
		if r.URL.Query().Get("watch") != "" {
			watching <- struct{}{}
			return false
		}
		lists.Add(1)
		version.Store(r.URL.Query().Get("resourceVersion"))
		out.Header().Set("Content-Type", "application/json")
		io.WriteString(out, `{"kind":"NodeList","apiVersion":"v1","metadata":{"resourceVersion":"7"},"items":[]}`)
		return true
	}
	api, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: w.url}, w.client)
	if err != nil {
		t.Fatal(err)
	}
	source := &listing{&cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (kruntime.Object, error) {
			return api.CoreV1().Nodes().List(ctx, o)
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return api.CoreV1().Nodes().Watch(ctx, o)
		},
	}}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	stored := make(chan struct{}, 10)
	store := cache.NewStore(func(any) (string, error) {
		stored <- struct{}{}
		return "gpu-1", nil
	})
	go func() {
		defer close(ended)
		cache.NewReflectorWithOptions(source, &corev1.Node{}, store, cache.ReflectorOptions{}).RunWithContext(ctx)
	}()
	<-watching
	// After a watch without an event that ends within a second a reflector lists in any case.
	w.send <- `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"gpu-1","resourceVersion":"8"}}}` + "\n"
	<-stored
	before := lists.Load()
	w.clock.Step(watchguard.MaxSilence + time.Second)
	<-watching
	if after := lists.Load(); after != before+1 || version.Load() != "" {
		t.Errorf("%d lists before the silence, %d after it, from version %q", before, after, version.Load())
	}
	stop()
	<-ended
}

// A watch that begins with a list is one, also if it is that which was silent.
func TestAWatchWithAListBeginsAnewFromNoVersion(t *testing.T) {
	w := newWorld(t)
	asked := make(chan string, 1)
	w.onRequest = func(_ http.ResponseWriter, r *http.Request) (done bool) {
		asked <- r.URL.Query().Get("resourceVersion") + " " + r.URL.Query().Get("resourceVersionMatch")
		return false
	}
	const list = watching + "&sendInitialEvents=true&resourceVersion=8&resourceVersionMatch=NotOlderThan"
	for _, want := range []string{"8 NotOlderThan", " NotOlderThan", " NotOlderThan"} {
		failed := ends(w.get(list))
		if got := <-asked; got != want {
			t.Errorf("asked from version %q, not %q", got, want)
		}
		w.clock.Step(watchguard.MaxSilence + time.Second)
		<-failed
	}
	if w.get(watching); len(asked) > 0 {
		t.Error("a watch that goes on was asked for")
	}
}

func TestAWatchWaitsWhileNothingListens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tries := 0
		refuse := roundTrip(func(*http.Request) (*http.Response, error) {
			if tries++; tries > 3 {
				return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(""))}, nil
			}
			return nil, &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
		})
		client := http.Client{Transport: watchguard.New(prometheus.NewRegistry(), clock.RealClock{}, logr.Discard()).Wrap(refuse)}
		get := func(ctx context.Context, path string) (took time.Duration, err error) {
			request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://server"+path, nil)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			response, err := client.Do(request)
			if err == nil {
				err = response.Body.Close()
			}
			return time.Since(begun), err
		}
		if took, err := get(t.Context(), "/api/v1/nodes"); took != 0 || !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a list took %s: %v", took, err)
		}
		if took, err := get(t.Context(), watching); took != 2*time.Second || err != nil || tries != 4 {
			t.Errorf("a watch took %s: %v after %d tries", took, err, tries)
		}
		tries = 0
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		if took, err := get(ctx, watching); took != time.Second/2 || err == nil {
			t.Errorf("it outlives its context: %s, %v", took, err)
		}
	})
}
