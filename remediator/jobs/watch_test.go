package jobs

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/jobstest"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/latekinds"
)

// watching counts what is watched and watches nothing.
type watching struct {
	controller.TypedController[request]
	n int
}

func (w *watching) Watch(source.TypedSource[request]) error {
	w.n++
	return nil
}

// watches returns a watcher that watches these kinds, of which nothing comes, and to which no others are served.
func watches(t *testing.T, api client.Reader, kinds ...schema.GroupVersionKind) *latekinds.Watcher {
	t.Helper()
	served := meta.NewDefaultRESTMapper(nil)
	w := &latekinds.Watcher{APIReader: api, Mapper: served, Controller: &watching{}}
	for _, gvk := range kinds {
		served.Add(gvk, meta.RESTScopeNamespace)
		if err := w.Watch(t.Context(), gvk, nil); err != nil {
			t.Fatal(err)
		}
	}
	return w
}

func TestANewLeaderWaitsForAKindThatItCannotList(t *testing.T) {
	served := meta.NewDefaultRESTMapper(nil)
	for _, k := range []kinds.Kind{jobstest.Kind("batch/v1", "Job"), jobstest.Kind("jobset.x-k8s.io/v1alpha2", "JobSet"), jobstest.Kind("kubeflow.org/v1", "PyTorchJob")} {
		served.Add(k.GVK, meta.RESTScopeNamespace)
	}
	var refusal error = apierrors.NewInternalError(errors.New("conversion webhook failed"))
	reader := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			if list.GetObjectKind().GroupVersionKind().Kind == "JobSetList" {
				return refusal
			}
			return nil
		},
	})
	seen, now := &watching{}, clocktesting.NewFakePassiveClock(noon)
	jobs := &notSynced{}
	r := watcher{settings: &settings{}, Watcher: &latekinds.Watcher{APIReader: reader, Mapper: served, Controller: seen, Cache: jobs, Clock: now}}
	const longest = time.Hour
	// known is what is known of restarts under way; it names what may be missing.
	known := func(watched int, missing string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := r.underRestart(ctx, longest)
		if missing == "" && err != nil || missing != "" && (err == nil || !strings.Contains(err.Error(), missing)) || seen.n != watched {
			t.Errorf("%d kinds watched, %v; want %d, %q", seen.n, err, watched, missing)
		}
	}
	known(2, "conversion webhook failed")
	served.Add(jobstest.Kind("ray.io/v1", "RayJob").GVK, meta.RESTScopeNamespace)
	known(3, "conversion webhook failed")
	now.SetTime(noon.Add(longest))
	known(3, "conversion webhook failed")
	now.SetTime(noon.Add(longest + 1)) // none that was under way at the start can be
	known(3, "")
	now.SetTime(noon)
	refusal = apierrors.NewForbidden(schema.GroupResource{Resource: "jobsets"}, "", nil)
	known(3, "")
	refusal = nil
	if r.watchAll(t.Context()); seen.n != 4 {
		t.Errorf("%d kinds watched", seen.n)
	}
	known(4, "")
	jobs.kind = "JobSetList"
	known(4, "list the JobSets: context deadline exceeded")
	now.SetTime(noon.Add(longest + 1))
	known(4, "")
}

// lateMapper knows the kinds that are served by now.
type lateMapper struct {
	meta.RESTMapper
	now atomic.Pointer[meta.DefaultRESTMapper]
}

func (m *lateMapper) serve(all ...kinds.Kind) {
	now := meta.NewDefaultRESTMapper(nil)
	for _, k := range all {
		now.Add(k.GVK, meta.RESTScopeNamespace)
	}
	m.now.Store(now)
}

func (m *lateMapper) RESTMapping(kind schema.GroupKind, versions ...string) (*meta.RESTMapping, error) {
	return m.now.Load().RESTMapping(kind, versions...)
}

// A CRD that is installed later, or that an API server does not serve yet when a replica begins to lead, is looked for every minute.
func TestAKindThatIsServedLaterIsWatched(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		served, seen := &lateMapper{}, &watching{}
		served.serve()
		reader := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
			List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return nil },
		})
		w := watcher{settings: &settings{}, Watcher: &latekinds.Watcher{
			APIReader: reader, Mapper: served, Controller: seen, Clock: clock.RealClock{}, // that of the bubble
		}}
		ctx, end := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- w.keepWatching(ctx) }()
		all := []kinds.Kind{
			jobstest.Kind("batch/v1", "Job"), jobstest.Kind("jobset.x-k8s.io/v1alpha2", "JobSet"), jobstest.Kind("ray.io/v1", "RayJob"),
		}
		for n, k := range all {
			synctest.Wait()
			if seen.n != n {
				t.Errorf("%d kinds are watched, want %d", seen.n, n)
			}
			served.serve(all[:n+1]...)
			<-time.After(retryWatch) // of the bubble
			synctest.Wait()
			if !w.IsWatched(k.GVK) {
				t.Errorf("%s is not watched a minute after it is served", k.GVK.Kind)
			}
		}
		end()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// notSynced is a cache without objects; the first list of a kind does not arrive.
type notSynced struct {
	cache.Cache
	kind string
}

func (c *notSynced) List(ctx context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if list.GetObjectKind().GroupVersionKind().Kind != c.kind {
		return nil
	}
	<-ctx.Done()
	return ctx.Err()
}
