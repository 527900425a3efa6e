package main

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
)

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
