// Package nodes is the controller of Nodes: it observes a node, has [quarantine.Decide] decide, and applies the decision in
// one patch of the Node that holds taint, record and labels together. All state is in the record on the Node.
package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/away"
	"github.com/pitcrew-dev/pitcrew/remediator/catchup"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/aws"
	isolator "github.com/pitcrew-dev/pitcrew/remediator/followers/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/evidence"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/maintenance"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/soperator"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/webhooks"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/burst"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/report"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/tally"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const (
	// conflictRetry is how soon a conflicting write is decided again: the cache needs a moment to show what it conflicted with.
	conflictRetry = 20 * time.Millisecond
	// writers is how many nodes are written at the same time: an API server answers one request in some 10 ms, and a burst
	// of a thousand faults must not wait for a thousand answers in a row.
	writers = 16
	// lowPriority is the priority of a reconcile that no change asked for. A change has 0, the first list of nodes has
	// [handler.LowPriority]; this is lower than both.
	lowPriority = handler.LowPriority - 1
	// evidenceRetry is how soon evidence that could not be kept is tried again.
	evidenceRetry = time.Minute
)

// JobRestarter restarts the jobs that have pods on a quarantined node.
type JobRestarter interface {
	// RestartJobsOnNode begins the restart of the jobs on the node that may be restarted now. Unless after is zero, it is to
	// be called again after that time.
	RestartJobsOnNode(ctx context.Context, q restart.Trigger) (after time.Duration, err error)
}

// Options configure a [Controller].
type Options struct {
	Policy *policy.File
	// Namespace holds the ConfigMaps of the pause and of the breaker.
	Namespace string
	// EvidenceNamespace holds the evidence, [conditions.EvidenceNamespace] unless set.
	EvidenceNamespace string
	// DryRun decides and reports, but writes no Node and restarts no job.
	DryRun bool
	// Visits is set if nodes are repaired and checked.
	Visits   bool
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
	Jobs     JobRestarter
	// CatchUp is waited for before anything is decided; nil: nothing is.
	CatchUp *catchup.Gate
	// OnBigBurst is called when very many nodes that have changed begin to wait, and when they have been reconciled, if set. It must not
	// block.
	OnBigBurst func(begins bool)
}

// Controller reconciles Nodes.
type Controller struct {
	client    client.Client // reads from the cache, and writes
	apiReader client.Reader
	elected   <-chan struct{}
	catchUp   *catchup.Gate
	policy    *policy.File
	namespace string
	dryRun    bool
	visits    bool // nodes are repaired and checked
	clock     clock.PassiveClock
	jobs      JobRestarter
	evidence  *evidence.Store
	webhooks  *webhooks.Sender
	soperator *soperator.Follower
	aws       *aws.Follower
	repaired  *maintenance.Follower
	devices   *isolator.Store
	breaker   *memory.Breaker
	known     *memory.Known
	pending   *writes
	report    *report.Reporter
	tally     *tally.Quarantines
	looks     looks
	burst     *burst.Burst
	livePause livePause

	deciding sync.Mutex // held for one decision; guards what follows
	fleet    *fleet
	// seen is what this process knows about the quarantines of nodes, by node.
	seen map[string]seen.Seen
	// leadingSince is the time of the first decision: this process has led since, or it would have ended. Zero: there was none.
	leadingSince time.Time
}

func newController(mgr ctrl.Manager, o Options) *Controller {
	kept := memory.Options{Client: mgr.GetClient(), Reader: mgr.GetAPIReader(), Namespace: o.Namespace, DryRun: o.DryRun, Clock: o.Clock}
	c := &Controller{
		client:    nodeWriter{mgr.GetClient()},
		apiReader: mgr.GetAPIReader(),
		elected:   mgr.Elected(),
		catchUp:   o.CatchUp,
		policy:    o.Policy,
		namespace: o.Namespace,
		dryRun:    o.DryRun,
		visits:    o.Visits,
		clock:     o.Clock,
		jobs:      o.Jobs,
		soperator: soperator.New(mgr.GetClient(), mgr.GetAPIReader(), o.Clock),
		aws:       aws.New(mgr.GetClient(), mgr.GetAPIReader(), o.Clock),
		repaired:  maintenance.New(mgr.GetClient(), mgr.GetAPIReader(), maintenance.VersionOf(mgr.GetConfig(), mgr.GetHTTPClient()), o.Clock),
		devices:   isolator.New(mgr.GetClient(), mgr.GetAPIReader(), mgr.GetRESTMapper(), o.DryRun),
		breaker:   memory.NewBreaker(kept),
		known:     memory.NewKnown(kept),
		pending:   newWrites(o.DryRun),
		report: &report.Reporter{
			Recorder: o.Recorder, Namespace: o.Namespace, DryRun: o.DryRun, Clock: o.Clock, Metrics: report.NewMetrics(),
		},
		tally: tally.New(),
		looks: looks{byNode: map[string]look{}},
		burst: burst.New(o.OnBigBurst),
		seen:  map[string]seen.Seen{},
	}
	c.fleet = newFleet(c)
	return c
}

