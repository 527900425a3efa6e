package progress

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// An operator may write the status of its jobs every second, and a tenant its annotations.
func TestAChangeOfAJobThatRunsBringsNoLookForward(t *testing.T) {
	r := newRig(t, "woken", 1, optIn)
	defer r.run()()
	r.all("step 1")
	r.minute()
	reads := r.k.reads()
	for i := range 5 {
		looks := r.looks()
		r.touch(map[string]any{"e2e.pitcrew.dev/wake": fmt.Sprint(i)})
		r.eventually("the change is seen", func() error {
			if r.looks() == looks {
				return fmt.Errorf("it is not")
			}
			return nil
		})
	}
	r.minute()
	if n := r.k.reads() - reads; n != 1 {
		t.Errorf("%d reads in a minute in which the job changed", n)
	}
}

// second makes another job of one rank, without GPUs, that is not followed, and waits until it runs.
func (r *rig) second() *batchv1.Job {
	r.Helper()
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: r.name, Name: "second"}, Spec: *r.job.Spec.DeepCopy()}
	job.Labels = map[string]string{conditions.LabelRestartOnNodeFault: "true"}
	job.Spec.Selector = nil
	job.Spec.Template.Labels = nil
	job.Spec.Template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	if err := r.c.Client.Create(r.Context(), job); err != nil {
		r.Fatal(err)
	}
	r.running(2)
	return job
}

// about are the reasons of the Events about a job.
func (r *rig) about(job string) (reasons []string) {
	r.Helper()
	var list eventsv1.EventList
	if err := r.c.Client.List(r.Context(), &list, client.InNamespace(r.name)); err != nil {
		r.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == "Job" && e.Regarding.Name == job && e.ReportingController == "pitcrew" {
			reasons = append(reasons, e.Reason)
		}
	}
	return reasons
}

