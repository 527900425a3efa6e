package main

import (
	"fmt"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"

	"github.com/pitcrew-dev/pitcrew/internal/plain"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/report"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// plainEvents is a recorder whose notes are one visible line that the API server takes. A note may have text of others: the names of the
// owners of a pod, for example, which the API server does not check. It refuses one that is too long, and client-go would log it whole.
type plainEvents struct{ next events.EventRecorder }

// Eventf records an Event.
func (p plainEvents) Eventf(regarding, related runtime.Object, severity, reason, action, note string, args ...any) {
	text := causes.Clip(plain.Line(fmt.Sprintf(note, args...)), report.MaxNote)
	p.next.Eventf(regarding, related, severity, reason, action, "%s", text)
}

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
