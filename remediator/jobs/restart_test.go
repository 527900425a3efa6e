package jobs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAJobIsRestartedWholeAndOnce(t *testing.T) {
	t.Parallel()
	tests := map[string]func(team) gang{
		"plain job":   func(tm team) gang { return tm.createJob("train", optedIn, tm.jobSpec(4, plain)) },
		"indexed job": func(tm team) gang { return tm.createJob("train", optedIn, tm.jobSpec(4)) },
		"jobset":      func(tm team) gang { return tm.createJobSet("train", optedIn, tm.jobSpec(2)) },
		"slow pods": func(tm team) gang {
			return tm.createJob("train", optedIn, tm.jobSpec(4, dying(2*time.Second, time.Second)))
		},
		"jobset that starts in order": func(tm team) gang {
			return tm.createJobSet("train", optedIn, tm.jobSpec(2), func(set map[string]any) {
				set["startupPolicy"] = map[string]any{"startupPolicyOrder": "InOrder"}
			})
		},
		"jobset whose workers wait for their leader": func(tm team) gang {
			return tm.createJobSet("train", optedIn, tm.jobSpec(2), func(set map[string]any) {
				worker := set["replicatedJobs"].([]any)[1].(map[string]any)
				worker["dependsOn"] = []any{map[string]any{"name": "leader", "status": "Ready"}}
			})
		},
		"jobset of slow pods": func(tm team) gang {
			return tm.createJobSet("train", optedIn, tm.jobSpec(2, dying(2*time.Second, time.Second)))
		},
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 6, nil)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
			g := create(tm)
			before := g.read()
			q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
			for range 3 {
				restartJobs(t, r, q)
			}
			closed := g.closes()
			restartJobs(t, r, q)
			if closed.Phase != restart.Done || len(closed.Quarantines) != 1 || closed.Quarantines[0].Node != q.Node {
				t.Errorf("record %+v", closed)
			}
			g.restartedOnce(q.Node)
			tm.event("JobRestarting", before.Object.GetUID(), q.Node)
			tm.event("JobRestarting", q.NodeUID, tm.name+"/train")
			tm.event("JobRestarted", before.Object.GetUID(), "all ranks running (4/4)")
			tm.event("JobRestarted", q.NodeUID, tm.name+"/train")
			after := g.read()
			if len(after.Jobs) != len(before.Jobs) {
				t.Fatalf("%d Jobs, want %d", len(after.Jobs), len(before.Jobs))
			}
			for i, job := range after.Jobs {
				if job.UID != before.Jobs[i].UID || job.Status.Failed != 0 {
					t.Errorf("Job %s was recreated (%t) or has counted failures (%d)", job.Name, job.UID != before.Jobs[i].UID, job.Status.Failed)
				}
			}
		})
	}
}

// Each call has found the ranks of its node before the other's first write: a rank that is being deleted would end by itself.
func TestNodesThatFailTogetherRestartAJobOnce(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 6, nil)
	var writes atomic.Int32
	bothWrite := make(chan struct{})
	r, _ := run(t, tm.config(), interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		if writes.Add(1) == 2 {
			close(bothWrite)
		}
		select {
		case <-bothWrite:
		case <-ctx.Done():
			return ctx.Err()
		}
		return c.Patch(ctx, o, p, opts...)
	}}, nil)
	g := tm.createJobSet("train", optedIn, tm.jobSpec(2, dying(time.Hour, 0)))
	ranks := g.runs()
	q1, q2 := tm.quarantineOf(ranks[0].Spec.NodeName), tm.quarantineOf(ranks[1].Spec.NodeName)
	var calls sync.WaitGroup
	for _, q := range []restart.Trigger{q1, q2} {
		calls.Go(func() {
			if err := tryRestart(t, r, q); err != nil {
				t.Error(err)
			}
		})
	}
	calls.Wait()
	tm.letEnd(ranks)
	closed := g.closes()
	if closed.Phase != restart.Done || !closed.Covers(q1.ID) && !closed.Covers(q2.ID) {
		t.Errorf("record %+v", closed)
	}
	restartJobs(t, r, q1)
	restartJobs(t, r, q2)
	g.restartedOnce(q1.Node, q2.Node)
	// The call whose write was refused looks again. If its rank is being deleted by then, it joins no restart.
	for _, q := range []restart.Trigger{q1, q2} {
		if closed.Covers(q.ID) {
			tm.event("JobRestarted", q.NodeUID, tm.name+"/train")
		}
	}
}

