package nodes

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/remediator/evidence"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAPlaceIsTakenBeforeTheCacheShowsIt(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for _, name := range []string{"a", "b", "c", "a", "b", "c"} {
		r.reconcile(t, name)
	}
	if diff := cmp.Diff([]string{quarantine.NodeQuarantined, quarantine.QuarantineBlocked, quarantine.QuarantineBlocked}, r.reasons()); diff != "" {
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
	if diff := cmp.Diff([]string{quarantine.NodeQuarantined, quarantine.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

func TestARefusedWriteSaysNothingAndIsDecidedAgain(t *testing.T) {
	r := newRig(t, "a")
	r.client.refuse = apierrors.NewConflict(schema.GroupResource{}, "a", nil)
	if got := r.reconcile(t, "a"); got.RequeueAfter != conflictRetry {
		t.Errorf("decided again after %s", got.RequeueAfter)
	}
	if said := r.reasons(); len(said) > 0 || len(r.restarts.quarantines) > 0 {
		t.Errorf("said %q, restarted %v though nothing was written", said, r.restarts.quarantines)
	}
	r.client.refuse = nil
	r.reconcile(t, "a")
	if diff := cmp.Diff([]string{quarantine.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

func TestANodeThatIsDeletedUnderTheWriteIsLeftAlone(t *testing.T) {
	r := newRig(t, "a")
	r.client.refuse = apierrors.NewNotFound(schema.GroupResource{}, "a")
	r.reconcile(t, "a")
	if said := r.reasons(); len(said) > 0 || len(r.restarts.quarantines) > 0 {
		t.Errorf("said %q, restarted %v though nothing was written", said, r.restarts.quarantines)
	}
}

func TestJobsAreRestartedOnEveryReconcileDuringTheQuarantine(t *testing.T) {
	r := newRig(t, "a")
	for range 3 {
		r.reconcile(t, "a")
	}
	if len(r.restarts.quarantines) != 3 {
		t.Fatalf("looked %d times", len(r.restarts.quarantines))
	}
	first := r.restarts.quarantines[0]
	want := restart.Quarantine{
		ID: first.ID, Node: "a", NodeUID: "a", Reason: "GPUXidError: " + ecc, Since: r.clock.Now().UTC(),
		Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
	}
	for _, got := range r.restarts.quarantines {
		if diff := cmp.Diff(want, got); diff != "" || got.ID == "" {
			t.Error(diff)
		}
	}

	r.restarts.after = time.Millisecond
	if got := r.reconcile(t, "a"); got.RequeueAfter != time.Millisecond {
		t.Errorf("a job that waits for a millisecond is looked at again after %s", got.RequeueAfter)
	}

	broken := errors.New("no pods today")
	r.restarts.err = broken
	result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}})
	if !errors.Is(err, broken) || result.RequeueAfter != 0 {
		t.Errorf("a failed look is not tried again when the queue says: after %s, %v", result.RequeueAfter, err)
	}
}

func TestAFinishedDeliveryWaitsBehindChanges(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request](t.Name())
	defer queue.ShutDown()
	finished := reconcile.Request{NamespacedName: types.NamespacedName{Name: "finished"}}
	changed := reconcile.Request{NamespacedName: types.NamespacedName{Name: "changed"}}
	whenIdle.Generic(t.Context(), event.GenericEvent{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "finished"}}}, queue)
	queue.Add(changed)
	for _, want := range []reconcile.Request{changed, finished} {
		if got, _ := queue.Get(); got != want {
			t.Errorf("%s comes before %s", got, want)
		}
	}
}

func TestALongEventIsCut(t *testing.T) {
	const limit = 1024 // of the API server
	r := newRig(t)
	r.emitClusterEvent(t.Context(), quarantine.Event{Type: corev1.EventTypeWarning, Reason: quarantine.PolicyInvalid, Message: strings.Repeat("é", limit)})
	said := strings.TrimPrefix(<-r.recorder.Events, corev1.EventTypeWarning+" "+quarantine.PolicyInvalid+" ")
	if len(said) > limit || len(said) < limit-1 || !utf8.ValidString(said) {
		t.Errorf("%d bytes: %q", len(said), said)
	}
}

func TestADryRunRestartsNoJobs(t *testing.T) {
	r := newRig(t, "a")
	r.dryRun, r.pending.dryRun, r.breaker.dryRun = true, true, true
	r.evidence = evidence.New(r.client, r.client, evidence.Options{DryRun: true})
	for range 2 {
		r.reconcile(t, "a")
	}
	if len(r.restarts.quarantines) > 0 || len(r.client.patched) > 0 || len(r.client.created) > 0 {
		t.Errorf("restarted %v, patched %v, created %v", r.restarts.quarantines, r.client.patched, r.client.created)
	}
	if diff := cmp.Diff([]string{quarantine.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}
