package nodes

import (
	"context"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

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
	if result.RequeueAfter != afterTaints || *result.Priority != 0 {
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
		"no pod is deleted":              {func(*policy.Rule) {}, jobsWait},
		"the taint deletes pods":         {func(rule *policy.Rule) { rule.Taint.Effect = corev1.TaintEffectNoExecute }, 0},
		"a taint beside it deletes pods": {func(rule *policy.Rule) { rule.HandOff.Taints = []corev1.Taint{noExecute} }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, "a", "b")
			for i := range r.policy.Policy().Rules {
				test.rule(&r.policy.Policy().Rules[i])
			}
			if jobs, evidence := whileOthersChange(t, r); jobs != test.want || evidence != evidenceWait {
				t.Errorf("the jobs are looked at after %v, want %v; the evidence is kept after %v, want %v", jobs, test.want, evidence, evidenceWait)
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
	next.clock.SetTime(r.clock.Now().Add(evidenceWait))
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

func (r *restartsDuring) RestartJobsOnNode(ctx context.Context, q restart.Quarantine) (time.Duration, error) {
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