func TestANodeThatFailsWhileAJobStartsStopsItAgain(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 4, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	q1 := tm.quarantineOf(tm.nodes[0])
	restartJobs(t, r, q1)
	g.inPhase(restart.Starting) // and it stays there: a node is missing
	g.eventually("wait for three ranks of the second incarnation", func() error {
		if n := len(g.pods.Lives()); n != 8 {
			return fmt.Errorf("%d pods so far", n)
		}
		if rank := g.onNode(tm.nodes[1]); rank == nil {
			return fmt.Errorf("no rank on %s", tm.nodes[1])
		}
		return nil
	})
	slow := g.onNode(tm.nodes[1])
	tm.annotatePod(slow, dying(time.Hour, 0))
	q2 := tm.quarantineOf(tm.nodes[1])
	restartJobs(t, r, q2)
	if rec := g.record(); rec.Current == nil || rec.Current.Phase != restart.Stopping || !rec.Current.Covers(q1.ID) || !rec.Current.Covers(q2.ID) {
		t.Errorf("record %+v", rec)
	}
	tm.annotatePod(slow, dying(0, 0))
	g.inPhase(restart.Starting)
	tm.untaint(tm.nodes[0])
	tm.untaint(tm.nodes[1])
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.incarnations(3)
	if n := len(g.record().Last); n != 1 {
		t.Errorf("%d restarts, want 1", n)
	}
}

// onNode returns the live rank on a node, or nil.
func (g gang) onNode(node string) *corev1.Pod {
	g.Helper()
	for _, pod := range g.livePods() {
		if pod.Spec.NodeName == node {
			return &pod
		}
	}
	return nil
}

func TestWritersBesideUsCauseAReRead(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 5, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	var mu sync.Mutex
	patches, conflicts := 0, 0
	r, _ := run(t, tm.config(), interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
		mu.Lock()
		defer mu.Unlock()
		patches++
		if patches%2 == 1 { // every write finds that somebody was faster, once
			job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "train"}}
			theirs := fmt.Appendf(nil, `{"metadata":{"annotations":{"example.com/seen":"%d"}}}`, patches)
			if err := tm.c.Client.Patch(ctx, job, client.RawPatch(types.MergePatchType, theirs)); err != nil {
				return err
			}
		}
		err := c.Patch(ctx, o, p, opts...)
		if err != nil && patches%2 == 1 {
			conflicts++
		}
		return err
	}}, nil)
	q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	restartJobs(t, r, q)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.restartedOnce(q.Node)
	mu.Lock()
	defer mu.Unlock()
	if conflicts < 3 {
		t.Errorf("%d conflicts, want one at each of the three writes", conflicts)
	}
	if seen := g.read().Object.GetAnnotations()["example.com/seen"]; seen == "" {
		t.Error("the other writer's annotation was lost")
	}
}

// setSuspend is a person with kubectl.
func (g gang) setSuspend(suspend bool) {
	g.Helper()
	patch := client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspend))
	if err := g.c.Client.Patch(g.Context(), g.object(), patch); err != nil {
		g.Fatal(err)
	}
}

func TestAPersonWinsOverARestart(t *testing.T) {
	t.Parallel()
	t.Run("who resumes the job while it stops", func(t *testing.T) {
		t.Parallel()
		tm := newTeam(t, 6, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(4, dying(time.Hour, 0)))
		q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
		restartJobs(t, r, q)
		g.setSuspend(false)
		if closed := g.closes(); closed.Phase != restart.Failed || !strings.Contains(closed.Outcome, "set spec.suspend to false") {
			t.Errorf("record %+v", closed)
		}
		job := g.read()
		if job.Suspended {
			t.Error("the job was suspended once more")
		}
		tm.event("JobRestartFailed", job.Object.GetUID(), "another user or controller set spec.suspend to false")
	})
	t.Run("who suspends the job while it starts", func(t *testing.T) {
		t.Parallel()
		tm := newTeam(t, 4, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(4))
		q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
		restartJobs(t, r, q)
		g.inPhase(restart.Starting) // and it stays there: a node is missing
		g.setSuspend(true)
		if closed := g.closes(); closed.Phase != restart.Failed || !strings.Contains(closed.Outcome, "set spec.suspend to true") {
			t.Errorf("record %+v", closed)
		}
		if job := g.read(); !job.Suspended {
			t.Error("the job was resumed against the person's will")
		}
	})
	t.Run("who had suspended the job before", func(t *testing.T) {
		t.Parallel()
		tm := newTeam(t, 4, nil)
		r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
		g := tm.createJob("train", optedIn, tm.jobSpec(4, dying(time.Hour, 0)))
		q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
		g.setSuspend(true)
		restartJobs(t, r, q)
		if job := g.read(); !job.Suspended || job.Object.GetAnnotations()[conditions.AnnotationRestart] != "" {
			t.Errorf("suspended %t, annotations %v", job.Suspended, job.Object.GetAnnotations())
		}
	})
}

