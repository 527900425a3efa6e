package jobs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// announced begins a restart with time to save the state, and returns until when.
func (g gang) announced(r *Controller, q restart.Trigger) string {
	g.Helper()
	restartJobs(g.T, r, q)
	job := g.read()
	by := job.Object.GetAnnotations()[conditions.AnnotationCheckpointBy]
	if at, err := time.Parse(time.RFC3339, by); err != nil || time.Until(at) > q.CheckpointGrace {
		g.Fatalf("announced for %q: %v", by, err)
	}
	if job.Suspended || g.record().Current.Phase != restart.Checkpointing {
		g.Errorf("suspended %t, record %+v", job.Suspended, g.record())
	}
	g.event("JobRestarting", job.Object.GetUID(), "the job will be stopped at "+by)
	return by
}

func (g gang) annotate(key, value string) {
	g.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value))
	if err := g.c.Client.Patch(g.Context(), g.object(), patch); err != nil {
		g.Fatal(err)
	}
}

func TestAJobMaySaveItsStateFirst(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		grace time.Duration
		then  func(g gang, r *Controller, q restart.Trigger, by string)
		// over: its time is over then.
		over bool
		// stopped: it is restarted then, else it runs on.
		stopped bool
		nodes   int // that cause the restart
	}{
		"and is stopped as soon as it has": {time.Hour, func(g gang, _ *Controller, _ restart.Trigger, by string) {
			g.annotate(conditions.AnnotationCheckpointed, by)
		}, false, true, 1},
		"and is stopped when its time is over": {time.Minute, func(gang, *Controller, restart.Trigger, string) {}, true, true, 1},
		"and is stopped when a node fails that cannot wait": {time.Hour, func(g gang, r *Controller, _ restart.Trigger, _ string) {
			hard := g.quarantineOf(g.runs()[1].Spec.NodeName)
			restartJobs(g.T, r, hard)
		}, false, true, 2},
		"and is stopped when the fault gets worse": {time.Hour, func(g gang, r *Controller, q restart.Trigger, _ string) {
			q.CheckpointGrace = 0
			restartJobs(g.T, r, q)
		}, false, true, 1},
		"and keeps its time when one more node fails softly": {time.Minute, func(g gang, r *Controller, q restart.Trigger, by string) {
			soft := g.quarantineOf(g.runs()[1].Spec.NodeName)
			soft.CheckpointGrace = time.Hour
			restartJobs(g.T, r, soft)
			if now := g.read().Object.GetAnnotations()[conditions.AnnotationCheckpointBy]; now != by {
				g.Errorf("announced for %s, then for %s", by, now)
			}
		}, true, true, 2},
		"and runs on if the node is well again": {time.Hour, func(g gang, _ *Controller, q restart.Trigger, _ string) {
			g.untaint(q.Node)
		}, false, false, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			var clock movedClock
			r, _ := run(t, tm.config(), interceptor.Funcs{}, clock.on)
			g := tm.createJob("train", optedIn, tm.jobSpec(4))
			ranks := g.runs()
			q := tm.quarantineOf(ranks[0].Spec.NodeName)
			q.CheckpointGrace = test.grace
			by := g.announced(r, q)
			test.then(g, r, q, by)
			if test.over {
				clock.move(test.grace)
			}
			closed := g.closes()
			job := g.read()
			if a := job.Object.GetAnnotations(); a[conditions.AnnotationCheckpointBy] != "" || a[conditions.AnnotationCheckpointed] != "" {
				t.Errorf("annotations %v", a)
			}
			if closed.Phase != restart.Done || len(closed.Quarantines) != test.nodes || !closed.CheckpointBy.IsZero() && test.stopped {
				t.Errorf("record %+v", closed)
			}
			if !test.stopped {
				sameRanks(t, ranks, g.runs())
				if rec := g.record(); rec.Total != 0 || !strings.Contains(closed.Outcome, "not stopped") {
					t.Errorf("record %+v", rec)
				}
				return
			}
			var bad []string
			for _, c := range closed.Quarantines {
				bad = append(bad, c.Node)
			}
			g.restartedOnce(bad...)
		})
	}
}

func TestAPauseHoldsTheStopOfAJobThatHasSaved(t *testing.T) {
	tm := newTeam(t, 4, nil)
	cfg := tm.config()
	r, _ := run(t, cfg, interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(2))
	ranks := g.runs()
	q := tm.quarantineOf(ranks[0].Spec.NodeName)
	q.CheckpointGrace = time.Hour
	by := g.announced(r, q)
	pause := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}}
	if err := tm.c.Client.Create(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	g.annotate(conditions.AnnotationCheckpointed, by)
	key := request{Kind: batchJob.GVK, NamespacedName: client.ObjectKeyFromObject(g.object())}
	result, err := r.reconciler.Reconcile(t.Context(), key)
	if err != nil || result.RequeueAfter == 0 {
		t.Errorf("looked at again after %s: %v", result.RequeueAfter, err)
	}
	sameRanks(t, ranks, g.runs())
	if err := tm.c.Client.Delete(t.Context(), pause); err != nil {
		t.Fatal(err)
	}
	g.closes()
	g.restartedOnce(q.Node)
}
