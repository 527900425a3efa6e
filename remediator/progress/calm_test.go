package progress

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
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
			r.clock.ahead.Add(int64(20 * time.Minute))
			if c.reported {
				r.minute()
				r.eventually("the report", func() error {
					if n := len(r.notes(eventStalled)); n != 1 {
						return fmt.Errorf("%d Events", n)
					}
					return nil
				})
				r.clock.ahead.Add(int64(time.Minute))
			}
			before := r.about("train")

			// The next look decides. While it waits for the log, the job opts out; that the second job is followed then proves that this was seen.
			asked, answer, answered := make(chan struct{}, 100), make(chan struct{}), make(chan error, 100)
			r.k.mu.Lock()
			r.k.first[pod["train"]] = func(_ http.ResponseWriter, q *http.Request) bool {
				asked <- struct{}{}
				<-answer
				answered <- q.Context().Err()
				return false
			}
			r.k.mu.Unlock()
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

			// The second job stands still for as long, and is reported and restarted.
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
	f, _ := newFollower()
	now := clocktesting.NewFakePassiveClock(noon)
	f.Clock, f.reads = now, newReads(now)
	p := &policy.Policy{}
	p.Restart.Stalls.Mode = policy.StallsObserve
	f.Policy, f.Jobs, f.silent = policy.Fixed(p), &asked{}, map[request]time.Time{}
	job := func(namespace string) *batchv1.Job {
		return &batchv1.Job{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "train", UID: types.UID(namespace), Annotations: optIn},
			Spec:       batchv1.JobSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"a": "b"}}},
		}
	}
	stored := fake.NewClientBuilder().WithObjects(job("a"), job("b")).Build()
	read := map[string]int{}
	f.watcher = &latekinds.Watcher{Cache: jobCache{from: stored}}
	f.apiReader = interceptor.NewClient(stored, interceptor.Funcs{
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
	waits := wake("a", 2*namespaceBurst)
	if read["a"] != namespaceBurst || waits < retryShort || waits > 2*retryShort {
		t.Errorf("%d of %d looks at once, the next after %s", read["a"], 2*namespaceBurst, waits)
	}
	if wake("b", 1); read["b"] != 1 {
		t.Error("another namespace waits for it")
	}
	now.SetTime(noon.Add(5 * time.Second))
	if wake("a", 100); read["a"] != namespaceBurst+5*namespaceReadsPerSecond {
		t.Errorf("%d looks in five more seconds", read["a"]-namespaceBurst)
	}
}
