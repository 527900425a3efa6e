package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/failure"
)

// A process that begins to watch sees all failed pods that are still listed, those of healthy jobs, too.
func TestOnlyYoungFailuresAreIncidents(t *testing.T) {
	r := newController(nil, nil, Options{Clock: clocktesting.NewFakePassiveClock(noon)}).podFailures
	crashed := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				ExitCode: 1, FinishedAt: metav1.NewTime(noon.Add(-ago))}}}}
		}
	}
	evicted := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { crashed(ago)(p); p.Status.Reason = "Evicted" }
	}
	tests := map[string]struct {
		change func(*corev1.Pod)
		want   int
	}{
		"crashed now":                         {crashed(0), 1},
		"crashed an hour ago":                 {crashed(time.Hour), 1},
		"crashed before that":                 {crashed(time.Hour + time.Second), 0},
		"evicted now":                         {evicted(0), 1},
		"evicted hours ago":                   {evicted(2 * time.Hour), 0},
		"never ran":                           {func(p *corev1.Pod) { p.Status.Reason = "UnexpectedAdmissionError" }, 0},
		"never ran, and is young":             {func(p *corev1.Pod) { p.Status.Reason = "UnexpectedAdmissionError"; p.CreationTimestamp.Time = noon }, 1},
		"its node is lost, nobody knows when": {func(p *corev1.Pod) { p.Status.Phase, p.Status.Reason = corev1.PodRunning, "NodeLost" }, 1},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: "train-0", CreationTimestamp: metav1.NewTime(noon.Add(-48 * time.Hour)),
					OwnerReferences: []metav1.OwnerReference{{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: "job-uid", Controller: ptr.To(true)}}},
				Spec:   corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever},
				Status: corev1.PodStatus{Phase: corev1.PodFailed},
			}
			test.change(pod)
			slim, err := failure.Slim(pod)
			if err != nil {
				t.Fatal(err)
			}
			if got := r.incidents(t.Context(), slim.(*corev1.Pod)); len(got) != test.want {
				t.Errorf("incidents %v", got)
			}
		})
	}
}

var noon = jobstest.Noon

// failing restarts the jobs of failed pods of a team.
func (tm team) failing(l policy.Restart) func(*Options) {
	l.PodFailures = policy.PodFailures{Enabled: true, Pods: labels.SelectorFromSet(labels.Set{"team": tm.name})}
	return limited(l)
}

// watched are pods that the policy of [team.failing] selects, in a job that survives the failure of some.
func (tm team) watched(spec *batchv1.JobSpec) {
	spec.BackoffLimit = ptr.To[int32](10)
	spec.Template.Labels = map[string]string{"team": tm.name}
}

// crash lets a rank's container exit with 1, as a kubelet would report it.
func (tm team) crash(rank corev1.Pod) {
	tm.Helper()
	status := fmt.Appendf(nil, `{"status":{"phase":"Failed","containerStatuses":[{"name":"main","image":"none","imageID":"","ready":false,"restartCount":0,
		"state":{"terminated":{"exitCode":1,"reason":"Error","finishedAt":%q}}}]}}`, time.Now().UTC().Format(time.RFC3339))
	// The restart for another rank may have deleted it.
	if err := tm.c.Client.Status().Patch(tm.Context(), &rank, client.RawPatch(types.MergePatchType, status)); client.IgnoreNotFound(err) != nil {
		tm.Fatal(err)
	}
}

