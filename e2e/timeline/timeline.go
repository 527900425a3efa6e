// Package timeline follows what happens in a cluster, and when the watches report it, for the demo and the benchmarks.
package timeline

import (
	"context"
	"fmt"
	"io"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Scene holds the watched objects as the API server has reported them so far.
type Scene struct {
	Nodes  map[string]*corev1.Node
	Pods   map[types.UID]*corev1.Pod
	Events []*corev1.Event
	// Other holds the objects of all other kinds.
	Other map[types.UID]*unstructured.Unstructured
}

// Step is something that is expected to happen.
type Step struct {
	// Expected describes what, as the timeline prints it.
	Expected string
	// Seen returns a description of the current state, and whether the step has happened.
	Seen func(*Scene) (description string, ok bool)
	// After is set by [Timeline.Follow]: the time between the beginning and the news that it has happened.
	After time.Duration
}

// Timeline keeps a scene up to date.
type Timeline struct {
	Scene
	news chan news
}

// news is one message of a watch and its time of arrival.
type news struct {
	at    time.Time
	event watch.Event
	err   error
}

// Source is something to watch.
type Source struct {
	List client.ObjectList
	Opts []client.ListOption
}

// New watches the sources until ctx ends.
func New(ctx context.Context, c client.WithWatch, sources ...Source) (*Timeline, error) {
	t := empty()
	for _, source := range sources {
		watcher, err := c.Watch(ctx, source.List, source.Opts...)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", source.List, err)
		}
		go t.forward(ctx, watcher, fmt.Sprintf("%T", source.List))
	}
	return t, nil
}

func empty() *Timeline {
	return &Timeline{
		Scene: Scene{
			Nodes: map[string]*corev1.Node{},
			Pods:  map[types.UID]*corev1.Pod{},
			Other: map[types.UID]*unstructured.Unstructured{},
		},
		news: make(chan news),
	}
}

func (t *Timeline) forward(ctx context.Context, watcher watch.Interface, what string) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		select {
		case t.news <- news{at: time.Now(), event: event}:
		case <-ctx.Done():
			return
		}
	}
	select {
	case t.news <- news{err: fmt.Errorf("the watch of %s has ended", what)}:
	case <-ctx.Done():
	}
}

// Follow waits until all steps have happened, in order within a chain, and prints each one with the time since begun.
// The error names what was expected and what was seen instead.
func (t *Timeline) Follow(ctx context.Context, out io.Writer, begun time.Time, chains ...[]*Step) error {
	at := begun
	for {
		var waiting []*Step
		for i := range chains {
			for len(chains[i]) > 0 {
				next := chains[i][0]
				description, ok := next.Seen(&t.Scene)
				if !ok {
					waiting = append(waiting, next)
					break
				}
				next.After = at.Sub(begun)
				fmt.Fprintf(out, "%+7d ms  %s: %s\n", next.After.Milliseconds(), next.Expected, description)
				chains[i] = chains[i][1:]
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case n := <-t.news:
			if n.err != nil {
				return missing(n.err, waiting, &t.Scene)
			}
			// Messages from before the beginning may still be queued.
			if n.at.After(begun) {
				at = n.at
			}
			t.apply(n.event)
		case <-ctx.Done():
			return missing(context.Cause(ctx), waiting, &t.Scene)
		}
	}
}

func missing(cause error, waiting []*Step, now *Scene) error {
	for _, w := range waiting {
		description, _ := w.Seen(now)
		cause = fmt.Errorf("%w\n  expected: %s\n  seen:     %s", cause, w.Expected, description)
	}
	return cause
}

func (s *Scene) apply(e watch.Event) {
	switch o := e.Object.(type) {
	case *corev1.Node:
		s.Nodes[o.Name] = o
		if e.Type == watch.Deleted {
			delete(s.Nodes, o.Name)
		}
	case *corev1.Pod:
		s.Pods[o.UID] = o
		if e.Type == watch.Deleted {
			delete(s.Pods, o.UID)
		}
	case *corev1.Event:
		s.Events = append(s.Events, o)
	case *unstructured.Unstructured:
		s.Other[o.GetUID()] = o
		if e.Type == watch.Deleted {
			delete(s.Other, o.GetUID())
		}
	}
}
