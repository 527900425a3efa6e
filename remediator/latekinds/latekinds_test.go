package latekinds

import (
	"context"
	"errors"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"
)

// counting counts what it is asked to watch.
type counting struct {
	controller.TypedController[Request]
	n       int
	refused error
}

func (c *counting) Watch(source.TypedSource[Request]) error {
	if c.refused == nil {
		c.n++
	}
	return c.refused
}

// A kind is watched once, and only after it is served, listed and accepted.
func TestAKindIsWatchedOnceItCanBe(t *testing.T) {
	job := schema.GroupVersionKind{Group: "batch", Version: "v1", Kind: "Job"}
	served, control := meta.NewDefaultRESTMapper(nil), &counting{}
	forbidden := errors.New("forbidden")
	var asked client.ListOptions
	api := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, _ client.ObjectList, o ...client.ListOption) error {
			asked = client.ListOptions{}
			asked.ApplyOptions(o)
			return forbidden
		},
	})
	w := &Watcher{Mapper: served, Controller: control, Labels: labels.Set{"a": "b"}.AsSelector(), APIReader: api}
	watch := func(want error, watched int) {
		t.Helper()
		err := w.Watch(t.Context(), job, nil)
		if !errors.Is(err, want) || control.n != watched || w.IsWatched(job) != (watched > 0) || len(w.Watched()) != watched {
			t.Errorf("error %v, want %v; watched %d times, %v", err, want, control.n, w.Watched())
		}
	}
	watch(nil, 0) // not served
	served.Add(job, meta.RESTScopeNamespace)
	watch(forbidden, 0)
	if asked.Limit != 1 || asked.LabelSelector.String() != "a=b" {
		t.Errorf("the kind was tried by a list with %+v", asked)
	}
	forbidden, control.refused = nil, errors.New("the controller has ended")
	watch(control.refused, 0)
	control.refused = nil
	watch(nil, 1)
	watch(nil, 1)
}