func TestAStopThatDoesNotEndIsHeldAndNamed(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 5, nil)
	var clock movedClock
	r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { clock.on(o); o.StopTimeout = patience })
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	slow := g.runs()[0]
	// Like a rank in D state: it outlives its deletion until somebody helps.
	tm.setFinalizers(&slow, "example.com/stuck")
	q := tm.quarantineOf(slow.Spec.NodeName)
	restartJobs(t, r, q)
	tm.eventually("wait for the end of all others", func() error {
		if n := len(tm.pods()); n != 1 {
			return fmt.Errorf("%d pods are left", n)
		}
		return nil
	})
	clock.move(patience)
	uid := g.read().Object.GetUID()
	tm.event("JobRestartBlocked", uid, "pod "+slow.Name+" on node "+slow.Spec.NodeName+" has not ended")
	tm.event("JobRestartBlocked", q.NodeUID, slow.Name)
	held := r.reporter.Metrics.Held.WithLabelValues("Job", tm.name, "train", slow.Name, slow.Spec.NodeName)
	tm.eventually("wait for the metric", func() error {
		if n := gauge(t, held); n != 1 {
			return fmt.Errorf("pitcrew_job_restart_held is %v", n)
		}
		return nil
	})
	if job := g.read(); !job.Suspended || g.record().Current.Phase != restart.Stopping {
		t.Errorf("suspended %t, record %+v", job.Suspended, g.record())
	}
	if n := len(g.pods.Lives()); n != g.ranks {
		t.Errorf("%d pods were created while the stop is held, want none", n-g.ranks)
	}
	tm.setFinalizers(&slow)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.restartedOnce(q.Node)
	if r.reporter.Metrics.Held.DeletePartialMatch(map[string]string{"namespace": tm.name}) != 0 {
		t.Error("pitcrew_job_restart_held is still there")
	}
	if notes := tm.notes("JobRestartBlocked", uid); len(notes) != 1 {
		t.Errorf("said %d times: %q", len(notes), notes)
	}
}

func (tm team) setFinalizers(pod *corev1.Pod, finalizers ...string) {
	tm.Helper()
	before := pod.DeepCopy()
	pod.Finalizers = finalizers
	if err := tm.c.Client.Patch(tm.Context(), pod, client.MergeFrom(before)); err != nil {
		tm.Fatal(err)
	}
}

var gauge = jobstest.Value

