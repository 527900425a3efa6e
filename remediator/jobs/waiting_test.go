package jobs

import (
	"context"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// Services are on most nodes, and no label is no mistake there.
func TestWhichJobsAreToldThatTheyHaveNotOptedIn(t *testing.T) {
	misspelt := kinds.OptIn{Mistakes: []string{"x"}}
	none, in, out := kinds.OptIn{}, kinds.OptIn{In: true, By: "x=true"}, kinds.OptIn{By: "x=false"}
	job, service := jobstest.Kind("batch/v1", "Job"), jobstest.Kind("apps/v1", "Deployment")
	tainted, failed := restart.Trigger{Kind: restart.NodeQuarantined, Taint: corev1.Taint{Key: "x"}}, restart.Trigger{Kind: restart.PodFailed}
	for name, test := range map[string]struct {
		q    restart.Trigger
		kind kinds.Kind
		opt  kinds.OptIn
		done string
		want bool
	}{
		"a job":                      {tainted, job, none, "", true},
		"a misspelt job":             {tainted, job, misspelt, "", true},
		"a job that is in":           {tainted, job, in, "", false},
		"a job that is out":          {tainted, job, out, "", false},
		"a job that has ended":       {tainted, job, none, "Complete", false},
		"a failed pod":               {failed, job, none, "", false},
		"a Deployment":               {tainted, service, none, "", false},
		"a Deployment with mistakes": {tainted, service, misspelt, "", true},
	} {
		j := restart.Job{Object: &metav1.ObjectMeta{Namespace: "team", Name: "train"}}
		j.FinishedReason = test.done
		if got := missesOptIn(test.q, kinds.Workload{Kind: test.kind, Job: &j}, test.opt); got != test.want {
			t.Errorf("%s: %t", name, got)
		}
	}
}

// onNodeA is a controller with these pods on node a, a quarantine of the node, and what the metrics name, as "kind namespace/job reason".
func onNodeA(t *testing.T, on interceptor.Funcs, pods []*corev1.Pod, objects ...client.Object) (*Controller, restart.Trigger, func() []string) {
	t.Helper()
	if on.List == nil {
		on.List = func(ctx context.Context, api client.WithWatch, list client.ObjectList, opts ...client.ListOption) error {
			for _, pod := range pods {
				switch into := list.(type) {
				case *corev1.PodList:
					into.Items = append(into.Items, *pod.DeepCopy())
				case *metav1.PartialObjectMetadataList:
					into.Items = append(into.Items, metav1.PartialObjectMetadata{ObjectMeta: *pod.ObjectMeta.DeepCopy()})
				default:
					return api.List(ctx, list, opts...)
				}
			}
			return nil
		}
	}
	api := fake.NewClientBuilder().WithObjects(append(objects, recorded("a"))...).WithInterceptorFuncs(on).Build()
	c := newController(api, api, Options{Recorder: events.NewFakeRecorder(100), Clock: clocktesting.NewFakeClock(noon)})
	c.reconciler.watcher.Watcher = watches(t, api)
	q := restart.Trigger{Kind: restart.NodeQuarantined, ID: "q-a", Node: "a", NodeUID: "a-uid", Since: noon, Taint: corev1.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule}}
	registry := prometheus.NewPedanticRegistry()
	registry.MustRegister(c.reporter.All(api)...)
	return c, q, func() (all []string) {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range families {
			for _, m := range f.GetMetric() {
				l := map[string]string{}
				for _, pair := range m.GetLabel() {
					l[pair.GetName()] = pair.GetValue()
				}
				switch f.GetName() {
				case "pitcrew_job_restart_blocked_total":
					all = append(all, fmt.Sprintf("%s counted %v: %s", l["kind"], m.GetCounter().GetValue(), l["reason"]))
				case "pitcrew_job_not_restarted_timestamp_seconds":
					all = append(all, fmt.Sprintf("%s %s/%s %s", l["kind"], l["namespace"], l["job"], l["reason"]))
				}
			}
		}
		return all
	}
}

