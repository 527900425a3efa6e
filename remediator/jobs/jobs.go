// Package jobs restarts training jobs whole and once when a node under one of their ranks is quarantined.
//
// A level, not an edge: while a quarantine stands, no opted-in job may have an active pod on the node. The node
// controller calls [Restarter.Sweep] after it has written the taint, again 2 s, 15 s and 60 s later, because a pod may
// have been bound by a scheduler that had not seen the taint, and on every reconcile of the node. A sweep begins the
// restart of each such job, or says when to sweep again if the limits of the policy hold it; a controller of its own
// drives the restarts that are under way:
//
//	saving    nothing is stopped yet, until the job has saved its state or its time is over; only for faults that can wait
//	stopping  the job's toggle (spec.suspend, ...) is set, until every pod of the old incarnation is gone: no status of
//	          any owner proves that
//	starting  the toggle is back, until all ranks run
//
// Failed pods may begin a restart, too, see [Restarter.followPods].
//
// What differs between the kinds of jobs is in one adapter file each, see [kind]. A kind without a toggle is told to
// replace its pods instead; only the recorded pods have to go, and there is nothing to start.
//
// All state is in the annotation and the label of the job, guarded by the resourceVersion and written in the same patch
// as the toggle. What cannot be in that patch (the Workload of Kueue, a Command to Volcano, an eviction) is done after
// it, and done again after a crash. A concurrent writer causes a re-read, and a person who moves the toggle wins.
//
// The job is the topmost object of a known kind above the pod; only its own labels and those of its namespace opt in or
// out, labels of objects between them do not count. An owner of unknown kind above it (CronJob, RayService, ...) is not
// read, so only what is below it and the namespace can opt in; it is reported and left alone, as are pods without any
// owner. DaemonSets and static pods belong to their node and are ignored.
//
// A kind whose CRD is missing costs nothing: it is watched from the first restart of such a job, or from the next start
// of the remediator after the CRD was installed.
//
// RBAC that this package needs: nodes get, list; pods get, list, watch, delete; pods/eviction create; namespaces get;
// events.k8s.io/events create, patch; of every kind of job get, list, watch, patch; bus.volcano.sh/commands create;
// kueue.x-k8s.io/workloads get, list, patch; the ConfigMap of the pause get.
package jobs

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Quarantine is a node that was taken out of service, as its record on the Node says.
type Quarantine struct {
	// ID is unique to this quarantine; a job is restarted at most once for it.
	ID      string
	Node    string
	NodeUID types.UID
	// Reason is the fault, for people.
	Reason string
	// Taint keeps the ranks from coming back.
	Taint corev1.Taint
	Since time.Time
	// CheckpointGrace is how long a job may save its state before it is stopped.
	CheckpointGrace time.Duration
}

// ofNode tells a quarantine from the failure of a pod, which is no reason to keep away from its node.
func (q Quarantine) ofNode() bool { return q.Taint.Key != "" }

// Restarter restarts jobs. Make it with [New].
type Restarter struct {
	// StopTimeout is how long a stop may take before it is reported; it is held, not given up. 10 minutes by default.
	StopTimeout time.Duration
	// StartTimeout is how long a start may take before the restart is closed as failed. 15 minutes by default.
	StartTimeout time.Duration
	// Policy names further kinds of jobs and limits the restarts; nil: neither.
	Policy *policy.File
	// Namespace has the ConfigMap that pauses everything; pitcrew by default.
	Namespace string

	writer   client.Client
	reader   client.Reader
	recorder events.EventRecorder
	now      func() time.Time

	mapper     meta.RESTMapper
	cache      cache.Cache
	controller controller.TypedController[request]

	admitting sync.Mutex

	mu       sync.Mutex
	watched  map[schema.GroupVersionKind]bool
	triedAll bool                // to watch all kinds
	told     map[string]told     // by node
	begun    map[request]restart // by this process and not seen closed
	waiting  map[string]incident // the first failure of an incarnation that waits for a restart
}

// retryWatch is how often a kind that could not be listed is tried again.
const retryWatch = time.Minute

// request names one job to look at.
type request struct {
	kind schema.GroupVersionKind
	types.NamespacedName
}