// SetupWithManager registers the controller with a manager whose cache keeps Nodes as [Slim] makes them, and its metrics.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) error {
	c := newController(mgr, o)
	for _, m := range slices.Concat(c.report.Metrics.Collectors(), c.tally.Collectors(), []prometheus.Collector{collector{c}}) {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if !c.policy.Known() {
		c.report.ShowPolicy(false)
	}
	var err error
	c.evidence, err = evidence.SetupWithManager(ctx, mgr, registry, evidence.Options{
		Namespace: cmp.Or(o.EvidenceNamespace, conditions.EvidenceNamespace), DryRun: o.DryRun, Clock: o.Clock,
	})
	if err != nil {
		return fmt.Errorf("keep evidence: %w", err)
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, indexQuarantined, indexNode); err != nil {
		return fmt.Errorf("index nodes: %w", err)
	}
	again := make(chan event.GenericEvent)
	if c.webhooks, err = webhooks.New(o.Policy, o.Clock, reconcileNode(again), registry); err != nil {
		return fmt.Errorf("webhooks: %w", err)
	}
	changes := make(chan event.GenericEvent, 1)
	cached := func(ctx context.Context, name string) (*corev1.Node, error) { return cachedNode(ctx, c.client, name) }
	for _, runs := range []manager.Runnable{
		&waker{c, reconcileNode(again), limits.RetryBlocked},
		&isolator.Sweeper{Store: c.devices, CanIsolate: canIsolate(c), Node: cached, Again: reconcileNode(again)},
		c.soperator,
		c.aws,
		c.repaired,
		c.webhooks,
		c.breaker,
		&reloader{Controller: c, changes: changes},
	} {
		if err := mgr.Add(runs); err != nil {
			return fmt.Errorf("add %T: %w", runs, err)
		}
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("node").
		For(&corev1.Node{}, builder.WithPredicates(c.follow(ctx))).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(c.allNodes)).
		WatchesRawSource(source.Channel(changes, handler.EnqueueRequestsFromMapFunc(c.allNodes))).
		WatchesRawSource(source.Channel(again, enqueueWhenIdle)).
		WithOptions(controller.Options{
			// Only the writes and the requests about jobs are concurrent, see Controller.decide.
			MaxConcurrentReconciles: writers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, 15*time.Second),
		}).
		Complete(away.Wait(c, o.Clock))
}

// reconcileNode has a node reconciled when the delivery of a notice is finished, so that its record drops the notice, and when a limit may
// hold it back no longer.
func reconcileNode(again chan<- event.GenericEvent) func(context.Context, string) {
	return func(ctx context.Context, name string) {
		select {
		case again <- event.GenericEvent{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}}:
		case <-ctx.Done():
		}
	}
}

// enqueueWhenIdle has a node reconciled once no change of another one waits: deliveries must not delay a taint, and nodes that wait for one
// no other.
var enqueueWhenIdle = handler.Funcs{GenericFunc: func(
	_ context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request],
) {
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}
	if byPriority, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		byPriority.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(lowPriority)}, request)
		return
	}
	queue.Add(request)
}}

// allNodes has each node reconciled when the pause begins, changes or ends, and when the policy changes.
func (c *Controller) allNodes(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list nodes after a change of the pause or of the policy; deciding each at its next change")
		return nil
	}
	var requests []reconcile.Request
	for i := range nodes.Items {
		c.burst.Recheck(nodes.Items[i].Name)
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&nodes.Items[i])})
	}
	return requests
}

// Reconcile decides about one node and applies the decision. Then it stores what became of the breaker, so that a slow
// answer holds up nothing else.
//
// Without a policy nothing is decided: what a rule did cannot be told from what no policy explains. All nodes are reconciled when there
// is one.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	rest, end := c.burst.Begin(req.Name, c.clock.Now())
	defer end()
	if !c.policy.Known() {
		return ctrl.Result{}, nil
	}
	if rest > 0 {
		return ctrl.Result{RequeueAfter: rest, Priority: ptr.To(0)}, nil
	}
	result, err := c.reconcile(ctx, req)
	if errors.Is(err, errOutdated) { // what was not known has all nodes decided anew
		result, err = ctrl.Result{RequeueAfter: limits.RetryBlocked}, nil
	}
	if saveErr := c.breaker.Save(ctx); saveErr != nil {
		ctrl.LoggerFrom(ctx).Error(saveErr, "Failed to save the breaker state; retrying")
		result.RequeueAfter = earlier(result.RequeueAfter, limits.RetryBlocked)
	}
	if err != nil {
		result.RequeueAfter = 0 // the queue knows when to try again
	}
	return result, err
}

