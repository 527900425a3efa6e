package node

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/webhook"
)

// laggard is a client whose cache never shows what was written. How a real one lags cannot be arranged.
type laggard struct {
	client.Client
	nodes   []corev1.Node
	patched []string
	created []*corev1.ConfigMap
	refuse  error
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
	l.patched = append(l.patched, object.GetName())
	return nil
}

// swept records the quarantines whose jobs were looked at.
type swept struct {
	quarantines []restart.Quarantine
	again       time.Duration
	err         error
}

func (s *swept) RestartJobsOnNode(_ context.Context, q restart.Quarantine) (time.Duration, error) {
	s.quarantines = append(s.quarantines, q)
	return s.again, s.err
}

type rig struct {
	*Controller
	client *laggard
	swept  *swept
	said   *events.FakeRecorder
}

// newRig makes a controller of nodes with a fault, all at the same moment.
func newRig(t *testing.T, names ...string) rig {
	t.Helper()
	w := newWorld(t)
	gpu(ecc)(w)
	r := rig{client: &laggard{}, swept: &swept{}, said: events.NewFakeRecorder(100)}
	for _, name := range names {
		n := *w.node.DeepCopy()
		n.Name, n.UID = name, types.UID(name)
		r.client.nodes = append(r.client.nodes, n)
	}
	r.Controller = &Controller{
		client: r.client, reader: r.client, policy: policy.Fixed(w.policy), summaries: map[string]summary{}, events: r.said, jobs: r.swept, metrics: newMetrics(),
		now:    func() time.Time { return w.now },
		memory: memory{written: map[string]written{}, said: map[string]Blocked{}, kept: map[string]string{}},
	}
	var err error
	if r.webhooks, err = webhook.New(r.policy, r.now, func(context.Context, string) {}, prometheus.NewRegistry()); err != nil {
		t.Fatal(err)
	}
	return r
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
	for len(r.said.Events) > 0 {
		reasons = append(reasons, strings.Fields(<-r.said.Events)[1])
	}
	return reasons
}

func TestAPlaceIsTakenBeforeTheCacheShowsIt(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for _, name := range []string{"a", "b", "c", "a", "b", "c"} {
		r.reconcile(t, name)
	}
	if diff := cmp.Diff([]string{NodeQuarantined, QuarantineBlocked, QuarantineBlocked}, r.reasons()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, r.client.patched); diff != "" {
		t.Errorf("each node is written once: %s", diff)
	}
}

func TestADeletedNodeFreesItsPlace(t *testing.T) {
	r := newRig(t, "a", "b")
	r.reconcile(t, "a")
	r.client.nodes = r.client.nodes[1:]
	r.reconcile(t, "a")
	r.reconcile(t, "b")
	if diff := cmp.Diff([]string{NodeQuarantined, NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

func TestARefusedWriteSaysNothingAndIsDecidedAgain(t *testing.T) {
	r := newRig(t, "a")
	r.client.refuse = apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	if got := r.reconcile(t, "a"); got.RequeueAfter != reread {
		t.Errorf("decided again after %s", got.RequeueAfter)
	}
	if said := r.reasons(); len(said) > 0 || len(r.swept.quarantines) > 0 {
		t.Errorf("said %q, swept %v though nothing was written", said, r.swept.quarantines)
	}
	r.client.refuse = nil
	r.reconcile(t, "a")
	if diff := cmp.Diff([]string{NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

func TestANodeThatIsDeletedUnderTheWriteIsLeftAlone(t *testing.T) {
	r := newRig(t, "a")
	r.client.refuse = apierrors.NewNotFound(schema.GroupResource{}, "a")
	r.reconcile(t, "a")
	if said := r.reasons(); len(said) > 0 || len(r.swept.quarantines) > 0 {
		t.Errorf("said %q, swept %v though nothing was written", said, r.swept.quarantines)
	}
}

func TestJobsAreLookedAtOnEveryReconcileWhileTheQuarantineStands(t *testing.T) {
	r := newRig(t, "a")
	for range 3 {
		r.reconcile(t, "a")
	}
	if len(r.swept.quarantines) != 3 {
		t.Fatalf("looked %d times", len(r.swept.quarantines))
	}
	first := r.swept.quarantines[0]
	want := restart.Quarantine{
		ID: first.ID, Node: "a", NodeUID: "a", Reason: "GPUXidError: " + ecc, Since: r.now().UTC(),
		Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
	}
	for _, got := range r.swept.quarantines {
		if diff := cmp.Diff(want, got); diff != "" || got.ID == "" {
			t.Error(diff)
		}
	}

	r.swept.again = time.Millisecond
	if got := r.reconcile(t, "a"); got.RequeueAfter != time.Millisecond {
		t.Errorf("a job that waits for a millisecond is looked at again after %s", got.RequeueAfter)
	}

	broken := errors.New("no pods today")
	r.swept.err = broken
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}})
	if !errors.Is(err, broken) || result.RequeueAfter != 0 {
		t.Errorf("a failed look is not tried again when the queue says: after %s, %v", result.RequeueAfter, err)
	}
}

func TestWhatAWebhookWasToldWaitsBehindChanges(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request](t.Name())
	defer queue.ShutDown()
	told := reconcile.Request{NamespacedName: types.NamespacedName{Name: "told"}}
	changed := reconcile.Request{NamespacedName: types.NamespacedName{Name: "changed"}}
	whenIdle.Generic(t.Context(), event.GenericEvent{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "told"}}}, queue)
	queue.Add(changed)
	for _, want := range []reconcile.Request{changed, told} {
		if got, _ := queue.Get(); got != want {
			t.Errorf("%s comes before %s", got, want)
		}
	}
}

func TestALongEventIsCut(t *testing.T) {
	const limit = 1024 // of the API server
	r := newRig(t)
	r.announce(t.Context(), Event{corev1.EventTypeWarning, PolicyInvalid, strings.Repeat("é", limit)})
	said := strings.TrimPrefix(<-r.said.Events, corev1.EventTypeWarning+" "+PolicyInvalid+" ")
	if len(said) > limit || len(said) < limit-1 || !utf8.ValidString(said) {
		t.Errorf("%d bytes: %q", len(said), said)
	}
}

func TestADryRunLooksAtNoJobs(t *testing.T) {
	r := newRig(t, "a")
	r.dryRun, r.memory.dryRun = true, true
	for range 2 {
		r.reconcile(t, "a")
	}
	if len(r.swept.quarantines) > 0 || len(r.client.patched) > 0 {
		t.Errorf("swept %v, patched %v", r.swept.quarantines, r.client.patched)
	}
	if diff := cmp.Diff([]string{NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}
