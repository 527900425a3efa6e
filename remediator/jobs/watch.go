package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	// retryWatch is how often a kind that could not be listed is tried again.
	retryWatch = time.Minute
	// reconcilers is how many jobs are reconciled at the same time.
	reconcilers = 4
)

// request names one job to reconcile.
type request struct {
	kind schema.GroupVersionKind
	types.NamespacedName
}

func requestOf(job restart.Job) request { return request{job.GVK, job.Key()} }

// watcher follows the jobs under restart, of the kinds that the API server serves. It is set up once.
type watcher struct {
	apiReader client.Reader
	settings  *settings

	mapper     meta.RESTMapper
	cache      cache.Cache
	controller controller.TypedController[request]

	mu       sync.Mutex
	watched  map[schema.GroupVersionKind]bool
	triedAll bool
}

// setup adds the cache and the controller of the jobs under restart to a manager.
func (w *watcher) setup(mgr ctrl.Manager, reconciler reconcile.TypedReconciler[request]) error {
	labelled, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:           mgr.GetHTTPClient(),
		Scheme:               mgr.GetScheme(),
		Mapper:               mgr.GetRESTMapper(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{conditions.LabelRestarting: "true"}),
		DefaultTransform:     slimJob,
	})
	if err != nil {
		return fmt.Errorf("make the cache of jobs under restart: %w", err)
	}
	w.cache, w.mapper = labelled, mgr.GetRESTMapper()
	if w.controller, err = controller.NewTyped("job-restart", mgr, controller.TypedOptions[request]{
		Reconciler:              reconciler,
		MaxConcurrentReconciles: reconcilers,
	}); err != nil {
		return fmt.Errorf("make the job restart controller: %w", err)
	}
	if err := mgr.Add(labelled); err != nil {
		return fmt.Errorf("add the cache of jobs under restart: %w", err)
	}
	// At the start of leadership, not of the process: a CRD may have been installed while another replica led.
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		// It ends with the context only.
		_ = wait.PollUntilContextCancel(ctx, retryWatch, true, func(ctx context.Context) (bool, error) { return w.watchAll(ctx), nil })
		return nil
	}))
}

// watchAll follows all kinds that the API server serves when this process begins to lead. One that cannot be listed holds
// up no other; unless it may not be, all is false and a later call tries again. It is false, too, until the policy has told which
// kinds there are besides the built-in ones.
func (w *watcher) watchAll(ctx context.Context) (all bool) {
	known := w.settings.known()
	all = known
	for _, k := range w.settings.kinds() {
		if err := w.watch(ctx, k); err != nil {
			log.FromContext(ctx).Error(err, "jobs of this kind are not restarted", "kind", k.GVK)
			all = all && apierrors.IsForbidden(err) // an old role, or a kind of the policy that has none
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.triedAll = known
	return all
}

// watch follows the labelled jobs of a kind, once. A kind that the API server does not serve is left for later.
func (w *watcher) watch(ctx context.Context, k kinds.Kind) error {
	if w.isWatched(k) {
		return nil
	}
	if _, err := w.mapper.RESTMapping(k.GVK.GroupKind(), k.GVK.Version); meta.IsNoMatchError(err) {
		return nil
	}
	// What may not be listed never fills its cache, and who asks that cache waits for ever.
	if err := w.apiReader.List(ctx, k.List(), client.MatchingLabels{conditions.LabelRestarting: "true"}, client.Limit(1)); err != nil {
		return fmt.Errorf("list the %ss under restart: %w", k.GVK.Kind, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.watched[k.GVK] {
		return nil
	}
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(k.GVK)
	enqueue := func(_ context.Context, o *metav1.PartialObjectMetadata) []request {
		return []request{{kind: k.GVK, NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	if err := w.controller.Watch(source.TypedKind(w.cache, &object, handler.TypedEnqueueRequestsFromMapFunc(enqueue))); err != nil {
		return fmt.Errorf("watch %s: %w", k.GVK, err)
	}
	if w.watched == nil {
		w.watched = map[schema.GroupVersionKind]bool{}
	}
	w.watched[k.GVK] = true
	return nil
}

func (w *watcher) isWatched(k kinds.Kind) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.watched[k.GVK]
}

// slimJob keeps what is read of a job in the cache: its name, and in place of its record the summary of its restart. Whoever may write
// a job can fill its metadata. A job whose record is too large or unreadable has none there, and its reconcile reports it. It is a
// transform of an informer, which calls it for each object that it has decoded, of the first list, too, as that is streamed.
func slimJob(object any) (any, error) {
	job, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil // a tombstone
	}
	slim := &metav1.PartialObjectMetadata{TypeMeta: job.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: job.Namespace, Name: job.Name, UID: job.UID, ResourceVersion: job.ResourceVersion,
		Labels: map[string]string{conditions.LabelRestarting: job.Labels[conditions.LabelRestarting]},
	}}
	if text, ok := slimRecord(job); ok {
		slim.Annotations = map[string]string{conditions.AnnotationRestart: text}
	}
	return slim, nil
}

// slimRecord is the record of a job with no more than the summary of its restart; none if it has no restart or cannot be read.
func slimRecord(job metav1.Object) (text string, ok bool) {
	rec, err := restart.ReadRecord(job)
	if err != nil || rec.Current == nil {
		return "", false
	}
	summary := rec.Current.Summary()
	slim, err := json.Marshal(restart.Record{V: rec.V, JobUID: rec.JobUID, Current: &summary})
	return string(slim), err == nil
}

func (w *watcher) allWatched() []schema.GroupVersionKind {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.watched))
}
