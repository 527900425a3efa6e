package watchguard_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/go-logr/logr/funcr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
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
}

func newWorld(t *testing.T) *world {
	w := &world{T: t, send: make(chan string), clock: clocktesting.NewFakeClock(time.Now()), registry: prometheus.NewRegistry()}
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
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

// client-go takes the end of a silent watch as one that the server has closed: no error, and nothing is listed again.
func TestClientGoTakesTheEndForOneOfTheServer(t *testing.T) {
	w := newWorld(t)
	api, err := kubernetes.NewForConfigAndClient(&rest.Config{Host: w.url}, w.client)
	if err != nil {
		t.Fatal(err)
	}
	watch, err := api.CoreV1().Nodes().Watch(t.Context(), metav1.ListOptions{AllowWatchBookmarks: true})
	if err != nil {
		t.Fatal(err)
	}
	w.send <- `{"type":"ADDED","object":{"kind":"Node","apiVersion":"v1","metadata":{"name":"gpu-1"}}}` + "\n"
	if event := <-watch.ResultChan(); event.Object.(*corev1.Node).Name != "gpu-1" {
		t.Fatalf("%+v", event)
	}
	w.clock.Step(watchguard.MaxSilence + time.Second)
	if event, open := <-watch.ResultChan(); open {
		t.Errorf("%+v", event)
	}
}
