package jobs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/failure"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// incident is the failure of one rank. It holds all that is needed once the pod is gone: its owner may delete it at once.
type incident struct {
	namespace, pod, node, why string
	created, at               int64 // Unix times of the pod and of its failure; that of the zero time: not known
	owner                     owner
	// labels are those of the pod, as text.
	labels string
}

// owner is a controller reference that can be compared.
type owner struct {
	apiVersion, kind, name string
	uid                    types.UID
}

// rank is as much of the pod as shows to which job it belongs.
func (in incident) rank() (*metav1.PartialObjectMetadata, error) {
	set, err := labels.ConvertSelectorToLabelsMap(in.labels)
	if err != nil {
		return nil, fmt.Errorf("read the labels of pod %s/%s: %w", in.namespace, in.pod, err)
	}
	return &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: in.namespace, Name: in.pod, Labels: set,
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: in.owner.apiVersion, Kind: in.owner.kind, Name: in.owner.name, UID: in.owner.uid, Controller: ptr.To(true),
		}},
	}}, nil
}

// oldFailure is the age from which on a failure is no reason to restart a job. A process that begins to watch sees all
// failed pods that are still listed; a gang that waited for such a rank would have failed for good by now, or else goes on
// without it.
const oldFailure = time.Hour

// retryFailure is how often an incident is reconciled again while the job is paused or under restart.
const retryFailure = 2 * time.Second

// podFailures restarts the jobs of ranks that fail, without any fault of a node. Only those of jobs whose controller would
// replace the one rank, see [kinds.Kind.ReplacesFailedRank].
type podFailures struct {
	client    client.Client
	apiReader client.Reader
	admission *admission

	mu sync.Mutex
	// waiting is the first failure of an incarnation that waits for a restart.
	waiting map[string]incident
}

func newPodFailures(api client.Client, apiReader client.Reader, admit *admission) *podFailures {
	return &podFailures{client: api, apiReader: apiReader, admission: admit, waiting: map[string]incident{}}
}

// setup watches the pods that the policy selects.
func (f *podFailures) setup(mgr ctrl.Manager, pods labels.Selector) error {
	selected, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(), Scheme: mgr.GetScheme(), Mapper: mgr.GetRESTMapper(), NewInformer: slim.Informer(failure.Slim),
		ByObject: map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: pods, Transform: failure.Slim}},
	})
	if err != nil {
		return fmt.Errorf("make the cache of pods: %w", err)
	}
	if err := mgr.Add(selected); err != nil {
		return fmt.Errorf("add the cache of pods: %w", err)
	}
	c, err := controller.NewTyped("pod-failure", mgr, controller.TypedOptions[incident]{
		Reconciler:   reconcile.TypedFunc[incident](f.reconcileFailure),
		EnableWarmup: ptr.To(false), // a standby would keep every failure until it leads; a leader finds the young ones by itself
	})
	if err != nil {
		return fmt.Errorf("make the pod failure controller: %w", err)
	}
	if err := c.Watch(source.TypedKind(selected, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(f.incidents))); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

// incidents is the incident of a pod, if it is one and young.
func (f *podFailures) incidents(_ context.Context, p *corev1.Pod) []incident {
	ref := metav1.GetControllerOf(p)
	why, at := failure.Of(p)
	if ref == nil || why == "" {
		return nil
	}
	if at.IsZero() && p.Status.Phase == corev1.PodFailed {
		at = p.CreationTimestamp // it never ran
	}
	if f.old(at.Time) {
		return nil
	}
	return []incident{{p.Namespace, p.Name, p.Spec.NodeName, why, p.CreationTimestamp.Unix(), at.Unix(),
		owner{ref.APIVersion, ref.Kind, ref.Name, ref.UID}, labels.Set(p.Labels).String()}}
}

// old reports whether a failure is known to be an old one.
func (f *podFailures) old(at time.Time) bool {
	return !at.IsZero() && f.admission.clock.Now().Sub(at) > oldFailure
}

// reconcileFailure restarts the job of a rank that failed, unless it has been restarted since.
func (f *podFailures) reconcileFailure(ctx context.Context, in incident) (result ctrl.Result, err error) {
	defer func() {
		if result.RequeueAfter == 0 && err == nil {
			f.waitsNoMore(in)
		}
	}()
	if !f.admission.settings.restartPolicy().PodFailures.Enabled { // any more
		return ctrl.Result{}, nil
	}
	again := ctrl.Result{RequeueAfter: retryFailure}
	if paused, err := pause.Reason(ctx, f.client, f.admission.gate.Namespace); paused != "" || err != nil {
		return again, err
	}
	if f.old(time.Unix(in.at, 0)) && !f.waits(in) { // it got old in the queue or during a pause
		return ctrl.Result{}, nil
	}
	w, replaces, err := f.replacingJob(ctx, in)
	if !replaces || err != nil {
		return ctrl.Result{}, err
	}
	rec, err := restart.ReadRecord(w.Job.Object)
	rec, _ = rec.Clamp(f.admission.settings.longestGrace(), f.admission.clock.Now())
	if err == nil && in.created < rec.Incarnation().Unix() {
		return ctrl.Result{}, nil
	}
	if !f.takeTurn(fmt.Sprintf("%s %s", w.UID(), rec.Incarnation()), in) {
		return ctrl.Result{}, nil
	}
	if err == nil && rec.Current != nil && rec.Current.Phase != restart.Checkpointing {
		return again, nil
	}
	var node corev1.Node
	if err := f.client.Get(ctx, client.ObjectKey{Name: in.node}, &node); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", in.node, err)
	}
	t := restart.Trigger{
		Kind: restart.PodFailed, Node: in.node, NodeUID: node.UID,
		ID:     fmt.Sprint(report.FailuresOf(w.UID()), rec.Total), // all failures of one incarnation are one
		Reason: fmt.Sprintf("pod %s failed: %s", in.pod, in.why), Since: time.Unix(in.at, 0),
	}
	after, err := f.admission.restartAlone(ctx, t, w, nil)
	return ctrl.Result{RequeueAfter: after}, err
}

// replacingJob finds the job of a rank that failed. replaces is false unless its controller would replace the one rank.
func (f *podFailures) replacingJob(ctx context.Context, in incident) (w kinds.Workload, replaces bool, err error) {
	rank, err := in.rank()
	if err != nil {
		return w, false, err
	}
	resolver := kinds.NewOwnerResolver(f.apiReader, f.admission.settings.kinds())
	if w, err = resolver.OfOwner(ctx, in.namespace, rank.OwnerReferences[0]); err != nil {
		return w, false, err
	}
	if w.UID() == "" {
		f.admission.reporter.Waiting.Gone(in.namespace, in.owner.uid)
	}
	return w, w.Job != nil && w.Unsupported == nil && w.Kind.ReplacesFailedRank && w.Owns(rank), nil
}

// takeTurn has a failure wait for the restart of an incarnation, and reports whether it does: false if another one waits already. Hundreds
// of ranks that failed together must not search for room side by side.
func (f *podFailures) takeTurn(incarnation string, in incident) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if first, waits := f.waiting[incarnation]; waits && first != in {
		return false
	}
	f.waiting[incarnation] = in
	return true
}

// waits reports whether the failure waits for the restart since it was young.
func (f *podFailures) waits(in incident) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(f.waiting)), in)
}

func (f *podFailures) waitsNoMore(in incident) {
	f.mu.Lock()
	defer f.mu.Unlock()
	maps.DeleteFunc(f.waiting, func(_ string, first incident) bool { return first == in })
}