func TestAFailedRankRestartsItsGangOnce(t *testing.T) {
	t.Parallel()
	tm := newTeam(t, 5, nil)
	cfg := tm.config()
	limits := tm.failing(policy.Restart{BackOff: policy.BackOff{First: 2 * time.Second, Max: time.Minute}, CheckCapacity: true})
	_, stop := run(t, cfg, interceptor.Funcs{}, limits)
	g := tm.createJob("train", optedIn, tm.jobSpec(4, tm.watched))
	uid := g.read().Object.GetUID()
	ranks := g.runs()
	tm.crash(ranks[0])
	// The Job controller itself waits for 10 s before it replaces an index that failed once.
	first := g.closes()
	if first.Phase != restart.Done || len(first.Quarantines) != 1 || first.Quarantines[0].Node != ranks[0].Spec.NodeName {
		t.Errorf("record %+v", first)
	}
	tm.event("JobRestarting", uid, "pod "+ranks[0].Name+" failed: container main: Error, exit code 1")
	second := g.runs()
	for _, old := range ranks {
		if slices.ContainsFunc(second, func(young corev1.Pod) bool { return young.UID == old.UID }) {
			t.Errorf("rank %s was not restarted", old.Name)
		}
	}
	stop()
	// The failed pod is still listed, and a new process sees it again.
	run(t, cfg, interceptor.Funcs{}, limits)
	for _, rank := range second[:3] { // one takes others with it
		tm.crash(rank)
	}
	var again restart.Restart // starting, or closed by now
	g.eventually("wait for the second restart", func() error {
		switch rec := g.record(); {
		case rec.Total < 2, rec.Current != nil && rec.Current.Phase != restart.Starting:
			return fmt.Errorf("record %+v", rec)
		case rec.Current != nil:
			again = *rec.Current
		default:
			again = rec.Last[0]
		}
		return nil
	})
	if rec := g.record(); rec.Total != 2 || len(again.Quarantines) != 1 || again.StartedAt.Sub(first.EndedAt) < 2*time.Second {
		t.Errorf("record %+v", rec)
	}
}

// Hundreds of ranks fail together, and the restart has to wait for hours.
func TestOneOfTheFailedRanksWaits(t *testing.T) {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job-uid"},
		Spec:       batchv1.JobSpec{Parallelism: ptr.To[int32](4), Completions: ptr.To[int32](4), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}
	last, err := json.Marshal(restart.Record{V: 1, JobUID: job.UID, Total: 1, Last: []restart.Restart{{Phase: restart.Done, Streak: 1, PhaseSince: noon, EndedAt: noon}}})
	if err != nil {
		t.Fatal(err)
	}
	job.Labels, job.Annotations = optedIn, map[string]string{conditions.AnnotationRestart: string(last)}
	api := fake.NewClientBuilder().WithObjects(job).Build()
	clock := clocktesting.NewFakePassiveClock(noon.Add(time.Minute))
	o := Options{Recorder: events.NewFakeRecorder(10), Clock: clock}
	limited(policy.Restart{PodFailures: policy.PodFailures{Enabled: true}, BackOff: policy.BackOff{First: 3 * time.Hour, Max: 3 * time.Hour}})(&o)
	r := newController(api, api, o).podFailures
	rank := func(name string, created time.Time) incident {
		return incident{namespace: "team", pod: name, why: "Evicted", created: created.Unix(), at: noon.Unix(), owner: owner{"batch/v1", "Job", "train", job.UID}, labels: "a=b"}
	}
	first, second := rank("train-0", noon.Add(time.Second)), rank("train-1", noon.Add(time.Second))
	// Whoever may create pods can name the job.
	foreign := rank("foreign", noon.Add(time.Second))
	foreign.labels = "a=c"
	for i, step := range []struct {
		in    incident
		now   time.Duration
		waits time.Duration
	}{
		{foreign, time.Minute, 0}, {rank("old", noon.Add(-time.Second)), time.Minute, 0}, {first, time.Minute, 179 * time.Minute},
		{second, time.Minute, 0}, {first, 2 * time.Hour, time.Hour},
	} {
		clock.SetTime(noon.Add(step.now))
		if result, err := r.reconcileFailure(t.Context(), step.in); err != nil || result.RequeueAfter != step.waits {
			t.Errorf("step %d: pod %s is looked at again after %s: %v", i, step.in.pod, result.RequeueAfter, err)
		}
	}
	named := func() int { return len(r.admission.reporter.Waiting.Current(t.Context(), api)) }
	if n := named(); n != 1 {
		t.Errorf("the metric names %d jobs", n)
	}
	if err := api.Delete(t.Context(), job); err != nil {
		t.Fatal(err)
	}
	if result, err := r.reconcileFailure(t.Context(), first); err != nil || result.RequeueAfter != 0 || len(r.waiting) != 0 {
		t.Errorf("looked at again after %s: %v; %d wait", result.RequeueAfter, err, len(r.waiting))
	}
	if n := named(); n != 0 {
		t.Errorf("the metric names %d jobs after the deletion", n)
	}
}

