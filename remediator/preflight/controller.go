// Package preflight is the controller that turns the report ConfigMaps of preflight runs into the NodeConditions
// PreflightFailed and SlowNode. The policy decides what follows from these, as for every other condition.
//
// The verdicts depend on the ConfigMaps and the Nodes only. After a restart, or with another leader, the controller reads
// them again, reaches the same verdicts and finds that the conditions are already up to date.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
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
)

// Reasons of Events. Users match on them, so they stay.
const (
	Refused    = "PreflightRefused"
	Incomplete = "PreflightIncomplete"
	Verdict    = "PreflightVerdict"
)

// fieldOwner is the field manager of the conditions and annotations that this package writes.
const fieldOwner = "pitcrew-preflight"

// indexRun and indexPod find report ConfigMaps by their run id, and by the UID of the pod that they name.
const (
	indexRun = "pitcrew.run"
	indexPod = "pitcrew.pod"
)

// Options configure [SetupWithManager].
type Options struct {
	// Namespaces are those whose reports count. The remediator needs the Role of manifests/preflight in each of them. In
	// Trusted ones only the cluster's admins run pods.
	Namespaces, Trusted []string
	// Timeout is how long a run is collected after its first report.
	Timeout time.Duration
	// TTL is how long a verdict stays if no run repeats it.
	TTL time.Duration
	// LeafLabel is the Node label that names the node's rack or leaf switch; empty: no topology.
	LeafLabel string
	// DryRun reports verdicts as Events and metrics, but changes no Node and no ConfigMap.
	DryRun   bool
	Recorder events.EventRecorder
	Clock    clock.PassiveClock
}

// Controller reconciles preflight runs. A request is a namespace and a run id.
type Controller struct {
	// client reads Nodes from the manager's cache, and patches Nodes and ConfigMaps.
	client client.Client
	// apiReader reads pods and jobs from the API server.
	apiReader client.Reader
	// reports is the cache of report ConfigMaps.
	reports  client.Reader
	recorder events.EventRecorder
	clock    clock.PassiveClock

	// See [Options].
	trusted      []string
	timeout, ttl time.Duration
	leafLabel    string
	dryRun       bool

	runsTotal *prometheus.CounterVec
	// startedAt is the time of the first request in this process.
	startedAt time.Time

	// What follows saves requests and repeated Events. No verdict depends on it. Every entry is about a ConfigMap, or a run
	// with ConfigMaps, that exists: [Controller.forgetDeleted] removes the others.

	// validations are the results of reading each ConfigMap of a run.
	validations map[types.NamespacedName]map[types.UID]validation
	// lastEvent is the text of the last Event about a report, or about the run of which it is the first report.
	lastEvent map[types.UID]string
	// lastAnnotation is the verdict that was last written on a report.
	lastAnnotation map[types.UID]string
	// backoff is how long a run last waited for its namespace's rate limit.
	backoff map[types.NamespacedName]time.Duration
	// rateLimits has an entry for each listed namespace with a report, listAgain for each whose pods were listed: when they may be again.
	rateLimits map[string]rateLimits
	listAgain  map[string]time.Time
}

func newController(o Options, c client.Client, apiReader, reports client.Reader) *Controller {
	return &Controller{
		client:    c,
		apiReader: apiReader,
		reports:   reports,
		recorder:  o.Recorder,
		clock:     o.Clock,
		trusted:   o.Trusted,
		timeout:   o.Timeout,
		ttl:       o.TTL,
		leafLabel: o.LeafLabel,
		dryRun:    o.DryRun,
		runsTotal: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_preflight_runs_total",
			Help: "Preflight runs judged, by result: clean, slow, failed, fabric or undecided.",
		}, []string{"result"}),
		validations:    map[types.NamespacedName]map[types.UID]validation{},
		lastEvent:      map[types.UID]string{},
		lastAnnotation: map[types.UID]string{},
		backoff:        map[types.NamespacedName]time.Duration{},
		rateLimits:     map[string]rateLimits{},
		listAgain:      map[string]time.Time{},
	}
}

