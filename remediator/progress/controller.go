// Package progress follows the logs of training jobs that ask for it, and reports those that have stalled while all of their pods run.
//
// Package stall decides what a look has shown, what to read next and what follows. This package finds the jobs, reads their logs through
// the API server, and reports: evidence first, then the Event. While all is well it writes nothing, and reads one log of each job in a
// minute. All state is in memory and is rebuilt from the logs.
//
// Tenants write logs, annotations and pods. So what one look reads and how long it matches is bounded, each namespace has a number of jobs
// that are followed and a pace of reads, and nothing of a log leaves this package but the numbers of steps.
//
// RBAC that this package needs: besides that of package jobs, pods/log get; events list; namespaces list, watch; configmaps create.
package progress

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/apimachinery/pkg/util/wait"
	clientcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/lru"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/stall"
)

const (
	// workers is how many jobs are looked at side by side. Most of the time they wait for a kubelet.
	workers = 32
	// maxPerNamespace is how many jobs of a namespace are followed, maxFollowed how many of the cluster.
	maxPerNamespace, maxFollowed = 200, 2000
	// retryPlace is when a job for which there is no place is looked at again.
	retryPlace = 10 * time.Minute
	// retryWatch is how often the kinds of jobs are searched for new ones.
	retryWatch = 5 * time.Minute
	// maxCompiled bounds the expressions that are kept for jobs with the same ones.
	maxCompiled = 256
)

// Jobs is what package jobs knows of the kinds of jobs and of their pods.
type Jobs interface {
	// Kinds are the kinds of jobs that can be restarted.
	Kinds() []kinds.Kind
	// ActivePods lists the pods of a job that have not ended, live.
	ActivePods(ctx context.Context, job restart.Job) ([]corev1.Pod, error)
	// RestartStalled starts the restart of a stalled job, or reports why it does not.
	RestartStalled(ctx context.Context, s jobs.Stall) error
}

// Options configure what [SetupWithManager] makes.
type Options struct {
	Policy   *policy.File
	Jobs     Jobs
	DryRun   bool
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
}

// request names one job.
type request = latekinds.Request

// followed is a job that is followed.
type followed struct {
	uid         types.UID
	annotations stall.Annotations
	// settings are those of annotations, during a look.
	settings stall.Settings
	// wrong is why the annotations are refused.
	wrong error
	job   stall.Job
	state stall.State
	// due is when the next look is, while the job runs. A change of the job brings none forward: whoever may write it, its operator
	// included, could have us read at any pace.
	due time.Time
	// said are the reports that were made of these pods.
	said sets.Set[string]
	// dropped: it has no place any more.
	dropped bool
	// evidence paces what is kept of the job.
	evidence *rate.Limiter
}

// follower follows jobs. The requests of one job are worked on one after the other.
type follower struct {
	Options
	api       client.Client
	apiReader client.Reader
	pods      clientcorev1.PodsGetter
	watcher   *latekinds.Watcher
	metrics   followerMetrics
	reads     *reads
	compiled  *lru.Cache

	mu       sync.Mutex
	followed map[request]*followed
	places   map[string]int // by namespace; the sum of them is taken
	taken    int
	full     sets.Set[types.UID]
	// quiet is since when the jobs make no progress that have stalled or are overdue.
	quiet map[request]time.Time
}

// SetupWithManager registers the metrics and adds to the manager what follows the jobs, if the policy asks for it when the process starts.
// Otherwise nothing is registered, watched or requested. An error means that the manager or the registry refuses a part.
func SetupWithManager(mgr ctrl.Manager, registry prometheus.Registerer, o Options) error {
	f := &follower{
		Options: o, api: mgr.GetClient(), apiReader: mgr.GetAPIReader(), metrics: newMetrics(), reads: newReads(o.Clock),
		compiled: lru.New(maxCompiled), followed: map[request]*followed{}, places: map[string]int{},
		full: sets.New[types.UID](), quiet: map[request]time.Time{},
	}
	if o.Policy.Known() {
		return f.setup(mgr, registry)
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		const often = time.Second // it only looks at memory
		err := wait.PollUntilContextCancel(ctx, often, true, func(context.Context) (bool, error) { return o.Policy.Known(), nil })
		if err != nil {
			return nil //nolint:nilerr // the context has ended
		}
		return f.setup(mgr, registry)
	}))
}

// on reports whether the policy asks for jobs to be followed.
func (f *follower) on() bool {
	mode := f.Policy.Policy().Restart.Stalls.Mode
	return mode == policy.StallsObserve || mode == policy.StallsRestart
}

