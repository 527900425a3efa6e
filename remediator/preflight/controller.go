// Package preflight turns the report ConfigMaps of preflight runs into the NodeConditions PreflightFailed and SlowNode.
// From there on the policy decides, as for every other condition.
//
// Everything follows from the ConfigMaps and the Nodes: a restart, or another leader, reads them again, comes to the
// same verdicts and finds that they stand.
package preflight

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/flowcontrol"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/reportconfigmap"
)

// Reasons of Events; they are part of the contract with users.
const (
	Refused    = "PreflightRefused"
	Incomplete = "PreflightIncomplete"
	Verdict    = "PreflightVerdict"
)

// fieldOwner is whose the conditions are in managed fields.
const fieldOwner = "pitcrew-preflight"

// indexRun and indexPod find report ConfigMaps by their run and by the pod that they say they are of.
const (
	indexRun = "pitcrew.run"
	indexPod = "pitcrew.pod"
)

// Options configure a [Controller].
type Options struct {
	// Namespaces hold reports; the remediator needs the Role of manifests/preflight in each of them. In Trusted ones only
	// the cluster's admins run pods.
	Namespaces, Trusted []string
	// Timeout is how long after the first report of a run the others may come.
	Timeout time.Duration
	// TTL is how long a verdict stands that no run repeats.
	TTL time.Duration
	// LeafLabel is the Node label that names its rack or leaf switch; empty: no topology.
	LeafLabel string
	// DryRun judges and says, but writes no Node.
	DryRun bool
	Events events.EventRecorder
	Now    func() time.Time
}

// Controller reconciles preflight runs: a request is a namespace and a run id.
type Controller struct {
	Options
	// nodes reads Nodes from the manager's cache and patches them, live reads pods and jobs from the API server, reports
	// is the cache of report ConfigMaps.
	nodes   client.Client
	live    client.Reader
	reports client.Reader
	judged  *prometheus.CounterVec
	// began is the first look of this process.
	began time.Time
	// known, told and written decide nothing: they spare requests and repeated Events.
	known   map[types.NamespacedName]map[types.UID]look
	told    map[types.UID]string
	written map[types.UID]string
	// limits of each namespace, and how long runs beyond them have waited last.
	limits map[string]limits
	waited map[types.NamespacedName]time.Duration
}

// limits keep a flood of reports in one namespace from holding up the others, and from becoming one of Events.
type limits struct{ looks, words flowcontrol.RateLimiter }

const (
	// A look asks the API server about a pod and its job: the largest run takes a minute, and a flood half of the time.
	looksPerSecond, looksAtOnce = 150, 500
	// A run that has to wait for its namespace's share waits longer each time: thousands of them must not fill the queue.
	firstWait, longestWait = time.Second, time.Minute
	// A refusal that is not said for this limit is said when the run is looked at again.
	wordsPerSecond, wordsAtOnce = 0.5, 50
)

func (c *Controller) limitsOf(namespace string) limits {
	l, ok := c.limits[namespace]
	if !ok {
		l = limits{flowcontrol.NewTokenBucketRateLimiter(looksPerSecond, looksAtOnce), flowcontrol.NewTokenBucketRateLimiter(wordsPerSecond, wordsAtOnce)}
		c.limits[namespace] = l
	}
	return l
}

