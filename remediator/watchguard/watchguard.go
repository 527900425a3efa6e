// Package watchguard notices watches that have fallen silent. A watch of the API server on which nothing happens gets a bookmark about
// every minute, see https://kubernetes.io/docs/reference/using-api/api-concepts/#watch-bookmarks. If it gets nothing for longer, the
// server or a proxy has lost it: the connection still answers pings, and a fault would not be seen before the watch ends by itself, after
// five to ten minutes.
package watchguard

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"
)

// MaxSilence is how long a watch may get nothing: two bookmarks are missing then.
const MaxSilence = 2*time.Minute + 10*time.Second

// again is how often a watch is tried while nothing listens.
const again = time.Second

// Guard ends silent watches, and has who watches list again, from no version: over a restored etcd a server takes a watch from a version
// that it has not reached yet, and is silent until it has, https://github.com/kubernetes/kubernetes/issues/107457. A list from such a
// version waits, too, and client-go asks ten times for it.
type Guard struct {
	clock  clock.WithDelayedExecution
	log    logr.Logger
	silent *prometheus.CounterVec

	mu sync.Mutex
	// expired are the watches, by what they ask for, that were silent, and for which nothing was listed since.
	expired map[string]bool
}

// New returns a Guard whose metric is pitcrew_silent_watches_total.
func New(registry prometheus.Registerer, clock clock.WithDelayedExecution, log logr.Logger) *Guard {
	g := &Guard{clock: clock, log: log, expired: map[string]bool{}, silent: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "pitcrew_silent_watches_total",
		Help: "Watches of the API server that got nothing for two minutes, not even a bookmark, and were begun anew.",
	}, []string{"resource"})}
	registry.MustRegister(g.silent)
	return g
}

// Wrap guards all watches that a transport makes. It is for [k8s.io/client-go/rest.Config.Wrap].
func (g *Guard) Wrap(next http.RoundTripper) http.RoundTripper { return &transport{g, next} }

func (g *Guard) isExpired(what string) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.expired[what]
}

func (g *Guard) setExpired(what string, expired bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if delete(g.expired, what); expired {
		g.expired[what] = true
	}
}

type transport struct {
	*Guard
	next http.RoundTripper
}

// RoundTrip makes a request. A watch that asks for bookmarks ends when it is silent, also before the server has answered at all
// (https://github.com/kubernetes/kubernetes/issues/109603). The next one for the same is answered with 410 Gone: then a client lists again.
// That list, which may be a watch that begins with one, gets the newest version whatever version it asks for.
//
// While nothing listens, a watch waits here. A client would wait, too, but longer and longer: the back-off of client-go goes on for up to a
// minute after the API server is back.
func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	query := r.URL.Query()
	what := fmt.Sprintf("%s?fieldSelector=%s&labelSelector=%s", r.URL.Path, query.Get("fieldSelector"), query.Get("labelSelector"))
	watches := query.Get("watch") != ""
	switch lists := !watches || query.Get("sendInitialEvents") == "true"; {
	case !t.isExpired(what):
	case lists:
		t.setExpired(what, false)
		r = fromNoVersion(r, watches)
	default:
		return gone(r), nil
	}
	if !watches || query.Get("allowWatchBookmarks") != "true" {
		return t.next.RoundTrip(r) //nolint:wrapcheck // a transport adds nothing to the error of another
	}
	for {
		response, err := t.watch(r, what)
		if err == nil || !isRefused(err) {
			return response, err
		}
		select {
		case <-t.clock.After(again):
		case <-r.Context().Done():
			return nil, err
		}
	}
}

// isRefused reports whether there was no connection for a request.
func isRefused(err error) bool {
	var network *net.OpError
	return errors.As(err, &network) && network.Op == "dial"
}

// watch makes a request for a watch.
func (t *transport) watch(r *http.Request, what string) (*http.Response, error) {
	ctx, cancel := context.WithCancel(r.Context())
	b := &body{cancel: cancel}
	b.timer = t.clock.AfterFunc(MaxSilence, func() {
		t.log.Info("A watch was silent; opening it again", "what", what, "for", MaxSilence)
		t.silent.WithLabelValues(path.Base(r.URL.Path)).Inc()
		t.setExpired(what, true)
		b.silent.Store(true)
		cancel()
	})
	response, err := t.next.RoundTrip(r.WithContext(ctx))
	if err != nil {
		b.timer.Stop()
		cancel()
		return nil, err //nolint:wrapcheck // a transport adds nothing to the error of another
	}
	b.ReadCloser, response.Body = response.Body, b
	return response, nil
}

// fromNoVersion is a request for what is newest.
func fromNoVersion(r *http.Request, watches bool) *http.Request {
	r = r.Clone(r.Context())
	query := r.URL.Query()
	query.Del("resourceVersion")
	if !watches { // a watch that begins with a list must have it
		query.Del("resourceVersionMatch")
	}
	r.URL.RawQuery = query.Encode()
	return r
}

// gone is the answer of an API server that no longer has the version from which a watch would go on.
func gone(r *http.Request) *http.Response {
	const text = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"watch was silent","reason":"Expired","code":410}`
	return &http.Response{
		Status: "410 Gone", StatusCode: http.StatusGone, Proto: r.Proto, ProtoMajor: r.ProtoMajor, ProtoMinor: r.ProtoMinor, Request: r,
		Header: http.Header{"Content-Type": {"application/json"}}, ContentLength: int64(len(text)), Body: io.NopCloser(strings.NewReader(text)),
	}
}

// body is that of a watch.
type body struct {
	io.ReadCloser
	timer  clock.Timer
	cancel context.CancelFunc
	silent atomic.Bool
}

// Read reads what the server sends. After a silence that was too long it is the end of the watch.
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
	b.cancel()
	return b.ReadCloser.Close() //nolint:wrapcheck // it only closes what is inside
}