// The labels no longer lead to the pod, but its UID is in the record.
func TestAnOldPodThatLostItsLabelsIsWaitedFor(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 5, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	stray := g.runs()[0]
	patch := func(body string) {
		t.Helper()
		if err := tm.c.Client.Patch(t.Context(), &stray, client.RawPatch(types.MergePatchType, []byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	tm.annotatePod(&stray, dying(time.Hour, 0))
	q := tm.quarantineOf(stray.Spec.NodeName)
	restartJobs(t, r, q)
	// The Job controller lets go of a pod without its labels and would never delete it.
	tm.eventually("wait for the deletion of the pod", func() error {
		if err := tm.c.Client.Get(t.Context(), client.ObjectKeyFromObject(&stray), &stray); err != nil || stray.DeletionTimestamp != nil {
			return err
		}
		return errors.New("it is not deleted")
	})
	patch(`{"metadata":{"labels":null}}`)
	tm.eventually("wait for the end of all others", func() error {
		if n := len(tm.pods()); n != 1 {
			return fmt.Errorf("%d pods are left", n)
		}
		return nil
	})
	if rec := g.record(); rec.Current == nil || rec.Current.Phase != restart.Stopping {
		t.Errorf("it does not wait: record %+v", rec)
	}
	// At once: a pod without labels that has ended, and is still listed, is not waited for.
	if err := tm.c.Client.Delete(t.Context(), &stray, client.GracePeriodSeconds(0)); err != nil {
		t.Fatal(err)
	}
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.restartedOnce(q.Node)
}

// It was not there when the UIDs were recorded, or came from a controller that had not seen the stop.
func TestAPodCreatedAfterTheRecordIsWaitedForToo(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 6, nil)
	var clock movedClock
	r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { clock.on(o); o.StopTimeout = patience })
	g := tm.createJob("train", optedIn, tm.jobSpec(4, dying(time.Hour, 0)))
	ranks := g.runs()
	old := ranks[0]
	q := tm.quarantineOf(old.Spec.NodeName)
	restartJobs(t, r, q)
	// The Job controller deletes it at once, perhaps before a scheduler had the time to place it, and it ends after the others.
	late := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "late", Labels: old.Labels, OwnerReferences: old.OwnerReferences, Annotations: old.Annotations},
		Spec:       corev1.PodSpec{NodeName: ranks[1].Spec.NodeName, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if err := tm.c.Client.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	tm.letEnd(ranks)
	// The Event names the first of those that are left.
	tm.eventually("wait for the end of all others", func() error {
		if pods := tm.pods(); len(pods) != 1 || pods[0].Name != "late" {
			return fmt.Errorf("%d pods are left", len(pods))
		}
		return nil
	})
	clock.move(patience)
	tm.event("JobRestartBlocked", g.read().Object.GetUID(), "pod late on node ")
	tm.annotatePod(late, dying(0, 0))
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	lives := g.pods.Lives()
	if len(lives) != 9 || lives[4].Name != "late" {
		t.Fatalf("pods %v, want four ranks, late and four ranks", lives)
	}
	for _, rank := range lives[5:] {
		if rank.Created < lives[4].Gone {
			t.Errorf("pod %v was created before %v was gone", rank, lives[4])
		}
	}
}

func TestACompletedRankStaysCompleted(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 5, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	g.complete(g.runs()[0])
	q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	restartJobs(t, r, q)
	if closed := g.closes(); closed.Phase != restart.Done || !strings.Contains(closed.Outcome, "all ranks running (3/3)") {
		t.Errorf("record %+v", closed)
	}
	g.runs()
	if lives := g.pods.Lives(); len(lives) != 7 {
		t.Errorf("pods %v, want four and then three", lives)
	}
	if status := g.read().Jobs[0].Status; status.Succeeded != 1 || status.Failed != 0 {
		t.Errorf("%d succeeded, %d failed", status.Succeeded, status.Failed)
	}
}

// complete lets a rank exit 0 and waits until that is counted.
func (g *gang) complete(rank corev1.Pod) {
	g.Helper()
	if err := g.c.Client.Patch(g.Context(), &rank, client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"labels":{"e2e.pitcrew.dev/complete":"true"}}}`))); err != nil {
		g.Fatal(err)
	}
	g.ranks--
	g.eventually("wait for the success to be counted", func() error {
		if n := g.read().Jobs[0].Status.Succeeded; n != 1 {
			return fmt.Errorf("%d pods have succeeded", n)
		}
		return nil
	})
}

func TestAStartThatDoesNotEndIsReportedAndClosed(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 4, nil)
	var clock movedClock
	r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) { clock.on(o); o.StartTimeout = patience })
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	q := tm.quarantineOf(tm.nodes[0])
	restartJobs(t, r, q)
	g.inPhase(restart.Starting)
	g.ranks = 3
	g.runs()
	clock.move(patience)
	closed := g.closes()
	if closed.Phase != restart.Failed || !strings.Contains(closed.Outcome, "3/4 ranks running") {
		t.Errorf("record %+v", closed)
	}
	job := g.read()
	if job.Suspended {
		t.Error("the job was left suspended")
	}
	tm.event("JobRestartFailed", job.Object.GetUID(), "3/4 ranks running")
	tm.event("JobRestartFailed", q.NodeUID, "3/4 ranks running")
}

func TestAJobIsNotRestartedTwiceForOneQuarantine(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 4, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(4))
	q := tm.quarantineOf(tm.nodes[0])
	restartJobs(t, r, q)
	g.inPhase(restart.Starting) // and it stays there: a node is missing
	tm.untaint(q.Node)          // somebody lets the last rank back
	g.closes()
	ranks := g.runs()
	if g.onNode(q.Node) == nil {
		t.Fatalf("no rank came back to %s", q.Node)
	}
	restartJobs(t, r, q)
	tm.event("JobRestartBlocked", g.read().Object.GetUID(), "this quarantine has already restarted the job once")
	if rec := g.record(); rec.Current != nil || len(rec.Last) != 1 || g.read().Suspended {
		t.Errorf("suspended %t, record %+v", g.read().Suspended, rec)
	}
	sameRanks(t, ranks, g.runs())
}

func TestWhatWouldHarmAJobIsRefusedAndReportedOnce(t *testing.T) {
	t.Parallel()
	failJob := func(spec *batchv1.JobSpec) {
		spec.PodFailurePolicy = &batchv1.PodFailurePolicy{Rules: []batchv1.PodFailurePolicyRule{{
			Action:      batchv1.PodFailurePolicyActionFailJob,
			OnExitCodes: &batchv1.PodFailurePolicyOnExitCodesRequirement{Operator: batchv1.PodFailurePolicyOnExitCodesOpIn, Values: []int32{143}},
		}}}
	}
	tolerate := func(spec *batchv1.JobSpec) {
		spec.Template.Spec.Tolerations = []corev1.Toleration{{Key: conditions.TaintUnhealthy, Operator: corev1.TolerationOpExists}}
	}
	tests := map[string]struct {
		create func(team) gang
		kind   string
		reason string
		text   string
	}{
		"podFailurePolicy of a job": {func(tm team) gang { return tm.createJob("train", optedIn, tm.jobSpec(2, failJob)) },
			"Job", "PodFailurePolicy", "podFailurePolicy rule 0 of Job train is FailJob"},
		"podFailurePolicy in a jobset": {func(tm team) gang { return tm.createJobSet("train", optedIn, tm.jobSpec(1, failJob)) },
			"JobSet", "PodFailurePolicy", "podFailurePolicy rule 0 of Job train-leader-0 is FailJob"},
		"toleration": {func(tm team) gang { return tm.createJob("train", optedIn, tm.jobSpec(2, tolerate)) },
			"Job", "ComesBack", "tolerates the taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule"},
		"kueue": {func(tm team) gang {
			return tm.createJob("train", map[string]string{conditions.LabelKcoverRecovery: "true", "kueue.x-k8s.io/queue-name": "gpus"}, tm.jobSpec(2))
		}, "Job", "Kueue", "queued by Kueue in gpus"},
		"a work queue with a success": {func(tm team) gang {
			g := tm.createJob("train", optedIn, tm.jobSpec(3, plain, func(spec *batchv1.JobSpec) { spec.Completions = nil }))
			g.complete(g.runs()[0])
			return g
		}, "Job", "WorkQueue", "without active pods it counts as complete"},
		"a cron job": {func(tm team) gang {
			job := tm.createJob("train", optedIn, tm.jobSpec(2))
			cron := &batchv1.CronJob{ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "nightly"}, Spec: batchv1.CronJobSpec{
				Schedule: "0 0 1 1 *", Suspend: ptr.To(true), JobTemplate: batchv1.JobTemplateSpec{Spec: tm.jobSpec(2)},
			}}
			if err := tm.c.Client.Create(tm.Context(), cron); err != nil {
				tm.Fatal(err)
			}
			before := job.object()
			object := before.DeepCopyObject().(client.Object)
			object.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(cron, batchv1.SchemeGroupVersion.WithKind("CronJob"))})
			// Without a resourceVersion: the Job controller may be writing the status.
			if err := tm.c.Client.Patch(tm.Context(), object, client.MergeFrom(before)); err != nil {
				tm.Fatal(err)
			}
			return job
		}, "CronJob", "UnknownOwner", "controlled by CronJob nightly"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 4, nil)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
			g := test.create(tm)
			ranks := g.runs()
			q := tm.quarantineOf(ranks[0].Spec.NodeName)
			counted, named := test.kind, report.JobOnNode{Job: report.Job{Kind: test.kind, Namespace: tm.name, Name: "train", Reason: test.reason}, Node: q.Node}
			if metav1.GetControllerOf(g.read().Object) != nil { // of a kind that is not known
				counted, named.Job = "other", report.Job{Kind: "Pod", Namespace: tm.name, Name: ranks[0].Name, Reason: test.reason}
			}
			counter := r.reporter.Metrics.Blocked.WithLabelValues(counted, test.reason)
			before := gauge(t, counter)
			for range 3 {
				restartJobs(t, r, q)
			}
			if n := gauge(t, counter) - before; n != 1 {
				t.Errorf("counted %v times, want once", n)
			}
			about := g.read().Object.GetUID()
			if owner := metav1.GetControllerOf(g.read().Object); owner != nil {
				about = owner.UID
			}
			tm.event("JobRestartBlocked", about, test.text)
			tm.event("JobRestartBlocked", q.NodeUID, test.text)
			if notes := tm.notes("JobRestartBlocked", about); len(notes) != 1 {
				t.Errorf("said %d times: %q", len(notes), notes)
			}
			g.unharmed(ranks)
			now := r.reporter.Waiting.Current(t.Context(), tm.c.Client)
			if since, waits := now[named]; !waits || len(now) != 1 || !since.Equal(q.Since) {
				t.Errorf("the metric names %v, want %v since %s", now, named, q.Since)
			}
			if again, err := r.RestartJobsOnNode(t.Context(), q); again != report.RecheckSoon || err != nil {
				t.Errorf("call again after %s, %v; want %s", again, err, report.RecheckSoon)
			}
			if err := tm.c.Client.Delete(t.Context(), g.object(), client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
				t.Fatal(err)
			}
			tm.eventually("wait until nothing is on the node", func() error {
				if _, err := r.RestartJobsOnNode(t.Context(), q); err != nil {
					return err
				}
				if now := r.reporter.Waiting.Current(t.Context(), tm.c.Client); len(now) > 0 {
					return fmt.Errorf("the metric names %v", now)
				}
				return nil
			})
		})
	}
}

func TestOnlyOptedInJobsAreRestarted(t *testing.T) {
	t.Parallel()
	out := map[string]string{conditions.LabelRestartOnNodeFault: "false"}
	tests := map[string]struct {
		namespace, job map[string]string
		restarted      bool
		// severity and note are those of the one Event about an opt-in that is missing.
		severity, note string
	}{
		"nobody says anything": {severity: "Normal", note: "no label opts it in; label it pitcrew.dev/restart-on-node-fault=true to have it restarted"},
		"a value is wrong": {job: map[string]string{conditions.LabelRestartOnNodeFault: "yes"},
			severity: "Warning", note: `label pitcrew.dev/restart-on-node-fault=yes on Job NAMESPACE/train does not count: the value must be "true" or "false"`},
		"the namespace is misspelt": {namespace: map[string]string{"pitcrew.dev/restart-on-node-faults": "true"},
			severity: "Warning", note: "label pitcrew.dev/restart-on-node-faults=true on namespace NAMESPACE does not count: its key must be pitcrew.dev/restart-on-node-fault"},
		"the namespace is in":            {namespace: optedIn, restarted: true},
		"the job is out of it":           {namespace: optedIn, job: out},
		"the job is in, the rest is out": {namespace: out, job: optedIn, restarted: true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 3, test.namespace)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
			g := tm.createJob("train", test.job, tm.jobSpec(2))
			ranks := g.runs()
			q := tm.quarantineOf(ranks[0].Spec.NodeName)
			for range 3 {
				restartJobs(t, r, q)
			}
			if test.restarted {
				g.closes()
				g.restartedOnce(q.Node)
				return
			}
			g.unharmed(ranks)
			if test.note == "" {
				if n := r.reporter.Reported.Len(); n != 0 {
					t.Errorf("reported %d jobs", n)
				}
				return
			}
			about := g.read().Object.GetUID()
			tm.event("RestartNotOptedIn", about, strings.ReplaceAll(test.note, "NAMESPACE", tm.name))
			if notes, severity := tm.notes("RestartNotOptedIn", about), tm.severity("RestartNotOptedIn", about); len(notes) != 1 || severity != test.severity {
				t.Errorf("reported %d times as %s, want once as %s: %q", len(notes), severity, test.severity, notes)
			}
			if notes := tm.notes("RestartNotOptedIn", q.NodeUID); len(notes) != 0 {
				t.Errorf("the node has %q", notes)
			}
		})
	}
}

func TestUnknownOwnersAndBarePodsAreReportedAndLeftAlone(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 1, optedIn)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	if err := tm.c.Apply(t.Context(), fmt.Appendf(nil, `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent, namespace: %[1]s}
spec:
  selector: {matchLabels: {app: agent}}
  template: {metadata: {labels: {app: agent}}, spec: {nodeSelector: {%[2]s: %[1]s}, containers: [{name: c, image: none}]}}
