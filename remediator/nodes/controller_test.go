package nodes

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/controller/priorityqueue"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/remediator/followers/evidence"
	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAPlaceIsTakenBeforeTheCacheShowsIt(t *testing.T) {
	r := newRig(t, "a", "b", "c")
	for _, name := range []string{"a", "b", "c", "a", "b", "c"} {
		r.reconcile(t, name)
	}
	if diff := cmp.Diff([]string{causes.NodeQuarantined, causes.QuarantineBlocked, causes.QuarantineBlocked}, r.reasons()); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"a", "b", "c"}, r.client.patched); diff != "" {
		t.Errorf("each node is written once: %s", diff)
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
	if diff := cmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" {
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

// looksOf reconciles a node, and returns at how many of its quarantines the jobs were looked at.
func (r rig) looksOf(t *testing.T, name string) int {
	t.Helper()
	before := len(r.restarts.quarantines)
	r.reconcile(t, name)
	return len(r.restarts.quarantines) - before
}

func TestJobsAreLookedAtWhenADecisionIsNewOrALookIsDue(t *testing.T) {
	r := newRig(t, "a")
	start := r.clock.Now()
	for _, test := range []struct {
		after time.Duration
		want  int
	}{
		{0, 1}, {0, 1}, // before the taint, and with it
		{0, 0}, {time.Second, 0},
		{2 * time.Second, 1}, {3 * time.Second, 0}, {15 * time.Second, 1}, {time.Minute, 1}, // a pod may have been bound before the scheduler saw the taint
		{2 * time.Minute, 0}, {5 * time.Minute, 0}, {time.Minute + lookLate, 1}, {time.Minute + lookLate, 0},
	} {
		r.clock.SetTime(start.Add(test.after))
		r.client.nodes[0].Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(r.clock.Now())
		if got := r.looksOf(t, "a"); got != test.want {
			t.Errorf("after %s: looked %d times, want %d", test.after, got, test.want)
		}
	}
	first := r.restarts.quarantines[0]
	want := restart.Trigger{
		Kind: restart.NodeQuarantined, ID: first.ID, Node: "a", NodeUID: "a", Reason: "GPUXidError: " + ecc, Since: start.UTC(),
		Taint: corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule},
	}
	for _, got := range r.restarts.quarantines {
		if diff := cmp.Diff(want, got); diff != "" || got.ID == "" {
			t.Error(diff)
		}
	}
	r.policy = policy.Fixed(new(*r.policy.Policy()))
	if r.looksOf(t, "a") != 1 || r.looksOf(t, "a") != 0 {
		t.Error("another policy may restart other jobs")
	}
}

// A quarantine whose taint was missing for a while may have pods that came meanwhile. A look that fails then is made again.
func TestJobsAreLookedAtWhenTheTaintIsPutBack(t *testing.T) {
	for _, broken := range []error{nil, errors.New("no pods today")} {
		r := newRig(t, "a")
		r.reconcile(t, "a")
		r.client.nodes[0] = *r.client.live["a"].DeepCopy()
		if r.looksOf(t, "a") != 1 || r.looksOf(t, "a") != 0 {
			t.Fatal("the first looks")
		}
		r.client.nodes[0].Spec.Taints, r.client.nodes[0].ResourceVersion = nil, "9"
		if r.restarts.err = broken; broken == nil {
			if r.looksOf(t, "a") != 1 {
				t.Error("not looked at")
			}
			continue
		}
		r.fails(t, "a", broken)
		r.restarts.err, r.client.nodes[0] = nil, *r.client.live["a"].DeepCopy()
		if r.looksOf(t, "a") != 1 || r.looksOf(t, "a") != 0 {
			t.Error("after a look that failed: not looked at again")
		}
	}
}

// A clock that was ahead puts off no look for longer than one may wait.
func TestJobsAreLookedAtThoughTheClockIsPutBack(t *testing.T) {
	r := newRig(t, "a")
	start := r.clock.Now()
	r.reconcile(t, "a")
	for _, after := range []time.Duration{time.Hour, 2 * time.Minute, 2*time.Minute + lookLate} {
		r.clock.SetTime(start.Add(after))
		r.client.nodes[0].Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(r.clock.Now())
		if r.looksOf(t, "a") != 1 || r.looksOf(t, "a") != 0 {
			t.Errorf("after %s: not looked at once", after)
		}
	}
}

func TestAJobThatWaitsIsLookedAtWhenItAsks(t *testing.T) {
	r := newRig(t, "a")
	start := r.clock.Now()
	r.reconcile(t, "a")
	r.restarts.after = time.Second
	if got := r.reconcile(t, "a"); got.RequeueAfter != time.Second {
		t.Errorf("a job that waits for a second is looked at again after %s", got.RequeueAfter)
	}
	r.clock.SetTime(start.Add(400 * time.Millisecond))
	if got := r.reconcile(t, "a"); got.RequeueAfter != 600*time.Millisecond || len(r.restarts.quarantines) != 2 {
		t.Errorf("looked at again after %s, %d looks", got.RequeueAfter, len(r.restarts.quarantines))
	}
	r.clock.SetTime(start.Add(time.Second))
	if r.looksOf(t, "a") != 1 {
		t.Error("not looked at when it is due")
	}
	r.clock.SetTime(start.Add(2 * time.Second))
	broken := errors.New("no pods today")
	r.restarts.err = broken
	for range 2 {
		result, err := r.Reconcile(t.Context(), ctrl.Request{NamespacedName: types.NamespacedName{Name: "a"}})
		if !errors.Is(err, broken) || result.RequeueAfter != 0 {
			t.Errorf("a failed look is not tried again when the queue says: after %s, %v", result.RequeueAfter, err)
		}
	}
}

