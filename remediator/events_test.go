package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/pitcrew-dev/pitcrew/internal/plain"
)

// Whoever may create pods chooses what stands in some Events about jobs and nodes.
func TestANoteIsOneVisibleLineOfABoundedLength(t *testing.T) {
	long := strings.Repeat("ö\u202e", 1000)
	for owner, want := range map[string]string{
		"train": "Warning Blocked it is controlled by train",
		"evil\x1b[2J\u202eb\u200b\nMARGIN \u009b31m\xff": "Warning Blocked it is controlled by evil\uFFFD[2J\uFFFDb\uFFFD MARGIN \uFFFD31m\uFFFD",
		"100%s %d": "Warning Blocked it is controlled by 100%s %d",
		long:       "",
	} {
		next := events.NewFakeRecorder(1)
		plainEvents{next}.Eventf(&corev1.Pod{}, nil, corev1.EventTypeWarning, "Blocked", "Act", "it is controlled by %s", owner)
		got := <-next.Events
		note := strings.TrimPrefix(got, "Warning Blocked ")
		if want != "" && got != want || note != plain.Line(note) || !utf8.ValidString(note) || len(note) > 1024 || owner == long && len(note) < 1000 {
			t.Errorf("%.40q: %d bytes, %.200q", owner, len(note), got)
		}
	}
}

func TestTheLogShowsNoTextThatATerminalObeys(t *testing.T) {
	const evil = "evil\x1b[2J\u202eb\u200b\u009b31m\x7f\nMARGIN"
	for _, o := range []logOptions{{}, {json: true}} {
		var log strings.Builder
		logger := o.logger(&log)
		logger.Info("refused "+evil, "reason", evil, "list", []string{evil}, "job", struct{ Name string }{evil})
		logger.Error(fmt.Errorf("read: %w", errors.New(evil)), "failed")
		if lines := strings.Split(log.String(), "\n"); len(lines) != 3 || strings.Count(log.String(), "evil") != 5 {
			t.Errorf("json %t: %q", o.json, log.String())
		}
		if shown := strings.ReplaceAll(log.String(), "\n", ""); shown != plain.Line(shown) {
			t.Errorf("json %t: %q", o.json, shown)
		}
	}
}

// answers is a transport that says which requests have arrived, and answers those for Events when it is told to.
type answers struct {
	arrived chan string
	answer  chan struct{}
}

func (a answers) RoundTrip(r *http.Request) (*http.Response, error) {
	a.arrived <- r.URL.Path
	if strings.Contains(r.URL.Path, "/events") {
		<-a.answer
	}
	return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
}

func TestFewEventsAtATime(t *testing.T) {
	const event, node = "/apis/events.k8s.io/v1/namespaces/default/events", "/api/v1/nodes/a"
	server := answers{make(chan string), make(chan struct{})}
	transport := newEventQueue(server)
	send := func(ctx context.Context, path string) error {
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://api"+path, nil)
		if err != nil {
			return err
		}
		response, err := transport.RoundTrip(r)
		if err == nil {
			err = response.Body.Close()
		}
		return err
	}
	ended := make(chan error)
	for range eventsAtOnce + 1 {
		go func() { ended <- send(t.Context(), event) }()
	}
	for range eventsAtOnce {
		if got := <-server.arrived; got != event {
			t.Fatalf("%s has arrived", got)
		}
	}
	given, giveUp := context.WithCancel(t.Context())
	giveUp()
	if err := send(given, event); !errors.Is(err, context.Canceled) {
		t.Errorf("an Event whose turn does not come ends with %v", err)
	}
	go func() { ended <- send(t.Context(), node) }()
	if got := <-server.arrived; got != node {
		t.Errorf("%s has arrived before the patch of a node, while %d Events have no answer", got, eventsAtOnce)
	}
	server.answer <- struct{}{}
	if got := <-server.arrived; got != event {
		t.Errorf("%s has arrived", got)
	}
	for range eventsAtOnce {
		server.answer <- struct{}{}
	}
	for range eventsAtOnce + 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