func TestAFailedRankIsLeftToWhoeverMindsIt(t *testing.T) {
	t.Parallel()
	tests := map[string]func(team) gang{
		"of a job that is not opted in":   func(tm team) gang { return tm.createJob("train", nil, tm.jobSpec(2, tm.watched)) },
		"of a JobSet with its own policy": func(tm team) gang { return tm.createJobSet("train", optedIn, tm.jobSpec(1, tm.watched)) },
	}
	for name, create := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tm := newTeam(t, 2, nil)
			r, _ := run(t, tm.config(), interceptor.Funcs{}, tm.failing(policy.Restart{}))
			g := create(tm)
			ranks := g.runs()
			rank := ranks[0].DeepCopy()
			rank.Status.Phase, rank.Status.Reason = corev1.PodFailed, "Evicted"
			found := r.podFailures.incidents(t.Context(), rank)
			if len(found) != 1 {
				t.Fatalf("incidents %v", found)
			}
			if result, err := r.podFailures.reconcileFailure(t.Context(), found[0]); err != nil || result.RequeueAfter != 0 {
				t.Errorf("looked at again after %s: %v", result.RequeueAfter, err)
			}
			g.unharmed(ranks)
		})
	}
}

// A failure may wait in the queue, or while everything is paused, until its job is healthy again.
func TestAFailureThatGotOldBeforeItWasLookedAtRestartsNothing(t *testing.T) {
	for name, test := range map[string]struct {
		age   time.Duration
		stops bool
	}{"young": {time.Minute, true}, "old": {oldFailure + time.Second, false}} {
		t.Run(name, func(t *testing.T) {
			job := &batchv1.Job{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "job-uid", Labels: optedIn},
				Spec: batchv1.JobSpec{Parallelism: ptr.To[int32](1), Completions: ptr.To[int32](1), BackoffLimit: ptr.To[int32](100),
					Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
			}
			ref := metav1.OwnerReference{APIVersion: "batch/v1", Kind: "Job", Name: "train", UID: job.UID, Controller: ptr.To(true)}
			healthy := &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train-1", UID: "p1", Labels: map[string]string{"a": "b"}, OwnerReferences: []metav1.OwnerReference{ref}},
				Spec:       corev1.PodSpec{NodeName: "n"},
				Status:     corev1.PodStatus{Phase: corev1.PodRunning},
			}
			api := fake.NewClientBuilder().WithObjects(job, healthy, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}},
				&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}).WithInterceptorFuncs(interceptor.Funcs{
				List: func(ctx context.Context, c client.WithWatch, l client.ObjectList, opts ...client.ListOption) error {
					return c.List(ctx, l, client.InNamespace("team")) // the fake knows no selectors of fields
				},
			}).Build()
			clock := clocktesting.NewFakePassiveClock(noon)
			o := Options{Recorder: events.NewFakeRecorder(10), Clock: clock}
			limited(policy.Restart{PodFailures: policy.PodFailures{Enabled: true}})(&o)
			c := newController(api, api, o)
			c.reconciler.watcher.Watcher = watches(t, api, batchv1.SchemeGroupVersion.WithKind("Job"))
			failed := healthy.DeepCopy()
			failed.Name, failed.UID, failed.Status.Phase, failed.Status.Reason = "train-0", "p0", corev1.PodFailed, "Evicted"
			failed.CreationTimestamp = metav1.NewTime(noon)
			in := c.podFailures.incidents(t.Context(), failed)
			if len(in) != 1 {
				t.Fatalf("incidents %v", in)
			}
			clock.SetTime(noon.Add(test.age))
			if _, err := c.podFailures.reconcileFailure(t.Context(), in[0]); err != nil {
				t.Fatal(err)
			}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(job), job); err != nil {
				t.Fatal(err)
			}
			if stops := ptr.Deref(job.Spec.Suspend, false); stops != test.stops {
				t.Errorf("the job is stopped: %t, want %t", stops, test.stops)
			}
		})
	}
}
