package jobs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
)

// limited gives a controller a policy with these limits.
func limited(l policy.Restart) func(*Options) {
	return func(o *Options) { o.Policy = policy.Fixed(&policy.Policy{Restart: l, Rules: jobstest.Rules}) }
}

// delayed checks that a restart waits.
func delayed(t *testing.T, r *Controller, q restart.Trigger) time.Duration {
	t.Helper()
	again, err := r.RestartJobsOnNode(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if again <= 0 {
		t.Fatalf("nothing waits: call again after %s", again)
	}
	return again
}

// beginsByCalls calls as often as it is asked to, as the node controller does, until the restart is closed.
func (g gang) beginsByCalls(r *Controller, q restart.Trigger) restart.Restart {
	g.Helper()
	for {
		again, err := r.RestartJobsOnNode(g.Context(), q)
		if err != nil {
			g.Fatal(err)
		}
		if again == 0 {
			return g.closes()
		}
		select {
		case <-time.After(again):
		case <-g.Context().Done():
			g.Fatal(g.Context().Err())
		}
	}
}

func TestNodesOfAWaveAreOneStop(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 6, nil)
	const settle = 10 * time.Minute
	var clock movedClock
	r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { clock.on(o); limited(policy.Restart{Settle: settle})(o) })
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	ranks := g.runs()
	q1 := tm.quarantineOf(ranks[0].Spec.NodeName)
	if again := delayed(t, r, q1); again > settle {
		t.Errorf("call again after %s", again)
	}
	q2 := tm.quarantineOf(ranks[1].Spec.NodeName)
	delayed(t, r, q2)
	g.unharmed(ranks)
	if notes := tm.notes("JobRestartBlocked", g.read().Object.GetUID()); len(notes) != 0 {
		t.Errorf("said %q", notes)
	}
	clock.move(settle)
	closed := g.beginsByCalls(r, q1)
	if closed.Phase != restart.Done || closed.Streak != 1 || closed.RunningSince.IsZero() {
		t.Errorf("record %+v", closed)
	}
	restartJobs(t, r, q2)
	g.restartedOnce(q1.Node, q2.Node)
}

func TestARestartWaitsForItsBackOffAndBeginsThen(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 6, nil)
	const backOff = 15 * time.Minute
	var clock movedClock
	limits := func(o *Options) {
		clock.on(o)
		limited(policy.Restart{BackOff: policy.BackOff{First: backOff, Max: time.Hour}})(o)
	}
	cfg := tm.config()
	r, stop := run(t, cfg, interceptor.Funcs{}, limits)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	q1 := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	first := g.beginsByCalls(r, q1)
	q2 := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	again := delayed(t, r, q2)
	delayed(t, r, q2)
	if again > backOff {
		t.Errorf("call again after %s", again)
	}
	uid := g.read().Object.GetUID()
	tm.event("JobRestartBlocked", uid, "the back-off after 1 in a row is 15m")
	tm.event("JobRestartBlocked", q2.NodeUID, "the back-off after 1 in a row is 15m")
	if notes := tm.notes("JobRestartBlocked", uid); len(notes) != 1 {
		t.Errorf("said %d times: %q", len(notes), notes)
	}
	stop() // the pause is in the record, not in the process
	r, _ = run(t, cfg, interceptor.Funcs{}, limits)
	delayed(t, r, q2)
	clock.move(backOff)
	second := g.beginsByCalls(r, q2)
	if pause := second.StartedAt.Sub(first.EndedAt); pause < backOff || second.Streak != 2 {
		t.Errorf("the second restart began %s after the first had ended, streak %d", pause, second.Streak)
	}
	g.incarnations(3, q1.Node, q2.Node)
}

func TestABudgetHoldsUntilAPersonRaisesIt(t *testing.T) {
	t.Parallel()
	for reason, limit := range map[string]func(n int) policy.Restart{
		"maxPerDay": func(n int) policy.Restart { return policy.Restart{MaxPerDay: n} },
		"maxPerJob": func(n int) policy.Restart { return policy.Restart{MaxPerJob: n} },
	} {
		t.Run(reason, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 4, nil)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, limited(limit(1)))
			g := tm.createJob("train", optedIn, tm.jobSpec(2))
			q1 := tm.quarantineOf(g.runs()[0].Spec.NodeName)
			g.beginsByCalls(r, q1)
			ranks := g.runs()
			q2 := tm.quarantineOf(ranks[0].Spec.NodeName)
			if _, err := r.RestartJobsOnNode(t.Context(), q2); err != nil {
				t.Fatal(err)
			}
			tm.event("JobRestartBlocked", g.read().Object.GetUID(), reason)
			sameRanks(t, ranks, g.runs())
			r.settings.file = policy.Fixed(&policy.Policy{Restart: limit(2), Rules: jobstest.Rules})
			g.beginsByCalls(r, q2)
			g.incarnations(3, q1.Node, q2.Node)
			if rec := g.record(); rec.Total != 2 || len(rec.Recent) != 2 {
				t.Errorf("record %+v", rec)
			}
		})
	}
}

