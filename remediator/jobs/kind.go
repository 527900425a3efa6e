package jobs

import (
	"context"

	batchv1 "k8s.io/api/batch/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind adapts one kind of job to the state machine. Setting spec.suspend must stop all of its pods and clearing it
// must start them.
type kind struct {
	gvk schema.GroupVersionKind
	// read fills a view from the job and what it owns. Errors of the API server are wrapped.
	read func(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error)
}

func (k kind) look(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error) {
	v, err := k.read(ctx, reader, key)
	v.kind = k
	return v, err
}

// kinds are the kinds that can be restarted, one adapter file each.
func kinds() []kind { return []kind{batchJob, jobSet} }

// kindOf finds the adapter of an owner, whatever version the reference names.
func kindOf(ref metav1.OwnerReference) (kind, bool) {
	gk := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind).GroupKind()
	for _, k := range kinds() {
		if k.gvk.GroupKind() == gk {
			return k, true
		}
	}
	return kind{}, false
}

// view is one look at a job: all that the state machine and the gates know of it, whatever its kind.
type view struct {
	kind
	// object carries the metadata; its resourceVersion guards the next patch.
	object client.Object
	// suspended is spec.suspend.
	suspended bool
	// stopSeen: its controllers say that they have acted on spec.suspend. It does not say that the pods are gone.
	stopSeen bool
	// ended is the condition that ended the job, or is about to; empty while it may still run.
	ended string
	// managedBy names the controller in charge when it is not the default one.
	managedBy string
	// pods selects the pods of every incarnation of the job.
	pods labels.Selector
	// ranks is how many pods run at the same time once the job is whole.
	ranks int
	// jobs are the batch Jobs that own the pods and have not ended.
	jobs []batchv1.Job
}

func (v view) key() client.ObjectKey { return client.ObjectKeyFromObject(v.object) }
