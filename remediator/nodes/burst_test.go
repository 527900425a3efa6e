package nodes

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/pitcrew-dev/pitcrew/remediator/nodes/burst"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestTaintsComeBeforeJobsAndEvidence(t *testing.T) {
	r := newRig(t, "a", "b")
	r.policy.Policy().Budget.MaxNodes = 2
	healthy := r.client.nodes[1].DeepCopy()
	healthy.Status.Conditions[0].Status = corev1.ConditionFalse
	told := r.follow(t.Context())
	told.Update(event.UpdateEvent{ObjectOld: healthy, ObjectNew: &r.client.nodes[1]})

	result := r.reconcile(t, "a")
	if !slices.Equal(r.client.patched, []string{"a"}) || len(r.restarts.quarantines)+len(r.client.created) > 0 {
		t.Errorf("while node b waits, the nodes %v were written, %d jobs restarted and %d ConfigMaps created", r.client.patched, len(r.restarts.quarantines), len(r.client.created))
	}
	if result.RequeueAfter != burst.AfterTaints || *result.Priority != 0 {
		t.Errorf("the jobs of node a are looked at after %v with priority %d", result.RequeueAfter, *result.Priority)
	}
	told.Update(event.UpdateEvent{ObjectOld: &r.client.nodes[1], ObjectNew: &r.client.nodes[1]}) // a heartbeat
	r.reconcile(t, "b")
	r.reconcile(t, "a")
	if n := len(r.restarts.quarantines); n != 2 || len(r.client.created) != 2 {
		t.Errorf("the jobs of %d nodes were restarted, the evidence of %d kept", n, len(r.client.created))
	}
}

// whileOthersChange reconciles node a each time it asks for it, while node b changes all the time, until its evidence is kept. It returns how
// long after the first time its jobs were looked at and its evidence was kept.
func whileOthersChange(t *testing.T, r rig) (jobs, evidence time.Duration) {
	told := r.follow(t.Context())
	changing := func() reconcile.Result {
		told.Create(event.CreateEvent{Object: &r.client.nodes[1]})
		return r.reconcile(t, "a")
	}
	begun, jobs := r.clock.Now(), -1
	for result := changing(); ; result = changing() {
		waited := r.clock.Since(begun)
		if jobs < 0 && len(r.restarts.quarantines) > 0 {
			jobs = waited
		}
		if len(r.client.created) > 0 {
			return jobs, waited
		}
		if result.RequeueAfter <= 0 || *result.Priority != 0 || waited > time.Hour {
			t.Fatalf("after %v the node is reconciled again after %v with priority %d", waited, result.RequeueAfter, *result.Priority)
		}
		r.clock.SetTime(r.clock.Now().Add(result.RequeueAfter))
	}
}

func TestJobsAndEvidenceWaitForTaintsABoundedTime(t *testing.T) {
	noExecute := corev1.Taint{Key: "example.com/drain", Effect: corev1.TaintEffectNoExecute}
	for name, test := range map[string]struct {
		rule func(*policy.Rule)
		want time.Duration
	}{
		"no pod is deleted":              {func(*policy.Rule) {}, burst.JobsWait},
		"the taint deletes pods":         {func(rule *policy.Rule) { rule.Taint.Effect = corev1.TaintEffectNoExecute }, 0},
		"a taint beside it deletes pods": {func(rule *policy.Rule) { rule.HandOff.Taints = []corev1.Taint{noExecute} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "a", "b")
			for i := range r.policy.Policy().Rules {
				test.rule(&r.policy.Policy().Rules[i])
			}
			if jobs, evidence := whileOthersChange(t, r); jobs != test.want || evidence != burst.EvidenceWait {
				t.Errorf("the jobs are looked at after %v, want %v; the evidence is kept after %v, want %v", jobs, test.want, evidence, burst.EvidenceWait)
			}
		})
	}
}

// The next leader has not postponed anything: it waits for the taints of others only for a quarantine that has just begun.
func TestTheNextLeaderPostponesNoOldQuarantine(t *testing.T) {
	r := newRig(t, "a", "b")
	r.reconcile(t, "a")
	r.client.nodes[0] = *r.client.live["a"]
	next := newRig(t, "a", "b")
	next.client.nodes[0] = *r.client.live["a"]
	next.clock.SetTime(r.clock.Now().Add(burst.EvidenceWait))
	if jobs, evidence := whileOthersChange(t, next); jobs != 0 || evidence != 0 {
		t.Errorf("it looks at the jobs after %v, and keeps the evidence after %v", jobs, evidence)
	}
}

// restartsDuring does something while the jobs of a node are being restarted.
type restartsDuring struct {
	*restarts
	node   string
	during func()
}

func (r *restartsDuring) RestartJobsOnNode(ctx context.Context, q restart.Trigger) (time.Duration, error) {
	if during := r.during; q.Node == r.node && during != nil {
		r.during = nil
		during()
	}
	return r.restarts.RestartJobsOnNode(ctx, q)
}

