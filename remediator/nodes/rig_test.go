package nodes

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/aws"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/evidence"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/maintenance"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/soperator"
	"github.com/pitcrew-dev/pitcrew/remediator/followers/webhooks"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/burst"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/report"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/tally"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

const testPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      restartJobs: true
    disk:
      match: {condition: DiskFailing, repair: [Replace]}
      for: 1m
    slow-node:
      match: {condition: SlowNode, repair: [Inspect]}
      taint: {effect: PreferNoSchedule}
`

const (
	lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"
	ecc  = "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error"
)

// laggard is a client whose cache never shows what was written. How a real one lags cannot be arranged.
type laggard struct {
	client.Client
	nodes   []corev1.Node
	patched []string
	created []*corev1.ConfigMap
	refuse  error
	// locks has a write over an old version refused.
	locks bool
	// unanswered is what a write gets instead of its answer; it reaches the API server all the same if arrives is set.
	unanswered error
	arrives    bool
	// down is the answer to live reads while the API server cannot be reached.
	down error
	// pauses is called when the pause is read live, and reports whether there is one; nil: there is none.
	pauses func() (bool, error)
	// live are the nodes as the API server has them, as far as they were written.
	live map[string]*corev1.Node
}

// liveReads reads from the API server and not from the cache.
type liveReads struct{ *laggard }

func (l liveReads) Get(ctx context.Context, key client.ObjectKey, object client.Object, opts ...client.GetOption) error {
	if key.Name == conditions.PauseConfigMap && l.pauses != nil {
		if paused, err := l.pauses(); paused || err != nil {
			return err
		}
	}
	if l.down != nil && key.Name != conditions.PauseConfigMap {
		return l.down
	}
	if n, ok := l.live[key.Name]; ok {
		n.DeepCopyInto(object.(*corev1.Node))
		return nil
	}
	return l.laggard.Get(ctx, key, object, opts...)
}

func (l *laggard) Get(_ context.Context, key client.ObjectKey, object client.Object, _ ...client.GetOption) error {
	n, ok := object.(*corev1.Node)
	i := slices.IndexFunc(l.nodes, func(n corev1.Node) bool { return n.Name == key.Name })
	if !ok || i < 0 {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	l.nodes[i].DeepCopyInto(n)
	return nil
}

func (l *laggard) Create(_ context.Context, object client.Object, _ ...client.CreateOption) error {
	l.created = append(l.created, object.(*corev1.ConfigMap))
	return nil
}

func (l *laggard) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	list.(*corev1.NodeList).Items = slices.Clone(l.nodes)
	return nil
}

func (l *laggard) Patch(_ context.Context, object client.Object, _ client.Patch, _ ...client.PatchOption) error {
	if l.refuse != nil {
		return l.refuse
	}
	n, isNode := object.(*corev1.Node)
	if isNode && l.locks && l.live[n.Name] != nil && l.live[n.Name].ResourceVersion != n.ResourceVersion {
		return apierrors.NewConflict(schema.GroupResource{}, n.Name, nil)
	}
	if isNode && (l.unanswered == nil || l.arrives) {
		if l.live == nil {
			l.live = map[string]*corev1.Node{}
		}
		l.live[n.Name] = n.DeepCopy()
		l.live[n.Name].ResourceVersion += "+"
	}
	if l.unanswered != nil {
		return l.unanswered
	}
	l.patched = append(l.patched, object.GetName())
	return nil
}

// restarts records the quarantines whose jobs were to be restarted.
type restarts struct {
	quarantines []restart.Trigger
	after       time.Duration
	err         error
}

func (r *restarts) RestartJobsOnNode(_ context.Context, q restart.Trigger) (time.Duration, error) {
	r.quarantines = append(r.quarantines, q)
	return r.after, r.err
}

type rig struct {
	*Controller
	names    []string
	client   *laggard
	clock    *clocktesting.FakePassiveClock
	restarts *restarts
	recorder *events.FakeRecorder
}

// newRig makes a controller of nodes with a fault, all at the same moment.
func newRig(t testing.TB, names ...string) rig {
	t.Helper()
	p, err := policy.Parse([]byte(testPolicy))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	r := rig{names: names, client: &laggard{}, clock: clocktesting.NewFakePassiveClock(now), restarts: &restarts{}, recorder: events.NewFakeRecorder(100)}
	for _, name := range names {
		r.client.nodes = append(r.client.nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Status: corev1.NodeStatus{
				NodeInfo: corev1.NodeSystemInfo{BootID: "boot-1"},
				Conditions: []corev1.NodeCondition{{
					Type: "GPUXidError", Status: corev1.ConditionTrue, Message: ecc,
					LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
				}},
			},
		})
	}
	r.Controller = &Controller{
		client: r.client, apiReader: liveReads{r.client}, policy: policy.Fixed(p), clock: r.clock, jobs: r.restarts,
		report: newReporter(r.recorder, r.clock), breaker: memory.NewBreaker(memory.Options{Client: r.client, Reader: r.client, Clock: r.clock}),
		evidence: evidence.New(r.client, r.client, evidence.Options{Namespace: conditions.EvidenceNamespace, Clock: r.clock}),
		pending:  newWrites(false), seen: map[string]seen.Seen{}, looks: looks{byNode: map[string]look{}},
		burst: burst.New(nil), tally: tally.New(), soperator: soperator.New(r.client, liveReads{r.client}, r.clock), aws: aws.New(r.client, liveReads{r.client}, r.clock),
		repaired: maintenance.New(r.client, liveReads{r.client}, nil, r.clock),
	}
	r.fleet = newFleet(r.Controller)
	if r.webhooks, err = webhooks.New(r.policy, r.clock, func(context.Context, string) {}, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	return r
}

// newReporter makes a reporter of Events in a namespace.
func newReporter(recorder events.EventRecorder, c clock.PassiveClock) *report.Reporter {
	return &report.Reporter{Recorder: recorder, Namespace: "pitcrew", Clock: c, Metrics: report.NewMetrics()}
}

// keeps has the controller remember in another API server, or in a dry run.
func (r rig) keeps(o memory.Options) {
	o.Clock = r.clock
	r.breaker, r.dryRun, r.pending.DryRun, r.report.DryRun = memory.NewBreaker(o), o.DryRun, o.DryRun, o.DryRun
	r.fleet = newFleet(r.Controller)
}

func (r rig) findRetries(ctx context.Context) ([]string, error) {
	return (&waker{Controller: r.Controller}).findRetries(ctx)
}

// Reconcile is [Controller.Reconcile] after the cache has told what has become of all nodes.
func (r rig) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	for _, name := range r.names {
		r.pending.Touch(name)
	}
	return r.Controller.Reconcile(ctx, req)
}

func (r rig) reconcile(t *testing.T, name string) ctrl.Result {
	t.Helper()
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: name}})
	if err != nil {
		t.Fatal(err)
	}
	return result
}

// reasons lists the Events so far.
func (r rig) reasons() []string {
	var reasons []string
	for len(r.recorder.Events) > 0 {
		reasons = append(reasons, strings.Fields(<-r.recorder.Events)[1])
	}
	return reasons
}
