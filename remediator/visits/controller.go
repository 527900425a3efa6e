// Package visits is the controller of visits to nodes: repairs, validations, sweeps and first checks. It observes a node, has
// [repair.Next] decide, and acts: one patch of the Node that holds record and taint together, then what may follow only once the node
// carries them: a Job to create or to delete, pods to evict, Events.
//
//	controller.go   one node: observe, decide, act
//	observe.go      what a step needs to know that package observe does not read: other nodes, and what is remembered
//	store.go        the locked patch, and the places under the limits of visits that were just begun
//	jobs.go         Jobs and evictions
//	starts.go       the last starts of repairs, for the limits
//	records.go      the parsed records of all nodes
//	source.go       which nodes are looked at although nothing changed
//	sweeper.go      which idle nodes a sweep checks next, and to which pods it yields
//	metrics.go      counters, and what is counted at a scrape
//
// Another kind of visit plugs in without a second road. What it decides goes into package repair: a case in begin (may a visit begin,
// by a fact of [repair.Facts]), and one for each phase where the kind differs (which pods are in the way, what runs, what proves that
// it went well). A fact that costs a request is a field of [repair.Live], and package observe reads it. Nodes that no change leads to, such
// as candidates for sweeps, come from source.go, which names nodes and decides nothing.
//
// The cache decides only whether a node needs a look. Everything that is done follows from a live read of the Node, and the patch is
// locked by its version, so that a step from an old copy is refused. All state is in the record on the Node. The name of a Job follows
// from it, so that a process that dies between two writes leaves nothing that the next one would do twice.
//
// RBAC that this package needs: nodes get, list, watch, patch; pods list; pods/eviction create; the ConfigMaps of the pause and of the
// breaker get; ConfigMap pitcrew-known get, create, patch; events.k8s.io/events create, patch; what remediator/jobs needs to find the
// owner of a pod, if pods are evicted; and in the namespace of the repair Jobs: jobs get, list, watch, create, delete; podtemplates get.
package visits

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/catchup"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
	"github.com/pitcrew-dev/pitcrew/remediator/record/keystore"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/visits/failures"
)

const (
	// conflictRetry is how soon a conflicting write is decided again.
	conflictRetry = 50 * time.Millisecond
	// reconcilers is how many nodes are visited at the same time at most, as far as requests are concerned.
	reconcilers = 4
	// retryMax bounds the wait after an error.
	retryMax = 15 * time.Second
)

// Options configure the controller.
type Options struct {
	Policy *policy.File
	// Namespace holds the ConfigMaps of the pause and of the breaker.
	Namespace string
	// RepairNamespace holds the PodTemplates and the Jobs; empty: no node is visited, and nothing is watched or requested.
	RepairNamespace string
	// DryRun decides and reports, but writes no Node, creates no Job and evicts no pod.
	DryRun   bool
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	// CatchUp is waited for before any step that counts other nodes; nil: nothing is.
	CatchUp *catchup.Gate
	// RecheckEvery is how often nodes are looked at although nothing has changed; 30 s unless set.
	RecheckEvery time.Duration
}

// Controller reconciles Nodes.
type Controller struct {
	client    client.Client // reads from the cache, and writes
	apiReader client.Reader
	elected   <-chan struct{}
	catchUp   *catchup.Gate
	policy    *policy.File
	namespace string
	jobs      string // their namespace
	dryRun    bool
	recorder  events.EventRecorder
	clock     clock.PassiveClock
	metrics   controllerMetrics
	pending   *writes
	records   *records
	// reports are what each node was last said to wait for, problems why the Job of a node could not be created.
	reports, problems record.Once[string, string]
	created           createdJobs
	orphans           orphans
	starts            *startsStore
	failures          *failures.Store
	sweeper           *sweeper

	// deciding is held for one decision that counts other nodes: two nodes decided side by side would both take the last place under a
	// limit. No request to the API server is made meanwhile.
	deciding sync.Mutex
}

// SetupWithManager registers the controller and its metrics with a manager whose cache keeps Nodes, the ConfigMap of the pause and
// the Jobs of the repair namespace. Without a repair namespace it does nothing.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) error {
	if o.RepairNamespace == "" {
		return nil
	}
	c := newController(mgr, o)
	for _, m := range append(c.metrics.collectors(), collector{c}) {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if err := index(ctx, mgr.GetFieldIndexer()); err != nil {
		return err
	}
	due := make(chan event.GenericEvent)
	if err := mgr.Add(newRechecker(c, sendTo(due), o.RecheckEvery)); err != nil {
		return fmt.Errorf("add the source of nodes that need a look: %w", err)
	}
	c.sweeper = newSweeper(c, sendTo(due), o.RecheckEvery)
	if err := mgr.Add(c.sweeper); err != nil {
		return fmt.Errorf("add the sweeps: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("visits").
		For(&corev1.Node{}, builder.WithPredicates(changed)).
		Watches(&batchv1.Job{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, job client.Object) []reconcile.Request {
			name := job.GetAnnotations()[conditions.AnnotationNode]
			if name == "" {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: name}}}
		})).
		WatchesRawSource(source.Channel(due, &handler.EnqueueRequestForObject{})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: reconcilers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, retryMax),
		}).
		Complete(c)
}

// index has a cache find the Jobs for a node, and the nodes that count for the limits of others.
func index(ctx context.Context, in client.FieldIndexer) error {
	if err := in.IndexField(ctx, &batchv1.Job{}, indexNode, nodeOfJob); err != nil {
		return fmt.Errorf("index repair Jobs: %w", err)
	}
	if err := in.IndexField(ctx, &corev1.Node{}, indexCounts, counts); err != nil {
		return fmt.Errorf("index nodes: %w", err)
	}
	return nil
}

