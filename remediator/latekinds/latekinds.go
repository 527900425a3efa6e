// Package latekinds watches kinds whose CustomResourceDefinitions, or whose roles, may be installed while the process runs.
package latekinds

import (
	"context"
	"fmt"
	"sync"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// Request names one object to reconcile.
type Request struct {
	Kind schema.GroupVersionKind
	types.NamespacedName
}

// RequestOf returns the request for an object.
func RequestOf(gvk schema.GroupVersionKind, object metav1.Object) Request {
	return Request{gvk, types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}}
}

// Watcher watches the metadata of kinds, each once. [New] makes one.
type Watcher struct {
	// Cache holds the objects of the kinds that are watched.
	Cache cache.Cache

	// APIReader is live.
	APIReader  client.Reader
	Mapper     meta.RESTMapper
	Controller controller.TypedController[Request]
	// Labels select the objects; nil: all.
	Labels labels.Selector

	mu      sync.Mutex
	watched sets.Set[schema.GroupVersionKind]
}

// Options configure a [Watcher].
type Options struct {
	// Name is that of the controller.
	Name       string
	Reconciler reconcile.TypedReconciler[Request]
	// Workers is how many objects are reconciled at the same time.
	Workers int
	// Cache has the selector and the transform of the objects.
	Cache cache.Options
}

// New adds a cache and a controller to a manager. An error means that the manager refuses one of them.
func New(mgr manager.Manager, o Options) (*Watcher, error) {
	o.Cache.HTTPClient, o.Cache.Scheme, o.Cache.Mapper = mgr.GetHTTPClient(), mgr.GetScheme(), mgr.GetRESTMapper()
	o.Cache.NewInformer = slim.Informer(o.Cache.DefaultTransform)
	objects, err := cache.New(mgr.GetConfig(), o.Cache)
	if err != nil {
		return nil, fmt.Errorf("make the cache of %s: %w", o.Name, err)
	}
	if err := mgr.Add(objects); err != nil {
		return nil, fmt.Errorf("add the cache of %s: %w", o.Name, err)
	}
	c, err := controller.NewTyped(o.Name, mgr, controller.TypedOptions[Request]{
		Reconciler: o.Reconciler, MaxConcurrentReconciles: o.Workers,
	})
	if err != nil {
		return nil, fmt.Errorf("make the controller %s: %w", o.Name, err)
	}
	return &Watcher{
		Cache: objects, APIReader: mgr.GetAPIReader(), Mapper: mgr.GetRESTMapper(), Controller: c, Labels: o.Cache.DefaultLabelSelector,
	}, nil
}

// Map returns the requests that follow from a change of an object; nil stands for that of the object itself.
type Map = func(context.Context, *metav1.PartialObjectMetadata) []Request

// Watch watches a kind, unless it is watched already or the API server does not serve it. An error means that it may not, or cannot, be
// listed; try again later.
func (w *Watcher) Watch(ctx context.Context, gvk schema.GroupVersionKind, requests Map) error {
	if w.IsWatched(gvk) {
		return nil
	}
	if _, err := w.Mapper.RESTMapping(gvk.GroupKind(), gvk.Version); meta.IsNoMatchError(err) {
		return nil
	}
	// What may not be listed never fills its cache, and who asks that cache waits without end.
	if err := w.APIReader.List(ctx, kinds.Kind{GVK: gvk}.List(), &client.ListOptions{LabelSelector: w.Labels, Limit: 1}); err != nil {
		return fmt.Errorf("list the %ss to watch: %w", gvk.Kind, err)
	}
	if requests == nil {
		requests = func(_ context.Context, o *metav1.PartialObjectMetadata) []Request {
			return []Request{RequestOf(gvk, o)}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched.Has(gvk) {
		return nil
	}
	object := &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(gvk)
	if err := w.Controller.Watch(source.TypedKind(w.Cache, object, handler.TypedEnqueueRequestsFromMapFunc(requests))); err != nil {
		return fmt.Errorf("watch %s: %w", gvk, err)
	}
	if w.watched == nil {
		w.watched = sets.New[schema.GroupVersionKind]()
	}
	w.watched.Insert(gvk)
	return nil
}

// IsWatched reports whether a kind is watched.
func (w *Watcher) IsWatched(gvk schema.GroupVersionKind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched.Has(gvk)
}

// Watched returns the kinds that are watched, in no order.
func (w *Watcher) Watched() []schema.GroupVersionKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched.UnsortedList()
}