// setup registers the metrics and watches the metadata of the jobs and namespaces of the cluster, if the policy asks for it.
func (f *follower) setup(mgr ctrl.Manager, registry prometheus.Registerer) error {
	if !f.on() {
		return nil
	}
	for _, m := range f.metrics.all() {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	core, err := clientcorev1.NewForConfigAndClient(mgr.GetConfig(), mgr.GetHTTPClient())
	if err != nil {
		return fmt.Errorf("make the client of logs: %w", err)
	}
	f.pods = core
	if f.watcher, err = latekinds.New(mgr, latekinds.Options{
		Name: "job-progress", Reconciler: f, Workers: workers, Clock: f.Clock, Cache: cache.Options{DefaultTransform: slim},
	}); err != nil {
		return err
	}
	return mgr.Add(manager.RunnableFunc(func(ctx context.Context) error {
		// It ends with the context only.
		_ = wait.PollUntilContextCancel(ctx, retryWatch, true, func(ctx context.Context) (bool, error) { f.watchAll(ctx); return false, nil })
		return nil
	}))
}

// namespaces are watched beside the jobs.
var namespaces = kinds.Kind{GVK: corev1.SchemeGroupVersion.WithKind("Namespace")}

// watchAll watches namespaces and the kinds of jobs that the API server serves, as far as they are not watched yet: a CRD may be installed
// at any time, and so may the role. Without namespaces no job is watched: whether it is to be followed could not be told.
func (f *follower) watchAll(ctx context.Context) {
	if !f.watch(ctx, namespaces.GVK, f.jobsOf) {
		return
	}
	for _, k := range f.Jobs.Kinds() {
		if !k.IsService {
			f.watch(ctx, k.GVK, nil)
		}
	}
}

// watch watches the metadata of a kind, and reports whether that is possible.
func (f *follower) watch(ctx context.Context, gvk schema.GroupVersionKind, requests latekinds.Map) bool {
	err := f.watcher.Watch(ctx, gvk, requests)
	if err != nil {
		log.FromContext(ctx).Error(err, "The progress of jobs is not followed: this kind cannot be watched", "kind", gvk)
	}
	return err == nil
}

// jobsOf are the jobs of a namespace, whose annotations may have changed.
func (f *follower) jobsOf(ctx context.Context, namespace *metav1.PartialObjectMetadata) (all []request) {
	for _, gvk := range f.watcher.Watched() {
		if gvk == namespaces.GVK {
			continue
		}
		list := kinds.Kind{GVK: gvk}.List()
		if err := f.watcher.Cache.List(ctx, list, client.InNamespace(namespace.Name)); err != nil {
			log.FromContext(ctx).Error(err, "The jobs of a namespace cannot be listed", "namespace", namespace.Name, "kind", gvk)
		}
		for i := range list.Items {
			all = append(all, latekinds.RequestOf(gvk, &list.Items[i]))
		}
	}
	return all
}

// maxAnnotation is the longest annotation that is kept. Longer ones are cut, and refused for their length.
const maxAnnotation = 512

// slim keeps what is read of a job or a namespace in the cache. Whoever may write a job can fill its metadata.
func slim(object any) (any, error) {
	full, ok := object.(*metav1.PartialObjectMetadata)
	if !ok {
		return object, nil // a tombstone
	}
	kept := &metav1.PartialObjectMetadata{TypeMeta: full.TypeMeta, ObjectMeta: metav1.ObjectMeta{
		Namespace: full.Namespace, Name: full.Name, UID: full.UID, ResourceVersion: full.ResourceVersion,
		DeletionTimestamp: full.DeletionTimestamp,
	}}
	for _, key := range append([]string{
		conditions.AnnotationProgress, conditions.AnnotationProgressPause, conditions.AnnotationStalledAfter, conditions.AnnotationStartupGrace,
	}, conditions.RemovedAnnotations...) {
		if value, there := full.Annotations[key]; there {
			if kept.Annotations == nil {
				kept.Annotations = map[string]string{}
			}
			kept.Annotations[key] = strings.Clone(value[:min(len(value), maxAnnotation)]) // a part of it would keep it all
		}
	}
	if owner := metav1.GetControllerOf(full); owner != nil {
		kept.OwnerReferences = []metav1.OwnerReference{{Controller: owner.Controller}} // that there is one is enough, and its name may be long
	}
	return kept, nil
}

// annotations are those of a job, else of its namespace. opted is false if it is not to be followed, gone, or owned by another job.
func (f *follower) annotations(
	ctx context.Context, req request,
) (object *metav1.PartialObjectMetadata, found stall.Annotations, opted bool, err error) {
	object = &metav1.PartialObjectMetadata{}
	object.SetGroupVersionKind(req.Kind)
	if err := f.watcher.Cache.Get(ctx, req.NamespacedName, object); err != nil {
		return nil, found, false, client.IgnoreNotFound(err)
	}
	object.SetGroupVersionKind(req.Kind)
	if object.DeletionTimestamp != nil || metav1.GetControllerOfNoCopy(object) != nil {
		return object, found, false, nil
	}
	if found = stall.AnnotationsOf(object.Annotations); found.OptIn() {
		return object, found, true, nil
	}
	if _, out := object.Annotations[conditions.AnnotationProgress]; out { // empty: not this job of the namespace
		return object, found, false, nil
	}
	namespace := &metav1.PartialObjectMetadata{}
	namespace.SetGroupVersionKind(namespaces.GVK)
	if err := f.watcher.Cache.Get(ctx, client.ObjectKey{Name: req.Namespace}, namespace); err != nil {
		return object, found, false, client.IgnoreNotFound(err)
	}
	found = stall.AnnotationsOf(namespace.Annotations)
	return object, found, found.OptIn(), nil
}

// Reconcile takes one look at a job.
func (f *follower) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	object, annotations, opted, err := f.annotations(ctx, req)
	if err != nil {
		return ctrl.Result{}, fmt.Errorf("read %s %s: %w", req.Kind.Kind, req.NamespacedName, err)
	}
	if !opted || !f.on() {
		f.drop(req)
		return ctrl.Result{}, nil
	}
	followed, later := f.follow(req, object, annotations)
	if followed == nil {
		return ctrl.Result{RequeueAfter: wait.Jitter(later, 0.1)}, nil
	}
	if followed.wrong != nil {
		f.sayOnce(followed, object, "Annotation", followed.wrong.Error())
		return ctrl.Result{}, nil // nothing is to be tried again until the annotation changes
	}
	now := f.Clock.Now()
	if early := followed.due.Sub(now); early > 0 {
		return ctrl.Result{RequeueAfter: wait.Jitter(early, 0.05)}, nil
	}
	// Compiled expressions have up to 30 KB each: of thousands of jobs those are kept that the
	// cache has, and those that are looked at now.
	followed.settings, followed.wrong = stall.Parse(annotations, f.compile) // as follow has found: not wrong
	defer func() { followed.settings = stall.Settings{} }()
	if followed.job.NeedsPods(followed.settings, now) {
		if f.reads.allow(req.Namespace, 1) == 0 { // whoever may write the job can wake us at any time
			return ctrl.Result{RequeueAfter: wait.Jitter(retryShort, 0.1)}, nil
		}
		ended, err := f.observe(ctx, req, object, followed)
		if err != nil {
			return ctrl.Result{}, err
		}
		if ended {
			f.drop(req)
			return ctrl.Result{}, nil
		}
	}
	short := f.look(ctx, req.Namespace, followed)
	object, now2, opted, err := f.annotations(ctx, req)
	if err != nil || !opted || now2 != annotations || object.UID != followed.uid {
		return ctrl.Result{RequeueAfter: time.Second}, err // it was opted out or changed meanwhile
	}
	verdict := followed.job.Judge(followed.settings, f.Clock.Now())
	f.enter(req, followed, verdict)
	if err := f.report(ctx, req, object, followed, verdict); err != nil {
		return ctrl.Result{}, err
	}
	next := verdict.Next
	if short {
		next = min(next, retryShort)
	}
	next = max(next, time.Second)
	followed.due = now.Add(next)
	if verdict.State == stall.NotRunning {
		followed.due = time.Time{} // a change may be that it runs
	}
	// With a part at random, and never early: looks of many jobs spread, and one that is due has happened.
	return ctrl.Result{RequeueAfter: wait.Jitter(next, 0.05)}, nil
}