func newController(mgr ctrl.Manager, o Options) *Controller {
	return &Controller{
		client:    mgr.GetClient(),
		apiReader: mgr.GetAPIReader(),
		elected:   mgr.Elected(),
		catchUp:   o.CatchUp,
		policy:    o.Policy,
		namespace: o.Namespace,
		jobs:      o.RepairNamespace,
		dryRun:    o.DryRun,
		recorder:  o.Recorder,
		clock:     o.Clock,
		metrics:   newMetrics(),
		pending:   newWrites(),
		records:   newRecords(),
		created:   createdJobs{byNode: map[string]createdJob{}},
		orphans:   orphans{byNode: map[string]time.Time{}},
		failures:  failures.New(mgr.GetClient(), mgr.GetAPIReader(), o.Namespace, o.Policy, o.Clock),
		starts: newStartsStore(keystore.Key{
			Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Name: starts.Key,
			ConfigMap: client.ObjectKey{Namespace: o.Namespace, Name: conditions.KnownConfigMap},
		}, o.Clock),
	}
}

// changed passes updates of nodes that can change a decision. A heartbeat alone passes only for a node that is visited: it may be the
// proof that is waited for.
var changed = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	a, b := e.ObjectOld.(*corev1.Node), e.ObjectNew.(*corev1.Node)
	visited := strings.Contains(b.Annotations[conditions.AnnotationRepair], `"current":`)
	same := func(a, b corev1.NodeCondition) bool {
		return a.Type == b.Type && a.Status == b.Status && a.Message == b.Message && a.LastHeartbeatTime.Equal(&b.LastHeartbeatTime)
	}
	return quarantine.Differ(a, b) || visited && !slices.EqualFunc(a.Status.Conditions, b.Status.Conditions, same)
}}

// Reconcile takes the next step of the visit to one node, or begins one.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	if !c.policy.Known() {
		return ctrl.Result{}, nil
	}
	var n corev1.Node
	if err := c.client.Get(ctx, req.NamespacedName, &n); err != nil {
		if apierrors.IsNotFound(err) {
			return ctrl.Result{}, c.forget(ctx, req.Name)
		}
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	excess := node.TooLarge(&n)
	if excess == "" {
		c.collectHandedOff(ctx, &n)
	} else if visited, err := c.isVisited(ctx, &n); !visited {
		return ctrl.Result{}, err // the controller of nodes says so
	}
	// The cache shows whether there is anything to do.
	step, err := c.decide(ctx, &n, excess, false)
	if err != nil {
		return ctrl.Result{}, err
	}
	idle, err := c.isIdle(ctx, &n, step)
	if err != nil || idle {
		return ctrl.Result{RequeueAfter: step.After}, err
	}
	if err := c.apiReader.Get(ctx, req.NamespacedName, &n); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if err := c.catchUp.Wait(ctx); err != nil {
		return ctrl.Result{}, fmt.Errorf("nothing is done yet: %w", err)
	}
	decidedBy := c.policy.Policy()
	step, err = c.decide(ctx, &n, excess, true)
	if err != nil {
		return ctrl.Result{}, err
	}
	if c.policy.Policy() != decidedBy { // reloaded while pods and templates were read
		if changes(step, &n) {
			c.pending.Refused(n.Name)
		}
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	}
	err = c.act(ctx, &n, step)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	if c.dryRun {
		step.After = recheckEvery // nothing was written, so the next step is the same
	}
	return ctrl.Result{RequeueAfter: step.After}, nil
}

// isVisited reports whether a visit to a node is under way. A node that is too large may have no room for the record of it.
func (c *Controller) isVisited(ctx context.Context, n *corev1.Node) (bool, error) {
	if r, err := c.records.of(n); err == nil && r != nil && r.Current != nil {
		return true, nil
	}
	jobs, err := c.jobsOf(ctx, n.Name)
	return len(jobs) > 0, err
}

// isIdle reports whether a step needs no request at all.
func (c *Controller) isIdle(ctx context.Context, n *corev1.Node, s repair.Step) (bool, error) {
	if s.NeedsLive || s.Create != nil || len(s.Evict) > 0 || changes(s, n) {
		return false, nil
	}
	c.report(ctx, n, s)
	jobs, err := c.jobsOf(ctx, n.Name)
	if err != nil {
		return false, err
	}
	for i := range jobs {
		if jobs[i].Name != s.KeepJob && jobs[i].DeletionTimestamp == nil {
			return false, nil
		}
	}
	return true, nil
}

// act makes a step come true. Acting twice equals acting once.
func (c *Controller) act(ctx context.Context, n *corev1.Node, s repair.Step) error {
	c.report(ctx, n, s)
	if changes(s, n) {
		return c.write(ctx, n, s)
	}
	if c.dryRun {
		return nil
	}
	if s.Create != nil && !c.collects(ctx, n) {
		if err := c.saveStart(ctx, n); err != nil {
			return err
		}
		if err := c.create(ctx, n, s.Create); err != nil {
			return err
		}
	}
	return errors.Join(c.deleteJobs(ctx, n.Name, s.KeepJob), c.evict(ctx, n, s.Evict))
}

// forget drops what is kept about a node that is gone, and its Jobs.
func (c *Controller) forget(ctx context.Context, name string) error {
	c.pending.Discard(name)
	c.records.forget(name)
	c.reports.Forget(name)
	c.problems.Forget(name)
	c.created.set(name, nil)
	c.orphans.since(name, false, time.Time{})
	if jobs, err := c.jobsOf(ctx, name); err != nil || len(jobs) == 0 {
		return err
	}
	if err := c.apiReader.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{}); !apierrors.IsNotFound(err) {
		return err
	}
	return c.deleteJobs(ctx, name, "")
}
