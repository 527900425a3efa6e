// Package latekinds watches kinds whose CustomResourceDefinitions, or whose roles, may be installed while the process runs.
package latekinds

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
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
	Clock  clock.PassiveClock

	mu      sync.Mutex
	watched sets.Set[schema.GroupVersionKind]
	// said is why each kind is not watched, as far as that was logged.
	said record.Once[schema.GroupVersionKind, string]
	// unread is why kinds are not watched that are served; since is when they were tried first.
	unread error
	since  time.Time
}

// firstList is how long a look waits for the first lists of the kinds.
const firstList = 5 * time.Second

// Options configure a [Watcher].
type Options struct {
	// Name is that of the controller.
	Name       string
	Reconciler reconcile.TypedReconciler[Request]
	// Workers is how many objects are reconciled at the same time.
	Workers int
	Clock   clock.PassiveClock
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
		Clock: o.Clock,
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

// WatchAll watches those of the kinds that the API server serves. One that cannot be listed holds up no other, and is [Watcher.Unread]
// unless it may not be: that is an old role, or a kind of the policy that has none.
func (w *Watcher) WatchAll(ctx context.Context, all []schema.GroupVersionKind) {
	var unread []error
	for _, gvk := range all {
		err := w.Watch(ctx, gvk, nil)
		if forbidden := apierrors.IsForbidden(err); err != nil && !forbidden {
			unread = append(unread, err)
		}
		if err != nil && w.said.Note(gvk, err.Error()) {
			log.FromContext(ctx).Error(err, "Objects of this kind are not watched", "kind", gvk)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.unread = errors.Join(unread...)
	if w.since.IsZero() {
		w.since = w.Clock.Now()
	}
}

// Unread returns why the last [Watcher.WatchAll] could not watch kinds that the API server serves; nil: it watches all of them.
func (w *Watcher) Unread() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.unread
}

// Objects returns what the cache shows of all kinds that are watched, of one that the policy has dropped, too. The error joins those that
// are unread, or of which the first list does not arrive: of these nothing is known. From patience after the first [Watcher.WatchAll] on
// they are left out instead.
func (w *Watcher) Objects(ctx context.Context, patience time.Duration) (map[Request]metav1.PartialObjectMetadata, error) {
	w.mu.Lock()
	unread, waited := []error{w.unread}, w.Clock.Since(w.since)
	w.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, firstList)
	defer cancel()
	all := map[Request]metav1.PartialObjectMetadata{}
	for _, gvk := range w.Watched() {
		list := kinds.Kind{GVK: gvk}.List()
		if err := w.Cache.List(ctx, list); err != nil {
			unread = append(unread, fmt.Errorf("list the %ss: %w", gvk.Kind, err))
			continue
		}
		for _, o := range list.Items {
			all[RequestOf(gvk, &o)] = o
		}
	}
	if err := errors.Join(unread...); waited <= patience {
		return all, err
	}
	return all, nil
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