func (c *Controller) reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n corev1.Node
	if err := c.client.Get(ctx, req.NamespacedName, &n); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.Name)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	c.tally.See(c.policy.Policy(), &n)
	if err := c.settle(ctx, &n); err != nil {
		return ctrl.Result{}, err
	}
	switch wrote, err := c.carryOut(ctx, c.policy.Policy(), &n); {
	case apierrors.IsConflict(err), err == nil && wrote:
		return ctrl.Result{RequeueAfter: conflictRetry, Priority: ptr.To(0)}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	started := c.clock.Now().UTC()
	by, err := c.basis(ctx, &n)
	if err != nil {
		return ctrl.Result{}, err
	}
	decision, err := c.decide(ctx, by, &n, started)
	if err != nil {
		return ctrl.Result{}, err
	}
	switch err := c.apply(ctx, by, &n, decision, started); {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	if err := c.deliver(&n, decision); err != nil {
		return ctrl.Result{}, err
	}
	devicesWait := c.devices.Apply(ctx, &n, by.devices, decision.Devices)
	jobsWait, evidenceWait := c.burst.TaintsFirst(n.Name, decision, started)
	if jobsWait > 0 {
		// Not with a low priority: among nodes that change all the time its turn would never come.
		return ctrl.Result{RequeueAfter: earlier(jobsWait, devicesWait), Priority: ptr.To(0)}, nil
	}
	after, err := c.restartJobs(ctx, &n, decision)
	c.showOthers(&n, decision)
	after = earlier(earlier(decision.RequeueAfter, after), devicesWait)
	if evidenceWait > 0 {
		if err == nil {
			c.burst.Looked(n.Name, c.clock.Now(), evidenceWait, after)
		}
		return ctrl.Result{RequeueAfter: earlier(after, evidenceWait), Priority: ptr.To(0)}, err
	}
	if decision.State != nil && !c.keepEvidence(ctx, &n, decision.State.Record) {
		after = earlier(after, evidenceRetry)
	}
	// What no change asked for waits behind changes of other nodes: in a burst, looking for jobs again must not delay a taint.
	return ctrl.Result{RequeueAfter: after, Priority: ptr.To(lowPriority)}, err
}

// earlier is the shorter of two times to wait; zero: never.
func earlier(a, b time.Duration) time.Duration {
	if a == 0 || b > 0 && b < a {
		return b
	}
	return a
}

// decide decides about one node at a time, and takes the place under the budgets before the write is under way: two nodes
// decided side by side would both take the last one. n becomes what it is by our own writes. No request to the API server
// is made while other decisions wait.
func (c *Controller) decide(ctx context.Context, by basis, n *corev1.Node, now time.Time) (quarantine.Decision, error) {
	if err := c.catchUp.Wait(ctx); err != nil {
		return quarantine.Decision{}, fmt.Errorf("nothing is decided yet: %w", err)
	}
	if err := c.breaker.Refresh(ctx, by.policy); err != nil {
		return quarantine.Decision{}, err
	}
	if err := c.known.Refresh(ctx, by.policy); err != nil {
		return quarantine.Decision{}, err
	}
	d, err := c.decideAlone(ctx, by.policy, n, by.devices, now)
	if err != nil {
		return quarantine.Decision{}, err
	}
	c.report.Breaker(ctx, d)
	return d, nil
}

func (c *Controller) decideAlone(
	ctx context.Context, p *policy.Policy, n *corev1.Node, look *devices.Look, now time.Time,
) (quarantine.Decision, error) {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	if c.leadingSince.IsZero() {
		c.leadingSince = now
	}
	// The cache may show a newer version by now, for which another decision has dropped what was pending over the one before.
	if err := c.client.Get(ctx, client.ObjectKeyFromObject(n), n); client.IgnoreNotFound(err) != nil {
		return quarantine.Decision{}, fmt.Errorf("get node %s: %w", n.Name, err)
	}
	c.pending.DropFailed(n.Name)
	c.pending.Overlay(n)
	observation, err := c.observe(ctx, p, n)
	if err != nil {
		return quarantine.Decision{}, err
	}
	observation.Devices = look
	d := quarantine.Decide(p, observation, now)
	if d.SetBreaker != nil {
		c.breaker.Set(d.SetBreaker.OrClosed())
	}
	c.report.ShowBreaker(c.breaker.State(p))
	c.fleet.noteHeld(p, n.Name, d)
	c.seen[n.Name] = d.SeenAfter(observation, now)
	c.breaker.RememberRecord(p, n, observation.Record, now)
	if d.Started != nil && d.Started.Incident != (limits.Domain{}) {
		c.breaker.Remember(p, n, d.Started) // before the write: until it is remembered, another domain may fail as an incident, too
	}
	if d.Changes(n) {
		c.pending.Add(n, d.State.Record)
	}
	return d, nil
}

// forget drops what is kept in memory about a node that is gone.
func (c *Controller) forget(name string) {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	if lost, ok := c.pending.Doubtful(name); ok {
		c.fleet.rememberDoubtful(c.policy.Policy(), lost)
	}
	c.pending.Discard(name)
	c.report.Forget(name)
	c.tally.Forget(name)
	c.soperator.Forget(name)
	c.aws.Forget(name)
	c.repaired.Forget(name)
	c.evidence.Forget(name)
	c.webhooks.Deliver(name, nil)
	c.looks.forget(name)
	c.burst.Forget(name)
	c.devices.Forget(name)
	delete(c.fleet.held, name)
	delete(c.seen, name)
	delete(c.fleet.domains, name)
}
