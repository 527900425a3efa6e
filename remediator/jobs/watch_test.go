package jobs

import (
	"context"
	"errors"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
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

func TestAKindThatCannotBeListedHoldsUpNoOther(t *testing.T) {
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
	seen := &watching{}
	r := watcher{settings: &settings{}, Watcher: &latekinds.Watcher{APIReader: reader, Mapper: served, Controller: seen}}
	if r.watchAll(t.Context()) || seen.n != 2 {
		t.Errorf("%d kinds watched; nothing is to be tried again", seen.n)
	}
	refusal = apierrors.NewForbidden(schema.GroupResource{Resource: "jobsets"}, "", nil)
	if !r.watchAll(t.Context()) || seen.n != 2 {
		t.Errorf("%d kinds watched; what is forbidden is tried again", seen.n)
	}
	refusal = nil
	if !r.watchAll(t.Context()) || seen.n != 3 {
		t.Errorf("%d kinds watched", seen.n)
	}
}