// ownedBy is an opted-in pod on node a. Whoever may create pods can write anything as their owner.
func ownedBy(kind, name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "worker", UID: "worker-uid", OwnerReferences: []metav1.OwnerReference{
			{APIVersion: "example.com/v1", Kind: kind, Name: name, UID: "x", Controller: ptr.To(true)}}},
		Spec:   corev1.PodSpec{NodeName: "a"},
		Status: corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func TestAnUnknownOwnerIsNoLabelOfAMetric(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	for name, pod := range map[string]*corev1.Pod{"long": ownedBy(long, long), "no UTF-8": ownedBy("\xff", "\xff"), "a command": ownedBy("Tool", "x; rm -rf /")} {
		t.Run(name, func(t *testing.T) {
			team := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: optedIn}}
			c, q, named := onNodeA(t, interceptor.Funcs{}, []*corev1.Pod{pod}, team)
			if after, err := c.RestartJobsOnNode(t.Context(), q); after != report.RecheckSoon || err != nil {
				t.Errorf("again after %s: %v", after, err)
			}
			want := []string{"Pod team/worker UnknownOwner", "other counted 1: UnknownOwner"}
			if got := named(); !slices.Equal(slices.Sorted(slices.Values(got)), want) {
				t.Errorf("got %.300q, want %q", got, want)
			}
		})
	}
}

// A panic of a collector would end the process, again at each scrape.
func TestAValueThatIsNoLabelIsLeftOut(t *testing.T) {
	c, q, named := onNodeA(t, interceptor.Funcs{}, nil)
	c.reporter.Waiting.Begin(q)
	c.reporter.Waiting.Add(q.ID, report.Job{Kind: "Job", Namespace: "team", Name: "\xff", Reason: "BackOff"})
	c.reporter.Waiting.Add(q.ID, report.Job{Kind: "Job", Namespace: "team", Name: "train", Reason: "BackOff"})
	if got, want := named(), []string{"Job team/train BackOff"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A tenant's job that is too large to judge is named, and the node is looked at again no sooner for it.
func TestAJobThatIsTooLargeToJudgeIsNoError(t *testing.T) {
	rank := rankOf("train", 0)
	rank.Spec.NodeName, rank.Status.Phase = "a", corev1.PodRunning
	c, q, named := onNodeA(t, interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "train" {
				return fmt.Errorf("job: %w", slim.ErrTooLarge)
			}
			return api.Get(ctx, key, o, opts...)
		},
	}, []*corev1.Pod{rank})
	if after, err := c.RestartJobsOnNode(t.Context(), q); after != report.RecheckSoon || err != nil {
		t.Errorf("again after %s: %v", after, err)
	}
	if got := named(); !slices.Equal(got, []string{" / Error"}) {
		t.Errorf("got %q", got)
	}
}

// A node on which nothing waits is taken for handled by its alert.
func TestAnErrorIsNamedUntilTheNextLook(t *testing.T) {
	job := labelled(t, "train", restart.Restart{})
	job.Labels, job.Annotations = maps.Clone(optedIn), nil
	job.Spec.Parallelism, job.Spec.Completions = ptr.To[int32](1), ptr.To[int32](1)
	rank := rankOf("train", 0)
	rank.Spec.NodeName, rank.Status.Phase = "a", corev1.PodRunning
	refused := apierrors.NewForbidden(schema.GroupResource{Group: "batch", Resource: "jobs"}, "train", nil)
	for name, test := range map[string]struct {
		on   func(fails *bool) interceptor.Funcs
		want string
	}{
		"a patch that is refused": {func(fails *bool) interceptor.Funcs {
			return interceptor.Funcs{Patch: func(ctx context.Context, api client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
				if *fails {
					return refused
				}
				return api.Patch(ctx, o, p, opts...)
			}}
		}, "Job team/train Error"},
		"an owner that cannot be read": {func(fails *bool) interceptor.Funcs {
			return interceptor.Funcs{Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
				if *fails && key.Name == "train" {
					return refused
				}
				return api.Get(ctx, key, o, opts...)
			}}
		}, " / Error"},
		"pods that cannot be listed": {func(fails *bool) interceptor.Funcs {
			return interceptor.Funcs{List: func(_ context.Context, _ client.WithWatch, _ client.ObjectList, _ ...client.ListOption) error {
				if *fails {
					return refused
				}
				return nil
			}}
		}, " / Error"},
	} {
		t.Run(name, func(t *testing.T) {
			fails, rank := true, rank.DeepCopy()
			c, q, named := onNodeA(t, test.on(&fails), []*corev1.Pod{rank}, job.DeepCopy())
			for range 2 {
				if _, err := c.RestartJobsOnNode(t.Context(), q); !apierrors.IsForbidden(err) {
					t.Fatalf("error %v", err)
				}
				if got := named(); !slices.Equal(got, []string{test.want}) {
					t.Errorf("got %q, want %q", got, test.want)
				}
			}
			fails, rank.Status.Phase = false, corev1.PodSucceeded
			if _, err := c.RestartJobsOnNode(t.Context(), q); err != nil {
				t.Fatal(err)
			}
			if got := named(); len(got) != 0 {
				t.Errorf("got %q after the error", got)
			}
		})
	}
}