// SetupWithManager registers the controller, its metrics and its own cache of ConfigMaps. The manager's cache must not hold
// reports: this one holds nothing else, and only of the listed namespaces. Without namespaces it does nothing.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) error {
	namespaces := union(o.Namespaces, o.Trusted)
	if len(namespaces) == 0 {
		return nil
	}
	reports, err := newReportCache(ctx, mgr, namespaces)
	if err != nil {
		return err
	}
	c := newController(o, mgr.GetClient(), mgr.GetAPIReader(), reports)
	if err := c.registerMetrics(registry); err != nil {
		return err
	}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("preflight").
		WatchesRawSource(source.Kind(reports, &corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, cm *corev1.ConfigMap) []reconcile.Request {
				return []reconcile.Request{{NamespacedName: runName(cm)}}
			}), reportEvents)).
		// A node that was deleted and created again has lost its conditions.
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.runsWithNode), builder.WithPredicates(predicate.Funcs{
			UpdateFunc: func(event.UpdateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WithOptions(controller.Options{
			MaxConcurrentReconciles: 1,             // two runs may name one node
			EnableWarmup:            ptr.To(false), // a standby would keep the name of every run, and end where it may not list reports
		}).
		Complete(c); err != nil {
		return fmt.Errorf("add the controller of preflight reports: %w", err)
	}
	return c.setupExpiry(mgr)
}

// reportEvents ignores updates of reports: they are immutable apart from the verdict that is written on them. An update of
// the run id, which only the admission policy prevents, concerns the old and the new run.
var reportEvents = predicate.TypedFuncs[*corev1.ConfigMap]{UpdateFunc: func(e event.TypedUpdateEvent[*corev1.ConfigMap]) bool {
	return e.ObjectOld.Labels[conditions.LabelPreflightRun] != e.ObjectNew.Labels[conditions.LabelPreflightRun]
}}

// Reconcile judges the runs with one run id in one namespace. There is usually one.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	now := c.clock.Now()
	if c.startedAt.IsZero() {
		c.startedAt = now
	}
	var list corev1.ConfigMapList
	if err := c.reports.List(ctx, &list, client.InNamespace(req.Namespace), client.MatchingFields{indexRun: req.Name},
		client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the reports of run %s: %w", req, err)
	}
	submissions, podsGone, err := c.validate(ctx, req.NamespacedName, list.Items)
	if errors.Is(err, errRateLimited) {
		return ctrl.Result{RequeueAfter: c.putOff(req.NamespacedName)}, nil
	}
	if err != nil || len(submissions) == 0 {
		delete(c.backoff, req.NamespacedName)
		return ctrl.Result{}, err
	}
	runs, refusals := assembleRuns(submissions, c.timeout)
	for _, r := range refusals {
		c.refuse(ctx, req.Namespace, r.submission, r.reason)
	}
	var requeueAfter time.Duration
	limited := false
	for _, r := range runs {
		switch {
		case !r.isDue(now):
			if wait := r.deadline.Sub(now); requeueAfter == 0 || wait < requeueAfter {
				requeueAfter = wait
			}
		case podsGone && r.deadline.Before(c.startedAt):
			// Some of its pods no longer exist, so their reports cannot be validated. An earlier process has judged the run.
		default:
			if err := c.judge(ctx, req.Namespace, r); errors.Is(err, errRateLimited) {
				limited = true
			} else if err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	if limited {
		return ctrl.Result{RequeueAfter: c.putOff(req.NamespacedName)}, nil
	}
	delete(c.backoff, req.NamespacedName)
	return ctrl.Result{RequeueAfter: requeueAfter}, nil
}

// putOff returns after what time a run is tried again whose namespace is over its rate limit.
func (c *Controller) putOff(run types.NamespacedName) time.Duration {
	c.backoff[run] = min(max(2*c.backoff[run], firstBackoff), longestBackoff)
	return c.backoff[run]
}

// runsWithNode lists the runs in which a node has reported.
func (c *Controller) runsWithNode(ctx context.Context, node client.Object) []reconcile.Request {
	var list corev1.ConfigMapList
	if err := c.reports.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to list the preflight reports of a new node; judging them at their next change",
			"node", node.GetName())
		return nil
	}
	var requests []reconcile.Request
	for i := range list.Items {
		if cm := &list.Items[i]; cm.Annotations[conditions.AnnotationPreflightNode] == node.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: runName(cm)})
		}
	}
	return requests
}

func union(a, b []string) []string {
	all := slices.Concat(a, b)
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(s string) bool { return s == "" })
}

// runName returns the namespace and the name of the run that a report is of.
func runName(cm *corev1.ConfigMap) types.NamespacedName {
	return types.NamespacedName{Namespace: cm.Namespace, Name: cm.Labels[conditions.LabelPreflightRun]}
}