// New returns a Restarter that writes with writer and reads with reader, which must be live (mgr.GetAPIReader()): what
// a cache says about pods that are gone proves nothing.
func New(writer client.Client, reader client.Reader, recorder events.EventRecorder, now func() time.Time) *Restarter {
	return &Restarter{
		StopTimeout:  10 * time.Minute,
		StartTimeout: 15 * time.Minute,
		Namespace:    "pitcrew",
		writer:       writer,
		reader:       reader,
		recorder:     recorder,
		now:          now,
		watched:      map[schema.GroupVersionKind]bool{},
		told:         map[string]told{},
		begun:        map[request]restart{},
		waiting:      map[string]incident{},
	}
}

// SetupWithManager registers the controller that drives restarts under way. Its cache holds the metadata of the jobs
// labelled pitcrew.dev/restarting=true and nothing else.
func (r *Restarter) SetupWithManager(mgr ctrl.Manager) error {
	labelled, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient:           mgr.GetHTTPClient(),
		Scheme:               mgr.GetScheme(),
		Mapper:               mgr.GetRESTMapper(),
		DefaultLabelSelector: labels.SelectorFromSet(labels.Set{conditions.LabelRestarting: "true"}),
		DefaultTransform:     cache.TransformStripManagedFields(),
	})
	if err != nil {
		return fmt.Errorf("make the cache of jobs under restart: %w", err)
	}
	r.cache = labelled
	r.mapper = mgr.GetRESTMapper()
	if r.controller, err = controller.NewTyped("job-restart", mgr, controller.TypedOptions[request]{
		Reconciler:              r,
		MaxConcurrentReconciles: 4,
	}); err != nil {
		return fmt.Errorf("make the job restart controller: %w", err)
	}
	if err := mgr.Add(labelled); err != nil {
		return fmt.Errorf("add the cache of jobs under restart: %w", err)
	}
	if watch := r.limits().PodFailures; watch.Enabled {
		if err := r.followPods(mgr, watch.Pods); err != nil {
			return err
		}
	}
	// At the start of leadership, not of the process: a CRD may have been installed while another replica led.
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		// It ends with the context only.
		_ = wait.PollUntilContextCancel(ctx, retryWatch, true, func(ctx context.Context) (bool, error) { return r.watchAll(ctx), nil })
		return nil
	}))
}

