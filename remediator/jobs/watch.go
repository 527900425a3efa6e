package jobs

import (
	"context"
	"encoding/json"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	// retryWatch is how often a kind that could not be listed is tried again.
	retryWatch = time.Minute
	// reconcilers is how many jobs are reconciled at the same time.
	reconcilers = 4
)

// request names one job to reconcile.
type request = latekinds.Request

func requestOf(job restart.Job) request { return latekinds.RequestOf(job.GVK, job.Object) }

// watcher follows the jobs under restart, of the kinds that the API server serves. It is set up once.
type watcher struct {
	*latekinds.Watcher
	settings *settings

	// tried is set once the kinds of the policy were tried, too.
	tried atomic.Bool
}

// setup adds the cache and the controller of the jobs under restart to a manager.
func (w *watcher) setup(mgr ctrl.Manager, reconciler reconcile.TypedReconciler[request]) (err error) {
	if w.Watcher, err = latekinds.New(mgr, latekinds.Options{
		Name: "job-restart", Reconciler: reconciler, Workers: reconcilers, Clock: w.settings.clock, Cache: cache.Options{
			DefaultLabelSelector: labels.SelectorFromSet(labels.Set{conditions.LabelRestarting: "true"}), DefaultTransform: slimJob,
		},
	}); err != nil {
		return err
	}
	return mgr.Add(manager.RunnableFunc(w.keepWatching))
}

// keepWatching has all kinds watched that the API server serves: from the start of leadership on, as a CRD may have been installed while
// another replica led, and without end. An API server that has just started may not serve it yet, and a job of the kind would stay stopped.
func (w *watcher) keepWatching(ctx context.Context) error {
	wait.UntilWithContext(ctx, w.watchAll, retryWatch)
	return nil
}

// watchAll follows all kinds that the API server serves, once the policy has told which there are besides the built-in ones.
func (w *watcher) watchAll(ctx context.Context) {
	known, all := w.settings.known(), []schema.GroupVersionKind(nil)
	for _, k := range w.settings.kinds() {
		all = append(all, k.GVK)
	}
	w.WatchAll(ctx, all)
	w.tried.Store(known)
}

// watch follows the labelled jobs of a kind, once. A kind that the API server does not serve is left for later.
func (w *watcher) watch(ctx context.Context, k kinds.Kind) error { return w.Watch(ctx, k.GVK, nil) }

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