func TestAFinishedDeliveryWaitsBehindChanges(t *testing.T) {
	queue := priorityqueue.New[reconcile.Request](t.Name())
	defer queue.ShutDown()
	finished := reconcile.Request{NamespacedName: types.NamespacedName{Name: "finished"}}
	changed := reconcile.Request{NamespacedName: types.NamespacedName{Name: "changed"}}
	enqueueWhenIdle.Generic(t.Context(), event.GenericEvent{Object: &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "finished"}}}, queue)
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
	r.report.Warn(t.Context(), causes.PolicyInvalid, strings.Repeat("é", limit))
	said := strings.TrimPrefix(<-r.recorder.Events, corev1.EventTypeWarning+" "+causes.PolicyInvalid+" ")
	if len(said) > limit || len(said) < limit-1 || !utf8.ValidString(said) {
		t.Errorf("%d bytes: %q", len(said), said)
	}
}

func TestADryRunRestartsNoJobs(t *testing.T) {
	r := newRig(t, "a")
	r.keeps(memory.Options{Client: r.client, Reader: r.client, DryRun: true})
	r.evidence = evidence.New(r.client, r.client, evidence.Options{DryRun: true})
	for range 2 {
		r.reconcile(t, "a")
	}
	if len(r.restarts.quarantines) > 0 || len(r.client.patched) > 0 || len(r.client.created) > 0 {
		t.Errorf("restarted %v, patched %v, created %v", r.restarts.quarantines, r.client.patched, r.client.created)
	}
	if diff := cmp.Diff([]string{causes.NodeQuarantined}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

// C2: a taint of ours that no record explains is removed and reported once, in a dry run, too, and is no release of a
// quarantine to the metrics.
func TestATaintWithoutARecordIsRemovedOnce(t *testing.T) {
	for _, dryRun := range []bool{false, true} {
		r := newRig(t, "a")
		r.keeps(memory.Options{Client: r.client, Reader: r.client, DryRun: dryRun})
		r.client.nodes[0].Status.Conditions = nil
		r.client.nodes[0].Spec.Taints = []corev1.Taint{{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule}}
		for range 3 {
			r.reconcile(t, "a")
		}
		if diff := cmp.Diff([]string{causes.NodeReleased}, r.reasons()); diff != "" {
			t.Errorf("dry run %v: %s", dryRun, diff)
		}
		if got := r.client.live["a"]; !dryRun && (got == nil || len(got.Spec.Taints) > 0) {
			t.Errorf("the node became %v", got)
		}
		if dryRun && len(r.client.patched) > 0 {
			t.Errorf("a dry run wrote %v", r.client.patched)
		}
		if got := observations(t, r.report.Metrics.Quarantine); got != 0 {
			t.Errorf("dry run %v: %d releases were measured", dryRun, got)
		}
	}
}

func TestOnlyReleasesAreMeasured(t *testing.T) {
	r := newRig(t, "a")
	r.reconcile(t, "a")
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	released, err := quarantine.ReleaseManually(&r.client.nodes[0], quarantine.Manual{}, nil, r.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	released.Spec.Taints = append(released.Spec.Taints, corev1.Taint{Key: "pitcrew.dev/unhealthy", Effect: corev1.TaintEffectNoSchedule})
	r.client.nodes[0] = *released
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	r.reconcile(t, "a")
	if got := observations(t, r.report.Metrics.Quarantine); got != 0 {
		t.Errorf("%d releases were measured by the removal of a taint", got)
	}
	r = newRig(t, "a")
	r.policy.Policy().Rules[1].ClearAfter = 0
	r.reconcile(t, "a")
	r.clock.SetTime(r.clock.Now().Add(time.Minute))
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	r.client.nodes[0].Status.Conditions[0].Status = corev1.ConditionFalse
	r.reconcile(t, "a")
	if got := observations(t, r.report.Metrics.Quarantine); got != 1 {
		t.Errorf("%d releases were measured, and there was one", got)
	}
	if diff := cmp.Diff([]string{causes.NodeQuarantined, causes.NodeReleased}, r.reasons()); diff != "" {
		t.Error(diff)
	}
}

// observations counts what a histogram has measured.
func observations(t *testing.T, h prometheus.Histogram) uint64 {
	t.Helper()
	var m dto.Metric
	if err := h.Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetHistogram().GetSampleCount()
}

func TestANodeIsDecidedAsTheCacheShowsItThen(t *testing.T) {
	r := newRig(t, "a", "b")
	before := r.client.nodes[0].DeepCopy()
	r.reconcile(t, "a")
	r.client.nodes[0] = *r.client.live["a"]
	r.reconcile(t, "b") // sees the write of a in the cache, so it is pending no more
	d, err := r.decide(t.Context(), basis{policy: r.policy.Policy()}, before, r.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	if d.Changes(before) || before.ResourceVersion != r.client.nodes[0].ResourceVersion {
		t.Errorf("node a is decided anew by version %q, the cache shows %q", before.ResourceVersion, r.client.nodes[0].ResourceVersion)
	}
}