// follow returns what is known of a job, and begins to follow it if its namespace has a place; nil: it is to be tried again later. An
// annotation that changed is compiled again; what is known of the ranks is rebuilt from their logs. A tenant may change them at any pace:
// each change, and each expression that is not kept, takes the place of a read of its namespace.
func (f *follower) follow(req request, object *metav1.PartialObjectMetadata, a stall.Annotations) (*followed, time.Duration) {
	f.mu.Lock()
	known := f.followed[req]
	f.mu.Unlock()
	if known != nil && known.uid != object.UID {
		f.drop(req)
		known = nil
	}
	if known != nil && known.annotations == a {
		return known, 0
	}
	cost := newTexts(f.compiled, a)
	if known != nil {
		cost++
	}
	if cost > 0 && f.reads.allow(req.Namespace, cost) < cost {
		return nil, retryShort
	}
	if known == nil && !f.place(req, object) {
		return nil, retryPlace
	}
	fresh := &followed{uid: object.UID, annotations: a, said: sets.New[string](),
		evidence: rate.NewLimiter(rate.Every(24*time.Hour/evidencePerDay), evidencePerDay)}
	if known != nil {
		fresh.state, fresh.evidence = known.state, known.evidence
	}
	_, fresh.wrong = stall.Parse(a, f.compile)
	if a.Removed != "" {
		f.Recorder.Eventf(object, nil, corev1.EventTypeWarning, causes.PolicyWarning, "Ignored",
			"ignored, because this version no longer knows it: annotation %s of the job or its namespace", a.Removed)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.followed[req] = fresh
	return fresh, 0
}

// compilation is an expression, or why it is refused.
type compilation struct {
	expression *stall.Expression
	refused    error
}

// compile compiles an expression, or returns what it has found before, for this job or another one.
func (f *follower) compile(text string) (*stall.Expression, error) {
	known, ok := f.compiled.Get(text)
	if !ok {
		e, err := stall.Compile(text)
		known = compilation{e, err}
		f.compiled.Add(text, known)
	}
	found := known.(compilation) //nolint:forcetypeassert // nothing else is in it
	return found.expression, found.refused
}

// newTexts is how many of the expressions are not kept.
func newTexts(kept *lru.Cache, a stall.Annotations) (n int) {
	for _, text := range []string{a.Progress, a.Pause} {
		if _, known := kept.Get(text); text != "" && !known {
			n++
		}
	}
	return n
}

// place takes a place of the namespace and of the cluster. A job for which there is none is reported once.
func (f *follower) place(req request, object *metav1.PartialObjectMetadata) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.places[req.Namespace] < maxPerNamespace && (f.taken < maxFollowed || vacate(f, req.Namespace)) {
		f.places[req.Namespace]++
		f.taken++
		f.full.Delete(object.UID)
		return true
	}
	if !f.full.Has(object.UID) && f.full.Len() < maxSaid {
		f.full.Insert(object.UID)
		followed, of := maxPerNamespace, "namespace"
		if f.places[req.Namespace] < maxPerNamespace {
			followed, of = maxFollowed, "cluster"
		}
		f.Recorder.Eventf(object, nil, corev1.EventTypeWarning, eventUnknown, "NoPlace",
			"the progress of this job is not followed: %d jobs of the %s are followed already; it is when one of them ends", followed, of)
	}
	return false
}