// watchAll follows all kinds that the API server serves when this process begins to lead. One that cannot be listed holds
// up no other; unless it may not be, all is false and a later call tries again.
func (r *Restarter) watchAll(ctx context.Context) (all bool) {
	all = true
	for _, k := range r.kinds() {
		if err := r.watch(ctx, k); err != nil {
			log.FromContext(ctx).Error(err, "jobs of this kind are not restarted", "kind", k.gvk)
			all = all && apierrors.IsForbidden(err) // an old role, or a kind of the policy that has none
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.triedAll = true
	return all
}

// kinds are the kinds that can be restarted; what is built in comes first.
func (r *Restarter) kinds() []kind {
	if r.Policy == nil {
		return builtIn
	}
	all := slices.Clone(builtIn)
	for _, k := range r.Policy.Policy().JobKinds {
		all = append(all, configured(k))
	}
	return all
}

// watch follows the labelled jobs of a kind, once. A kind that the API server does not serve is left for later.
func (r *Restarter) watch(ctx context.Context, k kind) error {
	r.mu.Lock()
	watched := r.watched[k.gvk]
	r.mu.Unlock()
	if watched {
		return nil
	}
	if _, err := r.mapper.RESTMapping(k.gvk.GroupKind(), k.gvk.Version); meta.IsNoMatchError(err) {
		return nil
	}
	// What may not be listed never fills its cache, and who asks that cache waits for ever.
	var probe metav1.PartialObjectMetadataList
	probe.SetGroupVersionKind(k.gvk.GroupVersion().WithKind(k.gvk.Kind + "List"))
	if err := r.reader.List(ctx, &probe, client.MatchingLabels{conditions.LabelRestarting: "true"}, client.Limit(1)); err != nil {
		return fmt.Errorf("list the %ss under restart: %w", k.gvk.Kind, err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.watched[k.gvk] {
		return nil
	}
	var object metav1.PartialObjectMetadata
	object.SetGroupVersionKind(k.gvk)
	enqueue := func(_ context.Context, o *metav1.PartialObjectMetadata) []request {
		return []request{{kind: k.gvk, NamespacedName: client.ObjectKeyFromObject(o)}}
	}
	if err := r.controller.Watch(source.TypedKind(r.cache, &object, handler.TypedEnqueueRequestsFromMapFunc(enqueue))); err != nil {
		return fmt.Errorf("watch %s: %w", k.gvk, err)
	}
	r.watched[k.gvk] = true
	return nil
}

// Reconcile takes the next step of the restart of one job.
func (r *Restarter) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	kinds := r.kinds()
	i := slices.IndexFunc(kinds, func(k kind) bool { return k.gvk == req.kind })
	if i < 0 {
		return ctrl.Result{}, fmt.Errorf("%s %s is under restart, but its kind is no longer configured", req.kind.Kind, req.NamespacedName)
	}
	v, err := kinds[i].look(ctx, r.reader, req.NamespacedName)
	if gone(err) {
		r.forget(req)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if v.object.GetDeletionTimestamp() != nil {
		r.forget(req)
		return ctrl.Result{}, nil
	}
	rec, err := readRecord(v.object)
	if err != nil || rec.Current == nil {
		r.forget(req)
		return retryConflict(r.disown(ctx, v))
	}
	cur := *rec.Current
	if cur.Phase == saving {
		return r.reconcileSaving(ctx, v, rec)
	}

	var pods podCount
	var old oldPods
	if cur.Phase == stopping {
		old, err = r.notGone(ctx, v, cur.Pods)
		pods.left = len(old.left) + len(old.dead)
	} else {
		pods.running, err = r.running(ctx, v)
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	now := r.now()
	s := next(cur, v, pods, now, limits{stop: r.StopTimeout, start: r.StartTimeout})
	refused := ""
	if s.do == await || s.do == hold {
		if refused, err = r.enforce(ctx, v, rec, old); err != nil {
			return retryConflict(err)
		}
	}
	if refused != "" {
		s.do = hold
	}
	if s.do != hold {
		notStuck(req)
	}
	if s.do == await || s.do == hold {
		if err := r.force(ctx, v, cur, old.left, now); err != nil {
			return ctrl.Result{}, err
		}
	}
	switch s.do {
	case hold:
		if err := r.hold(ctx, v, rec, old.left, refused); err != nil {
			return retryConflict(err)
		}
	case resume:
		rec.Current.Phase, rec.Current.PhaseSince = starting, now
		rec.Current.Pods, rec.Current.Held = nil, ""
		if err := r.move(ctx, v, rec); err != nil {
			return retryConflict(err)
		}
		s.after = pollInterval(0)
	case end:
		if err := r.write(ctx, v, rec.closed(s.phase, s.outcome, now)); err != nil {
			return retryConflict(err)
		}
		r.ended(v, cur, s, now)
	}
	return ctrl.Result{RequeueAfter: s.after}, nil
}

// forget drops what is kept about a job that is no longer under restart.
func (r *Restarter) forget(req request) {
	notStuck(req)
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.begun, req)
}

// disown drops the label of a job whose record says nothing of a restart: somebody removed or broke the record, or it
// was copied from another job. Whether the job should run is no longer known.
func (r *Restarter) disown(ctx context.Context, v view) error {
	if _, labelled := v.object.GetLabels()[conditions.LabelRestarting]; !labelled {
		return nil
	}
	unlabel := fmt.Appendf(nil, `{"metadata":{"resourceVersion":%q,"labels":{%q:null}}}`,
		v.object.GetResourceVersion(), conditions.LabelRestarting)
	if err := r.patch(ctx, v, unlabel); err != nil {
		return err
	}
	r.lost(v)
	return nil
}

// write patches the job's record and label. A conflict is returned as such.
func (r *Restarter) write(ctx context.Context, v view, rec record) error {
	return r.writeWith(ctx, v, rec, toggle{})
}

// move does the same and moves the job's own toggle as the record's phase wants it.
func (r *Restarter) move(ctx context.Context, v view, rec record) error {
	return r.writeWith(ctx, v, rec, v.toggle)
}

func (r *Restarter) writeWith(ctx context.Context, v view, rec record, t toggle) error {
	data, err := rec.patch(v.object, t)
	if err != nil {
		return err
	}
	if err := r.patch(ctx, v, data); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if rec.Current == nil {
		delete(r.begun, request{v.gvk, v.key()})
	} else {
		r.begun[request{v.gvk, v.key()}] = *rec.Current
	}
	return nil
}

func (r *Restarter) patch(ctx context.Context, v view, data []byte) error {
	// Metadata is all that is wanted back.
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: v.object.GetNamespace(), Name: v.object.GetName()}}
	target.SetGroupVersionKind(v.gvk)
	if err := r.writer.Patch(ctx, target, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("patch %s %s: %w", v.gvk.Kind, v.key(), err)
	}
	return nil
}

// retryConflict makes a conflict an early second look instead of an error: the writer may be the job's own controller,
// which is busy while pods stop.
func retryConflict(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: 50 * time.Millisecond}, nil
	}
	return ctrl.Result{}, err
}

