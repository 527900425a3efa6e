// Package node turns NodeConditions into quarantines: observe -> [Decide], which is pure -> act, one patch of the Node
// that holds taint, record and labels together. All state is in the record on the Node.
package node

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/webhook"
)

// Name is the controller's name in Events and managed fields.
const Name = "pitcrew-remediator"

const (
	// reread is how soon a conflicting write is decided anew: the cache needs a moment to show what it conflicted with.
	reread = 20 * time.Millisecond
	// writers is how many nodes are written at the same time: an API server answers one request in some 10 ms, and a burst
	// of a thousand faults must not wait for a thousand answers in a row.
	writers = 16
	// byClock is the priority of a look that no change asked for; a change has 0.
	byClock = -1
	// retryMax bounds the wait after an error, so that an API server that comes back is noticed soon.
	retryMax = 15 * time.Second
)

// JobRestarter restarts the jobs that have pods on a quarantined node.
type JobRestarter interface {
	// Unless after is zero, it is to be called again after that time.
	RestartJobsOnNode(ctx context.Context, q restart.Quarantine) (after time.Duration, err error)
}

// Options configure a [Controller].
type Options struct {
	Policy *policy.File
	// Namespace holds the ConfigMaps of the pause and of the breaker.
	Namespace string
	// Evidence is the namespace of the evidence, [conditions.EvidenceNamespace] unless set.
	Evidence string
	// DryRun decides and says, but writes no Node and restarts no job.
	DryRun bool
	Events events.EventRecorder
	Jobs   JobRestarter
	Now    func() time.Time
}

// Controller reconciles Nodes.
type Controller struct {
	client    client.Client
	reader    client.Reader // of what the cache does not hold
	elected   <-chan struct{}
	policy    *policy.File
	breaker   breaker
	deciding  sync.Mutex // guards breaker and summaries
	summaries map[string]summary
	namespace string
	evidence  string
	dryRun    bool
	events    events.EventRecorder
	jobs      JobRestarter
	webhooks  *webhook.Sender
	now       func() time.Time
	metrics   controllerMetrics
	memory    memory
}

// SetupWithManager registers the controller with a manager whose cache keeps Nodes as [Slim] makes them, and its metrics.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) error {
	c := &Controller{
		client:    mgr.GetClient(),
		reader:    mgr.GetAPIReader(),
		elected:   mgr.Elected(),
		policy:    o.Policy,
		namespace: o.Namespace,
		evidence:  cmp.Or(o.Evidence, conditions.EvidenceNamespace),
		dryRun:    o.DryRun,
		events:    o.Events,
		jobs:      o.Jobs,
		now:       o.Now,
		metrics:   newMetrics(),
		breaker:   breaker{client: mgr.GetClient(), reader: mgr.GetAPIReader(), namespace: o.Namespace, dryRun: o.DryRun, now: o.Now},
		summaries: map[string]summary{},
		memory:    memory{written: map[string]written{}, said: map[string]Blocked{}, kept: map[string]string{}, dryRun: o.DryRun},
	}
	for _, m := range []prometheus.Collector{c.metrics.blocked, c.metrics.decision, c.metrics.quarantine, c.metrics.policyValid, c.metrics.breakerOpen, c.metrics.evidenceFailed, collector{c}} {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if err := mgr.GetFieldIndexer().IndexField(ctx, &corev1.Node{}, indexQuarantined, indexNode); err != nil {
		return fmt.Errorf("index nodes: %w", err)
	}
	told := make(chan event.GenericEvent)
	var err error
	if c.webhooks, err = webhook.New(o.Policy, o.Now, decideAnew(told), registry); err != nil {
		return fmt.Errorf("webhooks: %w", err)
	}
	if err := mgr.Add(c.webhooks); err != nil {
		return fmt.Errorf("tell webhooks: %w", err)
	}
	if !o.DryRun {
		if err := mgr.Add(&expirer{c}); err != nil {
			return fmt.Errorf("expire evidence: %w", err)
		}
	}
	changes := make(chan event.GenericEvent, 1)
	if err := mgr.Add(&reloader{Controller: c, changes: changes}); err != nil {
		return fmt.Errorf("watch the policy: %w", err)
	}
	return ctrl.NewControllerManagedBy(mgr).
		Named("node").
		For(&corev1.Node{}, builder.WithPredicates(changed)).
		Watches(&corev1.ConfigMap{}, handler.EnqueueRequestsFromMapFunc(c.everyNode)).
		WatchesRawSource(source.Channel(changes, handler.EnqueueRequestsFromMapFunc(c.everyNode))).
		WatchesRawSource(source.Channel(told, whenIdle)).
		WithOptions(controller.Options{
			// Only the writes and the looks at jobs are concurrent, see Controller.decide.
			MaxConcurrentReconciles: writers,
			RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](5*time.Millisecond, retryMax),
		}).
		Complete(c)
}