func TestOnlySoManyJobsAreRestartedAtOnce(t *testing.T) {
	here, there := newTeam(t, 2, nil), newTeam(t, 2, nil)
	limits := limited(policy.Restart{MaxConcurrent: 1})
	cfg := jobstest.Config(t, here.c)
	r, stop := run(t, cfg, interceptor.Funcs{}, limits)
	slow, other := here.createJob("slow", optedIn, here.jobSpec(1)), there.createJob("other", optedIn, there.jobSpec(1))
	rank := slow.runs()[0]
	here.setFinalizers(&rank, "example.com/stuck")
	q1, q2 := here.quarantineOf(rank.Spec.NodeName), there.quarantineOf(other.runs()[0].Spec.NodeName)
	slow.eventually("wait until the jobs of earlier tests are gone", func() error {
		if again, err := r.RestartJobsOnNode(t.Context(), q1); again > 0 || err != nil {
			return fmt.Errorf("call again after %s: %w", again, err)
		}
		return nil
	})
	// At once, so that only this process can know of the first.
	delayed(t, r, q2)
	there.event("JobRestartBlocked", other.read().Object.GetUID(), "1 other jobs are being restarted")
	stop()
	r, _ = run(t, cfg, interceptor.Funcs{}, limits) // and another one, which only reads it
	delayed(t, r, q2)
	if job := other.read(); job.Suspended {
		t.Error("two jobs are being restarted")
	}
	here.setFinalizers(&rank)
	slow.closes()
	other.beginsByCalls(r, q2)
}

func TestAJobIsNotStoppedUntilThereIsRoomForItsRanks(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 4, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, limited(policy.Restart{CheckCapacity: true}))
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	ranks := g.runs()
	q := tm.quarantineOf(ranks[0].Spec.NodeName)
	if again := delayed(t, r, q); again != capacity.Retry {
		t.Errorf("call again after %s", again)
	}
	uid := g.read().Object.GetUID()
	tm.event("JobRestartBlocked", uid, "1 of its ranks must move; found room for 0")
	tm.event("JobRestartBlocked", q.NodeUID, "1 of its ranks must move; found room for 0")
	g.unharmed(ranks)
	spare, err := tm.c.AddNodes(t.Context(), tm.name+"-spare", 1, func(n *corev1.Node) { n.Labels[cluster.LabelPool] = tm.name })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		//nolint:usetesting // the test's own context has ended by now
		if err := tm.c.DeleteNodes(context.Background(), spare...); err != nil {
			t.Error(err)
		}
	})
	if closed := g.beginsByCalls(r, q); closed.Phase != restart.Done || closed.Moving != 0 {
		t.Errorf("record %+v", closed)
	}
	g.restartedOnce(q.Node)
	if g.onNode(spare[0]) == nil {
		t.Errorf("no rank is on %s", spare[0])
	}
}

// abort is a person with kubectl.
func (g gang) abort() {
	g.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:"please"}}}`, conditions.AnnotationAbortRestart))
	if err := g.c.Client.Patch(g.Context(), g.object(), patch); err != nil {
		g.Fatal(err)
	}
}

// aborted checks that a restart was closed at a person's word, and that it stays so.
func (g gang) aborted(r *Controller, q restart.Trigger, want string) {
	g.Helper()
	closed := g.closes()
	if closed.Phase != restart.Failed || !strings.Contains(closed.Outcome, want) {
		g.Errorf("record %+v", closed)
	}
	job := g.read()
	if _, asks := job.Object.GetAnnotations()[conditions.AnnotationAbortRestart]; asks || job.Suspended {
		g.Errorf("suspended %t, annotations %v", job.Suspended, job.Object.GetAnnotations())
	}
	g.event("JobRestartFailed", job.Object.GetUID(), want)
	restartJobs(g.T, r, q)
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 {
		g.Errorf("restarted again: %+v", rec)
	}
}

func TestAPersonAbortsARestart(t *testing.T) {
	t.Run("that is held", func(t *testing.T) {
		tm := newTeam(t, 5, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { o.StopTimeout = time.Second })
		g := tm.createJob("train", optedIn, tm.jobSpec(4))
		slow := g.runs()[0]
		tm.setFinalizers(&slow, "example.com/stuck")
		q := tm.quarantineOf(slow.Spec.NodeName)
		restartJobs(t, r, q)
		tm.event("JobRestartBlocked", g.read().Object.GetUID(), "has not ended")
		g.abort()
		g.aborted(r, q, "the job was started again and is left alone")
		tm.setFinalizers(&slow)
		g.runs()
	})
	t.Run("that waits for its checkpoint while everything is paused", func(t *testing.T) {
		tm := newTeam(t, 4, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(2))
		ranks := g.runs()
		q := tm.quarantineOf(ranks[0].Spec.NodeName)
		q.CheckpointGrace = time.Hour
		g.announced(r, q)
		pause := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}}
		if err := tm.c.Client.Create(t.Context(), pause); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			//nolint:usetesting // the test's own context has ended by now
			if err := tm.c.Client.Delete(context.Background(), pause); err != nil {
				t.Error(err)
			}
		})
		g.abort()
		g.aborted(r, q, "before the job was stopped")
		sameRanks(t, ranks, g.runs())
	})
	t.Run("that has not begun", func(t *testing.T) {
		tm := newTeam(t, 4, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(2))
		ranks := g.runs()
		g.abort()
		q := tm.quarantineOf(ranks[0].Spec.NodeName)
		restartJobs(t, r, q)
		g.aborted(r, q, "before the job was stopped")
		sameRanks(t, ranks, g.runs())
	})
}