// gone tells whether an object, or its kind, does not exist.
func gone(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// active selects pods that have not ended, those that are being deleted included.
var active = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// pods lists the metadata of pods, live. A 512-rank job is a few MB that way, ten times less than whole pods.
func (r *Restarter) pods(ctx context.Context, namespace string, of labels.Selector, in fields.Selector) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.reader.List(ctx, &list, client.InNamespace(namespace),
		client.MatchingLabelsSelector{Selector: of}, client.MatchingFieldsSelector{Selector: in}); err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
	}
	return list.Items, nil
}

// oldPods are the pods that stand in the way of a start.
type oldPods struct {
	// left are those that run or are being deleted.
	left []metav1.PartialObjectMetadata
	// dead have ended and are deleted by nobody but us, see [view.deadRanks].
	dead []metav1.PartialObjectMetadata
}

// notGone lists the pods that stand in the way of a start: those of the job that are being deleted or active, whenever
// they were created, and the recorded ones that are active though they may have lost the job's labels. A pod that ended
// by itself stays as an object after its processes are gone, and nobody deletes it. Of a job without a toggle only the
// recorded pods count: its new ones may be there already.
func (r *Restarter) notGone(ctx context.Context, v view, recorded []types.UID) (oldPods, error) {
	namespace := v.object.GetNamespace()
	labelled, err := r.pods(ctx, namespace, v.pods, fields.Everything())
	if err != nil {
		return oldPods{}, err
	}
	var old oldPods
	seen := map[types.UID]bool{}
	in := func(p metav1.PartialObjectMetadata) bool {
		return slices.Contains(recorded, p.UID) || v.toggle.exists() && v.pods.Matches(labels.Set(p.Labels))
	}
	for _, p := range labelled {
		if p.DeletionTimestamp != nil && in(p) {
			old.left, seen[p.UID] = append(old.left, p), true
		}
	}
	running := map[types.UID]bool{}
	for i, of := range []labels.Selector{v.pods, labels.Everything()} {
		if len(old.left) > 0 && (v.toggle.exists() || i > 0) {
			return old, nil // and spare the API server the whole namespace until they are gone
		}
		pods, err := r.pods(ctx, namespace, of, active)
		if err != nil {
			return oldPods{}, err
		}
		for _, p := range pods {
			running[p.UID] = true
			if in(p) && !seen[p.UID] {
				old.left = append(old.left, p)
			}
		}
	}
	for _, p := range labelled {
		if v.stopSeen && v.deadRanks != nil && v.deadRanks.Matches(labels.Set(p.Labels)) && p.DeletionTimestamp == nil && !running[p.UID] {
			old.dead = append(old.dead, p)
		}
	}
	return old, nil
}

// running counts the job's pods that run and are not being deleted.
func (r *Restarter) running(ctx context.Context, v view) (int, error) {
	pods, err := r.pods(ctx, v.object.GetNamespace(), v.pods, fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)))
	pods = slices.DeleteFunc(pods, func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil })
	return len(pods), err
}