// decideAnew has a node decided again when a webhook was told about it, which its record must no longer ask for.
func decideAnew(told chan<- event.GenericEvent) func(context.Context, string) {
	return func(ctx context.Context, name string) {
		select {
		case told <- event.GenericEvent{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}}:
		case <-ctx.Done():
		}
	}
}

// whenIdle has a node decided once no change of another one waits: what webhooks were told must not delay a taint.
var whenIdle = handler.Funcs{GenericFunc: func(_ context.Context, e event.GenericEvent, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	request := reconcile.Request{NamespacedName: client.ObjectKeyFromObject(e.Object)}
	if byPriority, ok := queue.(priorityqueue.PriorityQueue[reconcile.Request]); ok {
		byPriority.AddWithOpts(priorityqueue.AddOpts{Priority: ptr.To(byClock)}, request)
		return
	}
	queue.Add(request)
}}

// everyNode has each node decided anew when the pause begins, changes or ends, and when the policy changes.
func (c *Controller) everyNode(ctx context.Context, _ client.Object) []reconcile.Request {
	var nodes corev1.NodeList
	if err := c.client.List(ctx, &nodes, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "List nodes after a change of the pause or of the policy")
		return nil
	}
	var requests []reconcile.Request
	for i := range nodes.Items {
		requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&nodes.Items[i])})
	}
	return requests
}

// Reconcile decides about one node and acts.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	var n corev1.Node
	if err := c.client.Get(ctx, req.NamespacedName, &n); err != nil {
		if apierrors.IsNotFound(err) {
			c.forget(req.Name)
			c.webhooks.Deliver(req.Name, nil)
			return ctrl.Result{}, nil
		}
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", req.Name, err)
	}
	started := c.now().UTC()
	decision, err := c.decide(ctx, &n, started)
	if err != nil {
		return ctrl.Result{}, err
	}
	switch err := c.act(ctx, &n, decision, started); {
	case apierrors.IsConflict(err):
		return ctrl.Result{RequeueAfter: reread}, nil
	case apierrors.IsNotFound(err):
		return ctrl.Result{}, nil
	case err != nil:
		return ctrl.Result{}, err
	}
	if err := c.deliver(&n, decision); err != nil {
		return ctrl.Result{}, err
	}
	again := decision.RequeueAfter
	waits, err := c.restartJobs(ctx, &n, decision)
	if waits > 0 && (again == 0 || again > waits) {
		again = waits
	}
	if decision.State != nil && !c.keepEvidence(ctx, &n, decision.State.Record) && (again == 0 || again > recheck) {
		again = recheck
	}
	if err != nil {
		again = 0 // the queue knows when to try again
	}
	// What the clock asks for waits behind what has just happened to other nodes: in a burst, looking at jobs again must not
	// delay a taint.
	return ctrl.Result{RequeueAfter: again, Priority: ptr.To(byClock)}, err
}

// decide decides one node at a time, and takes the place under the budgets before the write is under way: two nodes decided
// side by side would both take the last one. n becomes what it is by our own writes.
func (c *Controller) decide(ctx context.Context, n *corev1.Node, now time.Time) (Decision, error) {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	c.memory.recall(n)
	p := c.policy.Policy()
	observation, err := c.observe(ctx, p, n)
	if err != nil {
		return Decision{}, err
	}
	c.showBreaker(observation.Breaker)
	d := Decide(p, observation, now)
	if err := c.setBreaker(ctx, d); err != nil {
		return Decision{}, err
	}
	if d.changes(n) {
		c.memory.remember(n, d.State.Record)
	}
	return d, nil
}

func (c *Controller) forget(name string) {
	c.deciding.Lock()
	defer c.deciding.Unlock()
	c.memory.forget(name)
	delete(c.summaries, name)
}