// The cache always shows the taint of a node while its jobs are being restarted. That may take half a minute, with a webhook that hangs.
func TestASlowRestartOnOneNodeHoldsUpNoOther(t *testing.T) {
	r := newRig(t, "a", "b")
	r.policy.Policy().Budget.MaxNodes = 2
	told := r.follow(t.Context())
	r.jobs = &restartsDuring{r.restarts, "b", func() {
		tainted := r.client.nodes[1].DeepCopy()
		tainted.Spec.Taints = []corev1.Taint{{Key: "pitcrew.dev/unhealthy", Effect: corev1.TaintEffectNoSchedule}}
		told.Update(event.UpdateEvent{ObjectOld: &r.client.nodes[1], ObjectNew: tainted})
		r.reconcile(t, "a")
		if q := r.restarts.quarantines; len(q) != 1 || q[0].Node != "a" || len(r.client.created) != 1 {
			t.Errorf("while the restart on node b takes its time, the restarts are %v, and the evidence of %d nodes is kept", q, len(r.client.created))
		}
	}}
	r.reconcile(t, "b")
	if n := len(r.restarts.quarantines); n != 2 {
		t.Errorf("the jobs of %d nodes were restarted", n)
	}
}

// atOnce reports how many of some nodes have their jobs looked at by the same time, if each restart lasts until all have been reconciled, and
// node "other" changes all the time. The nodes were quarantined some time before.
func atOnce(t *testing.T, after time.Duration, names ...string) int {
	t.Helper()
	r := newRig(t, append(names, "other")...)
	r.policy.Policy().Budget.MaxNodes = len(names) + 1
	told := r.follow(t.Context())
	other := event.CreateEvent{Object: &r.client.nodes[len(names)]}
	for _, name := range names {
		told.Create(other)
		r.reconcile(t, name)
	}
	r.clock.SetTime(r.clock.Now().Add(after))
	looked, next := 0, 0
	var reconcileNext func()
	r.jobs = restarterFunc(func() { looked++; reconcileNext() })
	reconcileNext = func() {
		for next < len(names) {
			name := names[next]
			next++
			told.Create(other)
			r.reconcile(t, name)
		}
	}
	reconcileNext()
	return looked
}

type restarterFunc func()

func (f restarterFunc) RestartJobsOnNode(context.Context, restart.Trigger) (time.Duration, error) {
	f()
	return 0, nil
}

func TestTheJobsOfFewNodesAreLookedAtBetweenTaints(t *testing.T) {
	for _, test := range []struct {
		after time.Duration
		want  int
	}{
		{burst.JobsWait - 1, 0},
		{burst.JobsWait, burst.LooksBetween},
		{burst.JobsLatest - 1, burst.LooksBetween},
		{burst.JobsLatest, 4},
	} {
		if got := atOnce(t, test.after, "a", "b", "c", "d"); got != test.want {
			t.Errorf("after %v the jobs of %d of 4 nodes are looked at, want %d", test.after, got, test.want)
		}
	}
}

// Until a time that was said, nothing is decided about a node that has not changed.
func TestAPostponedNodeIsDecidedOnce(t *testing.T) {
	r := newRig(t, "a", "b")
	told := r.follow(t.Context())
	changes := func(i int) { told.Create(event.CreateEvent{Object: &r.client.nodes[i]}) }
	changes(1)
	first := r.reconcile(t, "a")
	r.policy.Policy().Budget.MaxNodes = 2
	r.clock.SetTime(r.clock.Now().Add(first.RequeueAfter / 2))
	delete(r.seen, "a") // each decision notes what it has seen
	if got := r.reconcile(t, "a"); got.RequeueAfter != first.RequeueAfter-first.RequeueAfter/2 || *got.Priority != 0 || len(r.seen) > 0 {
		t.Errorf("before its time the node is reconciled again after %v, decided: %t", got.RequeueAfter, len(r.seen) > 0)
	}
	changes(0)
	if r.reconcile(t, "a"); len(r.seen) == 0 {
		t.Error("a node that has changed is not decided")
	}
	delete(r.seen, "a")
	r.allNodes(t.Context(), nil)
	if r.reconcile(t, "a"); len(r.seen) == 0 {
		t.Error("after a change of the policy the node is not decided")
	}
	delete(r.seen, "a")
	r.reconcile(t, "b")
	if r.reconcile(t, "a"); len(r.seen) == 0 || len(r.restarts.quarantines) != 2 {
		t.Errorf("with no other taint to come the jobs of %d nodes are looked at", len(r.restarts.quarantines))
	}
}

// versions is an API server that gives each node it writes a new version.
type versions struct{ *laggard }

func (v versions) Patch(ctx context.Context, object client.Object, patch client.Patch, opts ...client.PatchOption) error {
	err := v.laggard.Patch(ctx, object, patch, opts...)
	object.SetResourceVersion(object.GetResourceVersion() + "+")
	return err
}