// A job that opts out while its logs are read is left alone from then on, whatever these show.
func TestAnOptOutDuringALook(t *testing.T) {
	for _, c := range []struct {
		name     string
		reported bool // before the look in which it opts out
	}{{"before it would be reported", false}, {"before it would be restarted", true}} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, "opt-out-"+fmt.Sprint(c.reported), 1, optIn)
			r.config.Restart.Stalls.Mode = policy.StallsRestart
			train, second := r.job, r.second()
			pod := map[string]string{} // by job
			for _, name := range r.pods {
				pod[strings.Split(name, "-")[0]] = name
			}
			label := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"labels":{"`+conditions.LabelRestartOnNodeFault+`":"true"}}}`))
			if err := r.c.Client.Patch(t.Context(), train.DeepCopy(), label); err != nil {
				t.Fatal(err)
			}
			defer r.run()()
			r.all("step 1")
			r.minute()
			r.minute()
			silent := 20 * time.Minute
			if c.reported {
				r.clock.ahead.Add(int64(silent))
				r.minute()
				r.eventually("the report", func() error {
					if n := len(r.notes(eventStalled)); n != 1 {
						return fmt.Errorf("%d Events", n)
					}
					return nil
				})
				silent = time.Minute
			}
			before := r.about("train")

			// The next look decides, whatever begins it. While it waits for the log, the job opts out; that the second job is followed then proves that
			// this was seen.
			asked, answer, answered := make(chan struct{}, 100), make(chan struct{}), make(chan error, 100)
			r.k.mu.Lock()
			r.k.first[pod["train"]] = func(_ http.ResponseWriter, q *http.Request) bool {
				asked <- struct{}{}
				<-answer
				answered <- q.Context().Err()
				return false
			}
			r.k.mu.Unlock()
			r.clock.ahead.Add(int64(silent))
			r.touch(map[string]any{"e2e.pitcrew.dev/tick": "decide"})
			<-asked
			r.touch(map[string]any{conditions.AnnotationProgress: nil})
			r.job = second
			opted := map[string]any{}
			for key, value := range optIn {
				opted[key] = value
			}
			r.touch(opted)
			r.eventually("the second job is followed", func() error {
				r.k.mu.Lock()
				defer r.k.mu.Unlock()
				if r.k.asked[pod["second"]] == 0 {
					return fmt.Errorf("it is not")
				}
				return nil
			})
			close(answer)
			if err := <-answered; err != nil {
				t.Fatalf("this machine is too slow: the read of the log is over: %v", err)
			}

			// The second job is stalled for as long, and is reported and restarted.
			r.eventually("the restart of the second job", func() error {
				if r.record().Total == 0 {
					r.minute()
				}
				if rec := r.record(); rec.Total == 0 {
					return fmt.Errorf("%+v, %q", rec, r.about("second"))
				}
				return nil
			})
			if n := len(asked); n > 0 {
				t.Errorf("%d reads of the log of the job that opted out", n)
			}
			if after := r.about("train"); len(after) != len(before) {
				t.Errorf("Events %q, and %q before it opted out", after, before)
			}
			r.job = train
			if rec := r.record(); rec.Current != nil || rec.Total > 0 {
				t.Errorf("%+v", rec)
			}
		})
	}
}

// jobCache has what a client has.
type jobCache struct {
	cache.Cache
	from client.Client
}

func (c jobCache) Get(ctx context.Context, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
	return c.from.Get(ctx, key, object, o...)
}

// Whoever may write a job can have us look at it at any time. While it does not run, each look lists its pods.
func TestLooksAtJobsThatDoNotRunArePaced(t *testing.T) {
	job := func(namespace string) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train", UID: types.UID(namespace), Annotations: optIn},
			Spec:       batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
		}
	}
	f, _, now := pacedFollower(job("a"), job("b"))
	read := map[string]int{}
	f.apiReader = interceptor.NewClient(f.api.(client.WithWatch), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, object client.Object, o ...client.GetOption) error {
			read[key.Namespace]++
			return c.Get(ctx, key, object, o...)
		},
	})
	wake := func(namespace string, times int) (waits time.Duration) {
		for range times {
			result, err := f.Reconcile(t.Context(), request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: types.NamespacedName{Namespace: namespace, Name: "train"}})
			if err != nil {
				t.Fatal(err)
			}
			waits = result.RequeueAfter
		}
		return waits
	}
	const compiled = 2 // each expression took the place of a look
	waits := wake("a", 2*namespaceBurst)
	if read["a"] != namespaceBurst-compiled || waits < retryShort || waits > 2*retryShort {
		t.Errorf("%d of %d looks at once, the next after %s", read["a"], 2*namespaceBurst, waits)
	}
	if wake("b", 1); read["b"] != 1 {
		t.Error("another namespace waits for it")
	}
	now.SetTime(noon.Add(5 * time.Second))
	if wake("a", 100); read["a"] != namespaceBurst-compiled+5*namespaceReadsPerSecond {
		t.Errorf("%d looks in five more seconds", read["a"]+compiled-namespaceBurst)
	}
}

// slowJobs list the pods of a job for some time, as an API server does whose pods have a megabyte each.
type slowJobs struct {
	asked
	clock *clocktesting.FakePassiveClock
	lists int
}

func (s *slowJobs) ActivePods(context.Context, restart.Job) ([]corev1.Pod, error) {
	s.lists++
	s.clock.SetTime(s.clock.Now().Add(5 * time.Second))
	return nil, nil
}

// A tenant with one job that does not run and 200 pods of a megabyte had them listed four times a second, by all who list.
func TestListsThatTakeLongCountAsManyReads(t *testing.T) {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "train", UID: "a", Annotations: optIn},
		Spec:       batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}
	f, _, now := pacedFollower(job)
	slow := &slowJobs{clock: now}
	f.Jobs = slow
	for now.Now().Before(noon.Add(10 * time.Minute)) {
		if _, err := f.Reconcile(t.Context(), requestOf(job)); err != nil {
			t.Fatal(err)
		}
		now.SetTime(now.Now().Add(time.Second / namespaceReadsPerSecond))
	}
	// The burst, and then one each 25 s.
	if most := namespaceBurst/maxCharged + 2 + 10*60*namespaceReadsPerSecond/maxCharged; slow.lists < most/2 || slow.lists > most {
		t.Errorf("%d lists in ten minutes, want at most %d", slow.lists, most)
	}
}

// pacedFollower follows the jobs of a fake client. Its clock stands still until it is moved.
func pacedFollower(objects ...client.Object) (*follower, *events.FakeRecorder, *clocktesting.FakePassiveClock) {
	f, recorder := newFollower()
	now := clocktesting.NewFakePassiveClock(noon)
	p := &policy.Policy{}
	p.Restart.Stalls.Mode = policy.StallsObserve
	f.Clock, f.reads, f.Policy, f.Jobs, f.quiet = now, newReads(now), policy.Fixed(p), &asked{}, map[request]time.Time{}
	stored := fake.NewClientBuilder().WithObjects(objects...).Build()
	f.watcher, f.apiReader, f.api = &latekinds.Watcher{Cache: jobCache{from: stored}}, stored, stored
	return f, recorder, now
}

// Whoever may write a job can change its annotations at any pace. Each expression is compiled, and each text may be refused with an Event.
func TestAnnotationsAreTakenAtThePaceOfTheirNamespace(t *testing.T) {
	for key, cost := range map[string]int{conditions.AnnotationProgress: 2, conditions.AnnotationStalledAfter: 1} {
		job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "train", UID: "a", Annotations: maps.Clone(optIn)}}
		delete(job.Annotations, conditions.AnnotationProgressPause)
		f, recorder, now := pacedFollower(job)
		write := func(from, to int) {
			for i := from; i < to; i++ {
				job.Annotations[key] = fmt.Sprintf("(%d", i)
				if err := f.api.Update(t.Context(), job); err != nil {
					t.Fatal(err)
				}
				if _, err := f.Reconcile(t.Context(), requestOf(job)); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(0, 2*namespaceBurst)
		if n := len(recorder.Events); n < namespaceBurst/cost-1 || n > namespaceBurst/cost || f.compiled.Len() > maxCompiled {
			t.Errorf("%s: %d of %d were taken at once, %d expressions are kept", key, n, 2*namespaceBurst, f.compiled.Len())
		}
		before := len(recorder.Events)
		now.SetTime(noon.Add(5 * time.Second))
		if write(1000, 1100); len(recorder.Events)-before > 5*namespaceReadsPerSecond/cost+1 {
			t.Errorf("%s: %d in five more seconds", key, len(recorder.Events)-before)
		}
	}
}

// A namespace full of jobs that wait in a queue would take the places of those that run.
func TestAJobThatWaitsSuspendedTakesNoPlace(t *testing.T) {
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "train", UID: "a", Annotations: optIn},
		Spec:       batchv1.JobSpec{Suspend: ptr.To(true), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
	}
	f, _, _ := pacedFollower(job)
	look := func(suspended bool) int {
		job.Spec.Suspend = &suspended
		if err := f.api.Update(t.Context(), job); err != nil {
			t.Fatal(err)
		}
		if _, err := f.Reconcile(t.Context(), requestOf(job)); err != nil {
			t.Fatal(err)
		}
		return f.taken
	}
	if before, runs, stopped := look(true), look(false), look(true); before != 0 || runs != 1 || stopped != 1 {
		t.Errorf("%d places before it runs, %d then, %d while it is stopped", before, runs, stopped)
	}
}

func requestOf(job *batchv1.Job) request {
	return request{Kind: kinds.BuiltIn()[0].GVK, NamespacedName: client.ObjectKeyFromObject(job)}
}