// vacate takes a place from the namespace with most of them for one that has fewer: no tenant can keep all places from the others.
func vacate(f *follower, namespace string) bool {
	most := namespace
	for other, n := range f.places {
		if n > f.places[most] {
			most = other
		}
	}
	if f.places[most] <= f.places[namespace]+1 { // neither would take the place from the other again and again
		return false
	}
	for req := range f.followed {
		if req.Namespace == most {
			leave(f, req)
			return true
		}
	}
	return false
}

// drop forgets a job, and frees its place.
func (f *follower) drop(req request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	leave(f, req)
}

// leave is drop, under the lock.
func leave(f *follower, req request) {
	known := f.followed[req]
	if known == nil {
		return
	}
	known.dropped = true
	delete(f.followed, req)
	delete(f.quiet, req)
	f.taken--
	if f.places[req.Namespace]--; f.places[req.Namespace] == 0 {
		delete(f.places, req.Namespace)
	}
	f.metrics.leave(known.state)
	f.reads.forget(req.Namespace, f.places[req.Namespace] == 0)
}

// enter counts a job in its state.
func (f *follower) enter(req request, job *followed, v stall.Verdict) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if job.dropped { // meanwhile
		return
	}
	if v.State == stall.Stalled || v.Overdue {
		f.quiet[req] = v.Since
	} else {
		delete(f.quiet, req)
	}
	if job.state == v.State {
		return
	}
	f.metrics.leave(job.state)
	f.metrics.jobs.WithLabelValues(string(v.State)).Inc()
	job.state = v.State
}

// observe reads the job and its pods. ended: it has, there is none, or it waits suspended, without a place, for a change of the job.
func (f *follower) observe(
	ctx context.Context, req request, object *metav1.PartialObjectMetadata, known *followed,
) (ended bool, err error) {
	began := f.Clock.Now()
	defer func() { f.reads.charge(req.Namespace, f.Clock.Now().Sub(began)) }() // pods may have a megabyte each
	kind, ok := kinds.Get(f.Jobs.Kinds(), req.Kind)
	if !ok {
		return true, nil
	}
	job, err := kind.Read(ctx, f.apiReader, req.NamespacedName)
	if kinds.Gone(err) || err == nil && (job.Object.GetUID() != known.uid || job.FinishedReason != "" || job.Suspended && known.state == "") {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("read %s %s: %w", req.Kind.Kind, req.NamespacedName, err)
	}
	found, err := f.Jobs.ActivePods(ctx, job)
	if err != nil {
		return false, err
	}
	pods, wrong := podsOf(found)
	if wrong != "" {
		f.sayOnce(known, object, "Container", wrong)
	} else {
		known.said.Delete(saidContainer)
	}
	known.job.Observe(pods, !job.Suspended && len(pods) >= job.Ranks, f.Clock.Now())
	return false, nil
}