func TestWhatWeHaveWrittenIsNoChangeOfOthers(t *testing.T) {
	r := newRig(t, "a")
	r.Controller.client = versions{r.client}
	r.client.nodes[0].ResourceVersion = "1"
	told := r.follow(t.Context())
	shows := func(version string) bool {
		shown := r.client.live["a"].DeepCopy()
		shown.ResourceVersion = version
		told.Create(event.CreateEvent{Object: shown})
		return r.burst.HasOthers()
	}
	r.reconcile(t, "a")
	if shows("1+") {
		t.Error("what this process has written counts as a change")
	}
	if !shows("2") {
		t.Error("what another one has written later does not count as a change")
	}
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	if r.reconcile(t, "a"); !shows("1+") {
		t.Error("a node that this process has not written again does not count as changed")
	}
}

func TestABigBurstBeginsAndEndsOnce(t *testing.T) {
	var told []bool
	b := burst.New(func(begins bool) { told = append(told, begins) })
	now := time.Now()
	reconcile := func(i int) {
		_, end := b.Begin(strconv.Itoa(i), now)
		end()
	}
	for i := range 2 * burst.BigBurst {
		b.Recheck(strconv.Itoa(i)) // as all nodes are at the start
	}
	for i := range burst.BigBurst - 1 {
		b.Change(strconv.Itoa(i), "1")
	}
	if reconcile(-1); len(told) > 0 {
		t.Errorf("told %v of %d nodes", told, burst.BigBurst-1)
	}
	b.Change("one more", "1")
	for i := range burst.BigBurst - burst.BigBurst/10 {
		if reconcile(i); !slices.Equal(told, []bool{true}) {
			t.Fatalf("told %v after %d of %d nodes", told, i+1, burst.BigBurst)
		}
	}
	for i := range burst.BigBurst {
		reconcile(i)
	}
	if !slices.Equal(told, []bool{true, false}) {
		t.Errorf("told %v", told)
	}
}

func TestNodesThatWereThereBeforeMakeNoBigBurst(t *testing.T) {
	for _, before := range []bool{true, false} {
		var told []bool
		c := &Controller{burst: burst.New(func(begins bool) { told = append(told, begins) })}
		for i := range burst.BigBurst {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(i), ResourceVersion: "1"}}
			if !c.counted().Create(event.CreateEvent{Object: n, IsInInitialList: before}) {
				t.Errorf("node %d is not reconciled", i)
			}
		}
		c.burst.Begin("0", time.Now())
		if (len(told) > 0) == before {
			t.Errorf("nodes of the first list %t: told %v", before, told)
		}
		for i := range burst.BigBurst {
			c.burst.Recheck(strconv.Itoa(i))
		}
		for i := range burst.BigBurst / 10 { // many of them need something
			c.burst.Wrote(strconv.Itoa(i), "2")
		}
		c.burst.Begin("1", time.Now())
		if !slices.Equal(told, []bool{true}) {
			t.Errorf("nodes of the first list %t: told %v after many writes", before, told)
		}
	}
}

// Its evidence waits longer, and jobs that restart later are looked at when they have asked for it.
func TestJobsAreNotLookedAtAgainForTheEvidence(t *testing.T) {
	for _, again := range []time.Duration{0, 700 * time.Millisecond, time.Hour} {
		r := newRig(t, "a", "b")
		r.restarts.after = again
		told := r.follow(t.Context())
		reconcile := func() time.Duration {
			told.Create(event.CreateEvent{Object: &r.client.nodes[1]})
			return r.reconcile(t, "a").RequeueAfter
		}
		reconcile()
		r.clock.SetTime(r.clock.Now().Add(burst.JobsWait))
		want := burst.JobsWait // the evidence
		if again > 0 {
			want = min(want, again)
		}
		if got := reconcile(); got != want || len(r.restarts.quarantines) != 1 {
			t.Fatalf("the node is reconciled again after %v, want %v; looks at its jobs: %d", got, want, len(r.restarts.quarantines))
		}
		r.clock.SetTime(r.clock.Now().Add(want - 1))
		if got := reconcile(); got != 1 || len(r.restarts.quarantines) != 1 {
			t.Errorf("just before, it is reconciled again after %v; looks at its jobs: %d", got, len(r.restarts.quarantines))
		}
	}
}

// What fails is tried again when the queue says so, not when the jobs are due.
func TestAFailureOfAPostponedNodeIsTriedAgainAtOnce(t *testing.T) {
	r := newRig(t, "a", "b")
	told := r.follow(t.Context())
	told.Create(event.CreateEvent{Object: &r.client.nodes[1]})
	r.reconcile(t, "a")
	told.Create(event.CreateEvent{Object: &r.client.nodes[0]})
	r.client.nodes[0] = *r.client.live["a"].DeepCopy()
	r.client.nodes[0].Labels["pitcrew.dev/status"] = "forged" // to be put right by a write
	r.client.refuse = errors.New("refused")
	request := reconcile.Request{NamespacedName: types.NamespacedName{Name: "a"}}
	for range 2 {
		if _, err := r.Reconcile(t.Context(), request); !errors.Is(err, r.client.refuse) {
			t.Errorf("%v, want an error of the write", err)
		}
	}
}