// Between the decision to restart jobs and the stop of one, pods and owners are read. A policy that is reloaded meanwhile, or a pause that
// the cache does not show yet, stops it.
func TestNoJobIsStoppedByADecisionThatStandsNoMore(t *testing.T) {
	const enforces = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  rules: {xid: {match: {condition: GPUXidError, repair: [Reboot]}, restartJobs: true}}
`
	job := labelled(t, "train", restart.Restart{})
	job.Labels, job.Annotations = maps.Clone(optedIn), nil
	job.Spec.Parallelism, job.Spec.Completions = ptr.To[int32](1), ptr.To[int32](1)
	rank := rankOf("train", 0)
	rank.Spec.NodeName, rank.Status.Phase = "a", corev1.PodRunning
	for name, test := range map[string]struct {
		// then is the policy after the reload.
		then   string
		paused bool
		want   string
	}{
		"nothing happens":                {enforces, false, ""},
		"the policy observes":            {strings.Replace(enforces, "mode: enforce", "mode: observe", 1), false, "has changed since it was decided"},
		"the rule restarts no job":       {strings.Replace(enforces, ", restartJobs: true", "", 1), false, "has changed since it was decided"},
		"a pause, and the cache is late": {enforces, true, "while everything is paused"},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "policy.yaml")
			write := func(text string) {
				if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			write(enforces)
			file, err := policy.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			c, q, _ := onNodeA(t, interceptor.Funcs{
				Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
					if key.Name == job.Name { // after the pods
						write(test.then)
						if _, err := file.Reload(); err != nil {
							t.Error(err)
						}
					}
					return api.Get(ctx, key, o, opts...)
				},
			}, []*corev1.Pod{rank}, job.DeepCopy())
			c.admission.gate.Policy = file
			if test.paused {
				c.admission.gate.Live = fake.NewClientBuilder().WithObjects(&corev1.ConfigMap{
					ObjectMeta: metav1.ObjectMeta{Namespace: "pitcrew", Name: conditions.PauseConfigMap}}).Build()
			}
			_, err = c.RestartJobsOnNode(t.Context(), q)
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			read, err := batchJob.Read(t.Context(), c.apiReader, client.ObjectKeyFromObject(job))
			if err != nil {
				t.Fatal(err)
			}
			if stopped := read.Suspended; stopped != (test.want == "") {
				t.Errorf("stopped: %t", stopped)
			}
		})
	}
}

// Too many pods of a namespace are no error, after which they would be listed again at once: that is what a tenant could want.
func TestPodsThatAreNotJudgedAreLookedAtLater(t *testing.T) {
	var pods []*corev1.Pod
	for i := range 600 {
		pod := ownedBy("Tool", "x")
		pod.Namespace, pod.Name = "mallory", fmt.Sprint("worker-", i)
		pods = append(pods, pod)
	}
	c, q, named := onNodeA(t, interceptor.Funcs{}, pods)
	after, err := c.RestartJobsOnNode(t.Context(), q)
	if got := named(); after != report.RecheckSoon || err != nil || !slices.Equal(got, []string{" / Error"}) {
		t.Errorf("again after %s: %v; %q", after, err, got)
	}
}

// Each look lists the pods of the node, and a job may be left alone for weeks.
func TestANodeIsLookedAtLessOftenLater(t *testing.T) {
	pod := ownedBy("Tool", "x")
	pod.OwnerReferences, pod.Labels = nil, optedIn
	c, q, _ := onNodeA(t, interceptor.Funcs{}, []*corev1.Pod{pod})
	for since, want := range map[time.Duration]time.Duration{0: time.Minute, 14 * time.Minute: time.Minute, 15 * time.Minute: 5 * time.Minute, 24 * time.Hour: 5 * time.Minute} {
		q.Since = noon.Add(-since)
		if after, err := c.RestartJobsOnNode(t.Context(), q); after != want || err != nil {
			t.Errorf("after %s: again after %s, want %s: %v", since, after, want, err)
		}
	}
	if report.ForgetAfter < 2*report.RecheckLate {
		t.Errorf("a job is forgotten after %s, between two looks", report.ForgetAfter)
	}
}
