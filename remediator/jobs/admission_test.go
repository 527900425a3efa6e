package jobs

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// limited gives a Restarter a policy with these limits.
func limited(l policy.Restart) func(*Restarter) {
	return func(r *Restarter) { r.Policy = policy.Fixed(&policy.Policy{Restart: l}) }
}

// delayedSweep sweeps and checks that a restart waits.
func delayedSweep(t *testing.T, r *Restarter, q Quarantine) time.Duration {
	t.Helper()
	again, err := r.Sweep(t.Context(), q)
	if err != nil {
		t.Fatal(err)
	}
	if again <= 0 {
		t.Fatalf("nothing waits: sweep again after %s", again)
	}
	return again
}

// beginsBySweeps sweeps as often as it is asked to, as the node controller does, until the restart is closed.
func (g gang) beginsBySweeps(r *Restarter, q Quarantine) restart {
	g.Helper()
	for {
		again, err := r.Sweep(g.Context(), q)
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
	tm := newTeam(t, 6, nil)
	r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, limited(policy.Restart{Settle: 2 * time.Second}))
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	ranks := g.runs()
	q1 := tm.quarantineOf(ranks[0].Spec.NodeName)
	if again := delayedSweep(t, r, q1); again > 2*time.Second {
		t.Errorf("sweep again after %s", again)
	}
	q2 := tm.quarantineOf(ranks[1].Spec.NodeName)
	delayedSweep(t, r, q2)
	g.unharmed(ranks)
	if notes := tm.notes("JobRestartBlocked", g.look().object.GetUID()); len(notes) != 0 {
		t.Errorf("said %q", notes)
	}
	closed := g.beginsBySweeps(r, q1)
	if closed.Phase != done || closed.Streak != 1 || closed.RunningSince.IsZero() {
		t.Errorf("record %+v", closed)
	}
	sweep(t, r, q2)
	g.restartedOnce(q1.Node, q2.Node)
}

func TestARestartWaitsForItsBackOffAndBeginsThen(t *testing.T) {
	tm := newTeam(t, 6, nil)
	limits := limited(policy.Restart{BackOff: policy.BackOff{First: 3 * time.Second, Max: time.Minute}})
	cfg := restarterConfig(t, tm.c)
	r, stop := run(t, cfg, interceptor.Funcs{}, limits)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	q1 := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	first := g.beginsBySweeps(r, q1)
	q2 := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	again := delayedSweep(t, r, q2)
	delayedSweep(t, r, q2)
	if again > 3*time.Second {
		t.Errorf("sweep again after %s", again)
	}
	uid := g.look().object.GetUID()
	tm.event("JobRestartBlocked", uid, "the pause after 1 in a row is 3s")
	tm.event("JobRestartBlocked", q2.NodeUID, "the pause after 1 in a row is 3s")
	if notes := tm.notes("JobRestartBlocked", uid); len(notes) != 1 {
		t.Errorf("said %d times: %q", len(notes), notes)
	}
	stop() // the pause is in the record, not in the process
	r, _ = run(t, cfg, interceptor.Funcs{}, limits)
	delayedSweep(t, r, q2)
	second := g.beginsBySweeps(r, q2)
	if pause := second.StartedAt.Sub(first.EndedAt); pause < 3*time.Second || second.Streak != 2 {
		t.Errorf("the second restart began %s after the first had ended, streak %d", pause, second.Streak)
	}
	g.incarnations(3, q1.Node, q2.Node)
}

