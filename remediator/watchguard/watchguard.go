// Package watchguard notices watches that have fallen silent. A watch of the API server on which nothing happens gets a bookmark about
// every minute, see https://kubernetes.io/docs/reference/using-api/api-concepts/#watch-bookmarks. If it gets nothing for longer, the
// server or a proxy has lost it: the connection still answers pings, and a fault would not be seen before the watch ends by itself, after
// five to ten minutes.
package watchguard

import (
	"io"
	"net/http"
	"path"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// MaxSilence is how long a watch may get nothing: two bookmarks are missing then.
const MaxSilence = 2*time.Minute + 10*time.Second

// Guard ends silent watches, so that who watches begins anew where the last event was.
type Guard struct {
	clock  clock.WithDelayedExecution
	log    logr.Logger
	silent *prometheus.CounterVec
}

// New returns a Guard whose metric is pitcrew_silent_watches_total.
func New(registry prometheus.Registerer, clock clock.WithDelayedExecution, log logr.Logger) *Guard {
	g := &Guard{clock, log, prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pitcrew_silent_watches_total",
		Help: "Watches of the API server that got nothing for two minutes, not even a bookmark, and were begun anew.",
	}, []string{"resource"})}
	registry.MustRegister(g.silent)
	return g
}

// Wrap guards all watches that a transport makes. It is for [k8s.io/client-go/rest.Config.Wrap].
func (g *Guard) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{g, next} }

type transport struct {
	*Guard
	next http.RoundTripper
}

// RoundTrip makes a request. The body of a watch that asked for bookmarks ends when it is silent.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	response, err := t.next.RoundTrip(r)
	query := r.URL.Query()
	if err != nil || query.Get("watch") == "" || query.Get("allowWatchBookmarks") != "true" {
		return response, err //nolint:wrapcheck // a transport adds nothing to the error of another
	}
	b := &body{ReadCloser: response.Body}
	b.timer = t.clock.AfterFunc(MaxSilence, func() {
		t.log.Info("A watch was silent and is begun anew", "path", r.URL.Path, "fields", query.Get("fieldSelector"), "for", MaxSilence)
		t.silent.WithLabelValues(resourceOf(r.URL.Path)).Inc()
		b.silent.Store(true)
		b.ReadCloser.Close()
	})
	response.Body = b
	return response, nil
}

// body is that of a watch.
type body struct {
	io.ReadCloser
	timer  clock.Timer
	silent atomic.Bool
}

// Read reads what the server sends. After a silence that was too long it is the end of the watch: who watches goes on from the last event.
func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	switch {
	case b.silent.Load():
		return n, io.EOF
	case err != nil:
		b.timer.Stop()
	case n > 0:
		b.timer.Reset(MaxSilence)
	}
	return n, err //nolint:wrapcheck // a reader's error
}

// Close ends the watch.
func (b *body) Close() error {
	b.timer.Stop()
	return b.ReadCloser.Close() //nolint:wrapcheck // it only closes what is inside
}

// resourceOf is the resource of the path of a watch, its last part: no name follows in a list.
func resourceOf(url string) string { return path.Base(url) }
