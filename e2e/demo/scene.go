package main

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

// scene is what the API server has told so far.
type scene struct {
	node   *corev1.Node
	jobSet *unstructured.Unstructured
	pods   map[types.UID]*corev1.Pod
	events []*corev1.Event
}

// step is something that is expected to happen.
type step struct {
	// expected says what, in the words of the timeline.
	expected string
	// seen tells whether it has happened, and describes what there is.
	seen func(*scene) (description string, ok bool)
	// after is the time between the fault and the news that it has happened.
	after time.Duration
}

// stage keeps the scene up to date.
type stage struct {
	scene
	news chan news
}

// news is one message of a watch.
type news struct {
	at    time.Time
	event watch.Event
	err   error
}

// patience is how long a chain of steps may take. Usually it takes about three seconds.
const patience = time.Minute

// newStage watches the node, the JobSet and what belongs to it until ctx ends.
func newStage(ctx context.Context, c client.WithWatch) (*stage, error) {
	s := &stage{scene: scene{pods: map[types.UID]*corev1.Pod{}}, news: make(chan news)}
	jobSets := &unstructured.UnstructuredList{}
	jobSets.SetGroupVersionKind(jobSetKind)
	for _, w := range []struct {
		list client.ObjectList
		opts []client.ListOption
	}{
		{&corev1.NodeList{}, []client.ListOption{client.MatchingFields{"metadata.name": machine}}},
		{jobSets, []client.ListOption{client.InNamespace(namespace)}},
		{&corev1.PodList{}, []client.ListOption{client.InNamespace(namespace)}},
		{&corev1.EventList{}, nil},
	} {
		watcher, err := c.Watch(ctx, w.list, w.opts...)
		if err != nil {
			return nil, fmt.Errorf("watch %T: %w", w.list, err)
		}
		go s.forward(ctx, watcher, fmt.Sprintf("%T", w.list))
	}
	return s, nil
}

func (s *stage) forward(ctx context.Context, watcher watch.Interface, what string) {
	defer watcher.Stop()
	for event := range watcher.ResultChan() {
		select {
		case s.news <- news{at: time.Now(), event: event}:
		case <-ctx.Done():
			return
		}
	}
	select {
	case s.news <- news{err: fmt.Errorf("the watch of %s has ended", what)}:
	case <-ctx.Done():
	}
}

// follow waits until all steps have happened, in order within a chain, and prints each one with the time since begun.
func (s *stage) follow(ctx context.Context, out io.Writer, begun time.Time, chains ...[]*step) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("not within %s", patience))
	defer cancel()
	at := begun
	for {
		var waiting []*step
		for i := range chains {
			for len(chains[i]) > 0 {
				next := chains[i][0]
				description, ok := next.seen(&s.scene)
				if !ok {
					waiting = append(waiting, next)
					break
				}
				next.after = max(0, at.Sub(begun))
				fmt.Fprintf(out, "%+7d ms  %s: %s\n", next.after.Milliseconds(), next.expected, description)
				chains[i] = chains[i][1:]
			}
		}
		if len(waiting) == 0 {
			return nil
		}
		select {
		case n := <-s.news:
			if n.err != nil {
				return n.err
			}
			at = n.at
			s.apply(n.event)
		case <-ctx.Done():
			return missing(context.Cause(ctx), waiting, &s.scene)
		}
	}
}

// missing says what was expected and what is there instead.
func missing(cause error, waiting []*step, now *scene) error {
	for _, w := range waiting {
		description, _ := w.seen(now)
		cause = fmt.Errorf("%w\n  expected: %s\n  seen:     %s", cause, w.expected, description)
	}
	return cause
}

func (s *scene) apply(e watch.Event) {
	switch o := e.Object.(type) {
	case *corev1.Node:
		s.node = o
	case *corev1.Pod:
		s.pods[o.UID] = o
		if e.Type == watch.Deleted {
			delete(s.pods, o.UID)
		}
	case *corev1.Event:
		s.events = append(s.events, o)
	case *unstructured.Unstructured:
		s.jobSet = o
	}
}

// condition returns the node's condition of the given type, a zero one when it has none.
func (s *scene) condition(t corev1.NodeConditionType) corev1.NodeCondition {
	if s.node != nil {
		for _, c := range s.node.Status.Conditions {
			if c.Type == t {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

func (s *scene) taint(key string) (corev1.Taint, bool) {
	if s.node != nil {
		for _, t := range s.node.Spec.Taints {
			if t.Key == key {
				return t, true
			}
		}
	}
	return corev1.Taint{}, false
}
