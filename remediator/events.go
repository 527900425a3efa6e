package main

import (
	"net/http"
	"strings"
)

// eventsAtOnce is how many Events are sent at a time. client-go sends each from a goroutine of its own: without a bound those about a
// thousand quarantined nodes would reach the API server before most of the taints.
const eventsAtOnce = 2

// eventQueue is an [http.RoundTripper] that sends few Events at a time, and all other requests at once.
type eventQueue struct {
	next  http.RoundTripper
	slots chan struct{}
}

func newEventQueue(next http.RoundTripper) http.RoundTripper {
	return &eventQueue{next, make(chan struct{}, eventsAtOnce)}
}

// RoundTrip sends a request, an Event when it is its turn.
func (q *eventQueue) RoundTrip(r *http.Request) (*http.Response, error) {
	if strings.Contains(r.URL.Path, "/apis/events.k8s.io/") {
		select {
		case q.slots <- struct{}{}:
			defer func() { <-q.slots }()
		case <-r.Context().Done():
			return nil, r.Context().Err()
		}
	}
	return q.next.RoundTrip(r)
}