func TestABudgetHoldsUntilAPersonRaisesIt(t *testing.T) {
	for reason, limit := range map[string]func(n int) policy.Restart{
		"maxPerDay": func(n int) policy.Restart { return policy.Restart{MaxPerDay: n} },
		"maxPerJob": func(n int) policy.Restart { return policy.Restart{MaxPerJob: n} },
	} {
		t.Run(reason, func(t *testing.T) {
			tm := newTeam(t, 4, nil)
			r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, limited(limit(1)))
			g := tm.createJob("train", optedIn, tm.jobSpec(2))
			q1 := tm.quarantineOf(g.runs()[0].Spec.NodeName)
			g.beginsBySweeps(r, q1)
			ranks := g.runs()
			q2 := tm.quarantineOf(ranks[0].Spec.NodeName)
			if _, err := r.Sweep(t.Context(), q2); err != nil {
				t.Fatal(err)
			}
			tm.event("JobRestartBlocked", g.look().object.GetUID(), reason)
			sameRanks(t, ranks, g.runs())
			limited(limit(2))(r)
			g.beginsBySweeps(r, q2)
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
	cfg := restarterConfig(t, here.c)
	r, stop := run(t, cfg, interceptor.Funcs{}, limits)
	slow, other := here.createJob("slow", optedIn, here.jobSpec(1)), there.createJob("other", optedIn, there.jobSpec(1))
	rank := slow.runs()[0]
	here.setFinalizers(&rank, "example.com/stuck")
	q1, q2 := here.quarantineOf(rank.Spec.NodeName), there.quarantineOf(other.runs()[0].Spec.NodeName)
	slow.eventually("wait until the jobs of earlier tests are gone", func() error {
		if again, err := r.Sweep(t.Context(), q1); again > 0 || err != nil {
			return fmt.Errorf("sweep again after %s: %w", again, err)
		}
		return nil
	})
	// At once, so that only this process can know of the first.
	delayedSweep(t, r, q2)
	there.event("JobRestartBlocked", other.look().object.GetUID(), "1 other jobs are being restarted")
	stop()
	r, _ = run(t, cfg, interceptor.Funcs{}, limits) // and another one, which only reads it
	delayedSweep(t, r, q2)
	if v := other.look(); v.suspended {
		t.Error("two jobs are being restarted")
	}
	here.setFinalizers(&rank)
	slow.closes()
	other.beginsBySweeps(r, q2)
}

func TestAJobIsNotStoppedUntilThereIsRoomForItsRanks(t *testing.T) {
	tm := newTeam(t, 4, nil)
	r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, limited(policy.Restart{CheckCapacity: true}))
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	ranks := g.runs()
	q := tm.quarantineOf(ranks[0].Spec.NodeName)
	if again := delayedSweep(t, r, q); again != retryCapacity {
		t.Errorf("sweep again after %s", again)
	}
	uid := g.look().object.GetUID()
	tm.event("JobRestartBlocked", uid, "1 of its ranks have to move, and room for 0 was found")
	tm.event("JobRestartBlocked", q.NodeUID, "1 of its ranks have to move, and room for 0 was found")
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
	if closed := g.beginsBySweeps(r, q); closed.Phase != done || closed.Moving != 0 {
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
	if err := g.c.Client.Patch(g.Context(), g.look().object, patch); err != nil {
		g.Fatal(err)
	}
}

// aborted checks that a restart was closed at a person's word, and that it stays so.
func (g gang) aborted(r *Restarter, q Quarantine, want string) {
	g.Helper()
	closed := g.closes()
	if closed.Phase != failed || !strings.Contains(closed.Outcome, want) {
		g.Errorf("record %+v", closed)
	}
	v := g.look()
	if _, asks := v.object.GetAnnotations()[conditions.AnnotationAbortRestart]; asks || v.suspended {
		g.Errorf("suspended %t, annotations %v", v.suspended, v.object.GetAnnotations())
	}
	g.event("JobRestartFailed", v.object.GetUID(), want)
	sweep(g.T, r, q)
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 {
		g.Errorf("restarted again: %+v", rec)
	}
}

func TestAPersonAbortsARestart(t *testing.T) {
	t.Run("that is held", func(t *testing.T) {
		tm := newTeam(t, 5, nil)
		r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, func(r *Restarter) { r.StopTimeout = time.Second })
		g := tm.createJob("train", optedIn, tm.jobSpec(4))
		slow := g.runs()[0]
		tm.setFinalizers(&slow, "example.com/stuck")
		q := tm.quarantineOf(slow.Spec.NodeName)
		sweep(t, r, q)
		tm.event("JobRestartBlocked", g.look().object.GetUID(), "has not ended")
		g.abort()
		g.aborted(r, q, "the job was started again and is left alone")
		tm.setFinalizers(&slow)
		g.runs()
	})
	t.Run("that has not begun", func(t *testing.T) {
		tm := newTeam(t, 4, nil)
		r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(2))
		ranks := g.runs()
		g.abort()
		q := tm.quarantineOf(ranks[0].Spec.NodeName)
		sweep(t, r, q)
		g.aborted(r, q, "before the job was stopped")
		sameRanks(t, ranks, g.runs())
	})
}