// SetupWithManager registers the controller, its metrics and its own cache of ConfigMaps, which holds nothing but
// reports of the listed namespaces: the manager's cache must stay free of them. Without namespaces it does nothing.
func SetupWithManager(ctx context.Context, mgr ctrl.Manager, registry prometheus.Registerer, o Options) error {
	o.Namespaces = union(o.Namespaces, o.Trusted)
	if len(o.Namespaces) == 0 {
		return nil
	}
	only := cache.Config{LabelSelector: labels.SelectorFromSet(labels.Set{conditions.LabelPreflight: "report"})}
	namespaces := map[string]cache.Config{}
	for _, ns := range o.Namespaces {
		namespaces[ns] = only
	}
	reports, err := cache.New(mgr.GetConfig(), cache.Options{
		Scheme:                      mgr.GetScheme(),
		Mapper:                      mgr.GetRESTMapper(),
		HTTPClient:                  mgr.GetHTTPClient(),
		ReaderFailOnMissingInformer: true,
		ByObject:                    map[client.Object]cache.ByObject{&corev1.ConfigMap{}: {Namespaces: namespaces, Transform: slim}},
	})
	if err != nil {
		return fmt.Errorf("make the cache of preflight reports: %w", err)
	}
	for name, of := range map[string]client.IndexerFunc{indexRun: runOf, indexPod: podOf} {
		if err := reports.IndexField(ctx, &corev1.ConfigMap{}, name, of); err != nil {
			return fmt.Errorf("index preflight reports: %w", err)
		}
	}
	if err := mgr.Add(reports); err != nil {
		return fmt.Errorf("add the cache of preflight reports: %w", err)
	}
	c := &Controller{
		Options: o,
		nodes:   mgr.GetClient(),
		live:    mgr.GetAPIReader(),
		reports: reports,
		judged: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "pitcrew_preflight_runs_total",
			Help: "Preflight runs judged, by what came of them: clean, slow, failed, fabric or undecided.",
		}, []string{"result"}),
		known:   map[types.NamespacedName]map[types.UID]look{},
		told:    map[types.UID]string{},
		written: map[types.UID]string{},
		limits:  map[string]limits{},
		waited:  map[types.NamespacedName]time.Duration{},
	}
	slow := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "pitcrew_slow_nodes", Help: "Nodes whose condition SlowNode is True.",
	}, c.countSlow)
	for _, m := range []prometheus.Collector{c.judged, slow} {
		if err := registry.Register(m); err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	if err := ctrl.NewControllerManagedBy(mgr).
		Named("preflight").
		WatchesRawSource(source.Kind(reports, &corev1.ConfigMap{}, handler.TypedEnqueueRequestsFromMapFunc(
			func(_ context.Context, cm *corev1.ConfigMap) []reconcile.Request {
				return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: cm.Namespace, Name: cm.Labels[conditions.LabelPreflightRun]}}}
			}),
			// A report never changes, but for what we write on it.
			predicate.TypedFuncs[*corev1.ConfigMap]{UpdateFunc: func(event.TypedUpdateEvent[*corev1.ConfigMap]) bool { return false }})).
		// A node that was deleted and came back has lost its conditions.
		Watches(&corev1.Node{}, handler.EnqueueRequestsFromMapFunc(c.runsWith), builder.WithPredicates(predicate.Funcs{
			UpdateFunc: func(event.UpdateEvent) bool { return false },
			DeleteFunc: func(event.DeleteEvent) bool { return false },
		})).
		WithOptions(controller.Options{MaxConcurrentReconciles: 1}). // two runs may name one node
		Complete(c); err != nil {
		return fmt.Errorf("add the controller of preflight reports: %w", err)
	}
	return c.setupExpiry(mgr)
}

// slim keeps of a ConfigMap what a report may have: whoever may create some cannot fill the memory with large ones.
func slim(object any) (any, error) {
	cm, ok := object.(*corev1.ConfigMap)
	if !ok {
		return object, nil
	}
	cm.ManagedFields = nil
	maps.DeleteFunc(cm.Annotations, func(key, _ string) bool { return !strings.HasPrefix(key, conditions.Domain+"/") })
	text := cm.Data[reportconfigmap.Key]
	if len(cm.Data) != 1 || len(cm.BinaryData) > 0 || text == "" {
		cm.Data, cm.BinaryData = nil, nil // no report
	} else if len(text) > report.MaxBytes {
		cm.Data[reportconfigmap.Key] = strings.Clone(text[:report.MaxBytes+1])
	}
	return cm, nil
}

func runOf(object client.Object) []string {
	return []string{object.GetLabels()[conditions.LabelPreflightRun]}
}

func podOf(object client.Object) []string {
	return []string{object.GetAnnotations()[conditions.AnnotationPreflightPodUID]}
}

// Reconcile judges the runs of one run id in one namespace: usually one.
func (c *Controller) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	now := c.Now()
	if c.began.IsZero() {
		c.began = now
	}
	var list corev1.ConfigMapList
	if err := c.reports.List(ctx, &list, client.InNamespace(req.Namespace), client.MatchingFields{indexRun: req.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return ctrl.Result{}, fmt.Errorf("list the reports of run %s: %w", req, err)
	}
	filings, over, err := c.look(ctx, req.NamespacedName, list.Items)
	if errors.Is(err, errTooMany) {
		c.waited[req.NamespacedName] = min(max(2*c.waited[req.NamespacedName], firstWait), longestWait)
		return ctrl.Result{RequeueAfter: c.waited[req.NamespacedName]}, nil
	}
	delete(c.waited, req.NamespacedName)
	if err != nil || len(filings) == 0 {
		return ctrl.Result{}, err
	}
	runs, refused := assemble(filings, c.Timeout)
	for _, r := range refused {
		c.refuse(ctx, req.Namespace, r.filing, r.why)
	}
	var again time.Duration
	for _, r := range runs {
		switch {
		case !r.due(now):
			if wait := r.deadline.Sub(now); again == 0 || wait < again {
				again = wait
			}
		case over && r.deadline.Before(c.began):
			// Pods of it are gone and can no longer vouch for their reports. It was judged when they were there.
		default:
			if err := c.judge(ctx, req.Namespace, r); err != nil {
				return ctrl.Result{}, err
			}
		}
	}
	return ctrl.Result{RequeueAfter: again}, nil
}