---
apiVersion: v1
kind: Pod
metadata: {name: shell, namespace: %[1]s}
spec: {nodeSelector: {%[2]s: %[1]s}, containers: [{name: c, image: none}]}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: tool, namespace: %[1]s}
`, tm.name, cluster.LabelPool)); err != nil {
		t.Fatal(err)
	}
	tool := &corev1.ConfigMap{}
	if err := tm.c.Client.Get(t.Context(), client.ObjectKey{Namespace: tm.name, Name: "tool"}, tool); err != nil {
		t.Fatal(err)
	}
	// No CRD of this cluster has a kind that is unknown to us and controls pods, so a ConfigMap plays it.
	worker := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "worker",
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(tool, corev1.SchemeGroupVersion.WithKind("ConfigMap"))}},
		Spec: corev1.PodSpec{NodeSelector: map[string]string{cluster.LabelPool: tm.name}, Containers: []corev1.Container{{Name: "c", Image: "none"}}},
	}
	if err := tm.c.Client.Create(t.Context(), worker); err != nil {
		t.Fatal(err)
	}
	tm.eventually("wait for all pods to run", func() error {
		if n := len(tm.livePods()); n != 3 {
			return fmt.Errorf("%d pods", n)
		}
		for _, pod := range tm.livePods() {
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
	q := tm.quarantineOf(tm.nodes[0])
	restartJobs(t, r, q)
	tm.event("JobRestartBlocked", tool.UID, "controlled by ConfigMap tool")
	var shell corev1.Pod
	if err := tm.c.Client.Get(t.Context(), client.ObjectKey{Namespace: tm.name, Name: "shell"}, &shell); err != nil {
		t.Fatal(err)
	}
	tm.event("JobRestartBlocked", shell.UID, "it has no controller that would replace it")
	if n := r.reporter.Reported.Len(); n != 2 { // and nothing of the DaemonSet
		t.Errorf("reported %d objects", n)
	}
	if n := len(tm.livePods()); n != 3 {
		t.Errorf("%d pods are left of 3", n)
	}
}

func TestAPodThatIsBeingDeletedStartsNoRestart(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 2, nil)
	r, _ := run(t, tm.config(), interceptor.Funcs{}, nil)
	g := tm.createJob("train", optedIn, tm.jobSpec(1, dying(time.Hour, 0), func(spec *batchv1.JobSpec) { spec.BackoffLimit = ptr.To[int32](6) }))
	rank := g.runs()[0]
	q := tm.quarantineOf(rank.Spec.NodeName)
	if err := tm.c.Client.Delete(t.Context(), &rank); err != nil {
		t.Fatal(err)
	}
	restartJobs(t, r, q)
	if job := g.read(); job.Suspended || job.Object.GetAnnotations()[conditions.AnnotationRestart] != "" {
		t.Errorf("suspended %t, annotations %v", job.Suspended, job.Object.GetAnnotations())
	}
}

func TestALabelWithoutARecordIsDropped(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 1, nil)
	run(t, tm.config(), interceptor.Funcs{}, nil)
	tests := map[string]map[string]string{
		"removed": nil,
		"broken":  {conditions.AnnotationRestart: "{"},
		"copied":  {conditions.AnnotationRestart: `{"v":1,"jobUID":"another","current":{"phase":"Stopping"}}`},
	}
	for name, annotations := range tests {
		t.Run(name, func(t *testing.T) {
			job := &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: name, Annotations: annotations,
					Labels: map[string]string{conditions.LabelRestarting: "true"}},
				Spec: tm.jobSpec(1, func(spec *batchv1.JobSpec) { spec.Suspend = ptr.To(true) }),
			}
			if err := tm.c.Client.Create(t.Context(), job); err != nil {
				t.Fatal(err)
			}
			tm.event("JobRestartFailed", job.UID, "the job is left as it is, stopped: true")
			if err := tm.c.Client.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
				t.Fatal(err)
			}
			if !*job.Spec.Suspend || job.Labels[conditions.LabelRestarting] != "" {
				t.Errorf("suspend %t, labels %v", *job.Spec.Suspend, job.Labels)
			}
		})
	}
}

// As after an upgrade without the new role, or with a kind of the policy that nobody has granted.
func TestAKindThatMayNotBeListedHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 3, nil)
	squad := jobkind.Kind{APIVersion: "example.com/v1", Kind: "Squad", SuspendPath: "spec.suspend", PodLabel: "squad"}
	tm.serve(squad.GVK())
	r, _ := run(t, tm.config(), interceptor.Funcs{}, func(o *Options) {
		o.Policy = policy.Fixed(&policy.Policy{JobKinds: []jobkind.Kind{squad}, Rules: jobstest.Rules})
	})
	g := tm.createJob("train", optedIn, tm.jobSpec(2))
	q := tm.quarantineOf(g.runs()[0].Spec.NodeName)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if _, err := r.RestartJobsOnNode(ctx, q); err != nil {
		t.Fatal(err)
	}
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
	g.restartedOnce(q.Node)
}

// The cluster has no JobSet controller, and at first no JobSet CRD; the test plays the controller.
func TestAKindInstalledLaterIsPickedUp(t *testing.T) {
	t.Parallel()
	c, err := cluster.Start(t.Context(), cluster.Options{Progress: t.Output()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	tm := newTeamIn(t, c, 3, optedIn)
	r, _ := run(t, jobstest.Config(t, c), interceptor.Funcs{}, nil)
	other := tm.createJob("other", nil, tm.jobSpec(1))
	q := tm.quarantineOf(other.runs()[0].Spec.NodeName)
	restartJobs(t, r, q)
	if closed := other.closes(); closed.Phase != restart.Done {
		t.Errorf("without the CRD: record %+v", closed)
	}
	if err := c.Client.Delete(t.Context(), other.object(), client.PropagationPolicy(metav1.DeletePropagationForeground)); err != nil {
		t.Fatal(err)
	}
	tm.eventually("wait for the first job to go", func() error {
		if n := len(tm.livePods()); n != 0 {
			return fmt.Errorf("%d pods", n)
		}
		return nil
	})

	module, err := components.JobSet.ModuleDir(t.Context(), c.Root)
	if err != nil {
		t.Fatal(err)
	}
	crd, err := os.ReadFile(filepath.Join(module, "config", "components", "crd", "bases", "jobset.x-k8s.io_jobsets.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), crd); err != nil {
		t.Fatal(err)
	}
	set := &unstructured.Unstructured{}
	spec := tm.jobSpec(1)
	template, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		t.Fatal(err)
	}
	tm.eventually("wait for the CRD to be served", func() error {
		set.Object = map[string]any{"spec": map[string]any{"replicatedJobs": []any{
			map[string]any{"name": "w", "replicas": int64(1), "template": map[string]any{"spec": runtime.DeepCopyJSON(template)}},
		}}}
		set.SetGroupVersionKind(jobSet.GVK)
		set.SetNamespace(tm.name)
		set.SetName("train")
		return c.Client.Create(t.Context(), set)
	})
	child := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: tm.name, Name: "train-w-0", Labels: map[string]string{"jobset.sigs.k8s.io/jobset-name": "train", "jobset.sigs.k8s.io/replicatedjob-name": "w"},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(set, jobSet.GVK)}},
		Spec: tm.jobSpec(1, func(spec *batchv1.JobSpec) {
			spec.Template.Labels = map[string]string{"jobset.sigs.k8s.io/jobset-name": "train"}
		}),
	}
	if err := c.Client.Create(t.Context(), child); err != nil {
		t.Fatal(err)
	}
	g := tm.gang(jobSet, "train", 1)
	q = tm.quarantineOf(g.runs()[0].Spec.NodeName)
	restartJobs(t, r, q)
	g.inPhase(restart.Stopping)
	control := func(suspend bool) {
		t.Helper()
		status := metav1.ConditionFalse
		if suspend {
			status = metav1.ConditionTrue
		}
		condition := fmt.Sprintf(`{"status":{"conditions":[{"type":"Suspended","status":%q,"reason":"Test","message":"","lastTransitionTime":%q}]}}`,
			status, time.Now().UTC().Format(time.RFC3339))
		if err := c.Client.Status().Patch(t.Context(), g.object(), client.RawPatch(types.MergePatchType, []byte(condition))); err != nil {
			t.Fatal(err)
		}
		if err := c.Client.Patch(t.Context(), child, client.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"suspend":%t}}`, suspend))); err != nil {
			t.Fatal(err)
		}
	}
	control(true)
	tm.eventually("wait for the resume", func() error {
		if g.read().Suspended {
			return fmt.Errorf("still suspended")
		}
		return nil
	})
	control(false)
	if closed := g.closes(); closed.Phase != restart.Done {
		t.Errorf("record %+v", closed)
	}
}
