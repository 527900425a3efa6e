package jobs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestNextSaving(t *testing.T) {
	const by = "2026-11-20T12:02:00Z"
	annotated := func(key, value string) func(*batchv1.Job) {
		return func(j *batchv1.Job) { j.Annotations = map[string]string{key: value} }
	}
	tests := map[string]struct {
		change func(*batchv1.Job)
		waits  waits
		busy   bool
		passed time.Duration
		want   step
	}{
		"its own controller is restarting it": {busy: true, passed: time.Hour, want: step{do: await, after: 2 * time.Second}},
		"its last retry is all that is left": {waits: waits{shut: blocked{"MaxRetry", "its retryCount is 2"}}, passed: time.Hour,
			want: step{do: end, phase: failed, result: "MaxRetry", outcome: "not stopped after all: its retryCount is 2"}},
		"the same, and it has time": {waits: waits{shut: blocked{"MaxRetry", "its retryCount is 2"}}, want: step{do: await, after: 2 * time.Second}},
		"it has time":               {want: step{do: await, after: 2 * time.Second}},
		"it has a second":           {passed: 119 * time.Second, want: step{do: await, after: time.Second}},
		"its time is over":          {passed: 2 * time.Minute, want: step{do: halt}},
		"it has saved":              {change: annotated(conditions.AnnotationCheckpointed, by), want: step{do: halt}},
		"it saved last time":        {change: annotated(conditions.AnnotationCheckpointed, "2026-11-19T12:02:00Z"), want: step{do: await, after: 2 * time.Second}},
		"the node is well again":    {waits: waits{released: true}, passed: time.Hour, want: step{do: end, phase: done, result: "Withdrawn", outcome: "no rank is on a quarantined node any more; the job was not stopped"}},
		"everything is paused":      {waits: waits{paused: true}, passed: time.Hour, want: step{do: await, after: 2 * time.Second}},
		"somebody aborts it": {change: annotated(conditions.AnnotationAbortRestart, ""), passed: time.Hour,
			want: step{do: end, phase: failed, result: "Aborted", outcome: "aborted by annotation pitcrew.dev/abort-restart before the job was stopped"}},
		"somebody suspended it": {change: func(j *batchv1.Job) { j.Spec.Suspend = ptr.To(true) }, passed: time.Hour,
			want: step{do: end, phase: failed, result: "Abandoned", outcome: "somebody stopped the job while it was saving its state"}},
		"it completed": {change: func(j *batchv1.Job) {
			j.Status.Conditions = []batchv1.JobCondition{{Type: batchv1.JobComplete, Status: corev1.ConditionTrue}}
		}, passed: time.Hour, want: step{do: end, phase: done, result: "Withdrawn", outcome: "the job ended while it was saving its state"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			job := trainer()
			if test.change != nil {
				test.change(job)
			}
			cur := restart{Phase: saving, CheckpointBy: noon.Add(2 * time.Minute)}
			v := viewOf(job)
			v.busy = test.busy
			got := nextSaving(cur, v, test.waits, noon.Add(test.passed))
			if diff := cmp.Diff(test.want, got, cmp.AllowUnexported(step{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestGatesThatShutMeanwhile(t *testing.T) {
	other := corev1.Taint{Key: "example.com/other", Effect: corev1.TaintEffectNoSchedule}
	cur := restart{Quarantines: []cause{{Node: "bad", Taint: quarantine.Taint}, {Node: "worse", Taint: other}}}
	job := trainer()
	if b := shut(cur, viewOf(job), nil); b.reason != "" {
		t.Errorf("blocked: %v", b)
	}
	job.Spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: other.Key, Operator: corev1.TolerationOpExists}}
	if b := shut(cur, viewOf(job), nil); b.reason != "ComesBack" {
		t.Errorf("blocked: %v", b)
	}
}

// announced begins a restart with time to save the state, and returns until when.
func (g gang) announced(r *Restarter, q Quarantine) string {
	g.Helper()
	sweep(g.T, r, q)
	v := g.look()
	by := v.object.GetAnnotations()[conditions.AnnotationCheckpointBy]
	if at, err := time.Parse(time.RFC3339, by); err != nil || time.Until(at) > q.CheckpointGrace {
		g.Fatalf("announced for %q: %v", by, err)
	}
	if v.suspended || g.record().Current.Phase != saving {
		g.Errorf("suspended %t, record %+v", v.suspended, g.record())
	}
	g.event("JobRestarting", v.object.GetUID(), "it is stopped at "+by)
	return by
}

func (g gang) annotate(key, value string) {
	g.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{%q:%q}}}`, key, value))
	if err := g.c.Client.Patch(g.Context(), g.look().object, patch); err != nil {
		g.Fatal(err)
	}
}

func TestAJobMaySaveItsStateFirst(t *testing.T) {
	tests := map[string]struct {
		grace time.Duration
		then  func(g gang, r *Restarter, q Quarantine, by string)
		// stopped: it is restarted then, else it runs on.
		stopped bool
		nodes   int // that cause the restart
	}{
		"and is stopped as soon as it has": {time.Hour, func(g gang, _ *Restarter, _ Quarantine, by string) {
			g.annotate(conditions.AnnotationCheckpointed, by)
		}, true, 1},
		"and is stopped when its time is over": {2 * time.Second, func(gang, *Restarter, Quarantine, string) {}, true, 1},
		"and is stopped when a node fails that cannot wait": {time.Hour, func(g gang, r *Restarter, _ Quarantine, _ string) {
			hard := g.quarantineOf(g.runs()[1].Spec.NodeName)
			sweep(g.T, r, hard)
		}, true, 2},
		"and is stopped when the fault gets worse": {time.Hour, func(g gang, r *Restarter, q Quarantine, _ string) {
			q.CheckpointGrace = 0
			sweep(g.T, r, q)
		}, true, 1},
		"and keeps its time when one more node fails softly": {3 * time.Second, func(g gang, r *Restarter, q Quarantine, by string) {
			soft := g.quarantineOf(g.runs()[1].Spec.NodeName)
			soft.CheckpointGrace = time.Hour
			sweep(g.T, r, soft)
			if now := g.look().object.GetAnnotations()[conditions.AnnotationCheckpointBy]; now != by {
				g.Errorf("announced for %s, then for %s", by, now)
			}
		}, true, 2},
		"and runs on if the node is well again": {time.Hour, func(g gang, _ *Restarter, q Quarantine, _ string) {
			g.untaint(q.Node)
		}, false, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			tm := newTeam(t, 6, nil)
			r, _ := run(t, restarterConfig(t, tm.c), interceptor.Funcs{}, nil)
			g := tm.createJob("train", optedIn, tm.jobSpec(4))
			ranks := g.runs()
			q := tm.quarantineOf(ranks[0].Spec.NodeName)
			q.CheckpointGrace = test.grace
			by := g.announced(r, q)
			test.then(g, r, q, by)
			closed := g.closes()
			v := g.look()
			if a := v.object.GetAnnotations(); a[conditions.AnnotationCheckpointBy] != "" || a[conditions.AnnotationCheckpointed] != "" {
				t.Errorf("annotations %v", a)
			}
			if closed.Phase != done || len(closed.Quarantines) != test.nodes || !closed.CheckpointBy.IsZero() && test.stopped {
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
	cfg := restarterConfig(t, tm.c)
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
	key := request{batchJob.gvk, client.ObjectKeyFromObject(g.look().object)}
	result, err := r.Reconcile(t.Context(), key)
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
