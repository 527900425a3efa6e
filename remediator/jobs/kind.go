package jobs

import (
	"context"
	"fmt"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// kind adapts one kind of job to the state machine. A kind is restarted in one of two ways: by a [toggle] that stops
// all of its pods and starts them again, or, where it has none, by replace.
type kind struct {
	gvk schema.GroupVersionKind
	// read fills a view from the job and what it owns. Errors of the API server are wrapped.
	read func(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error)
	// replace has the job's own controller replace the pods, for kinds without a toggle. It is called at every look
	// while the restart is stopping and must not do twice what may be done once only; what it changes of the restart is
	// written to the record. left are the recorded pods that are not gone. The text says who refuses, if anybody does.
	replace func(ctx context.Context, c client.Client, v view, cur *restart, left []metav1.PartialObjectMetadata) (refused string, err error)
}

// look reads a job and finds what its toggle is.
func (k kind) look(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error) {
	v, err := k.read(ctx, reader, key)
	if err != nil {
		return view{}, err
	}
	v.kind = k
	err = v.kueue(ctx, reader)
	return v, err
}

// builtIn are the kinds that can be restarted, one adapter file each.
var builtIn = []kind{
	batchJob, jobSet, trainJob,
	pyTorchJob, tfJob, xgboostJob, paddleJob, jaxJob, mpiJobV1, mpiJob,
	rayJob, rayCluster,
	volcanoJob, leaderWorkerSet,
	statefulSet, deployment, replicaSet,
}

// BuiltIn lists the kinds that can be restarted without being named in a policy.
func BuiltIn() []schema.GroupVersionKind {
	var list []schema.GroupVersionKind
	for _, k := range builtIn {
		list = append(list, k.gvk)
	}
	return list
}

// kindOf finds the adapter of an owner: of the version that the reference names, else of any.
func kindOf(kinds []kind, ref metav1.OwnerReference) (found kind, known bool) {
	want := schema.FromAPIVersionAndKind(ref.APIVersion, ref.Kind)
	for _, k := range kinds {
		if k.gvk == want {
			return k, true
		}
		if !known && k.gvk.GroupKind() == want.GroupKind() {
			found, known = k, true
		}
	}
	return found, known
}

// view is one look at a job: all that the state machine and the gates know of it, whatever its kind.
type view struct {
	kind
	// object carries the metadata; its resourceVersion guards the next patch.
	object client.Object
	// toggle stops and starts the job; the zero value where the kind has none.
	toggle toggle
	// suspended: the job is stopped, by its toggle or, without one, by a person in another way.
	suspended bool
	// stopSeen: its controllers say that they have acted on the toggle. It does not say that the pods are gone.
	stopSeen bool
	// ended is the condition that ended the job, or is about to, [failedCondition] if that was no success; empty while
	// it may still run.
	ended string
	// busy: its own controller is replacing all of its pods just now.
	busy bool
	// lateStart: a start that finds an old pod may fail the job for good.
	lateStart bool
	// managedBy names the controller in charge when it is not the default one.
	managedBy string
	// shut is why this job cannot be restarted, as far as only its kind knows.
	shut blocked
	// pods selects the pods of every incarnation of the job.
	pods labels.Selector
	// gang tells which pods must be restarted together, as those with the same answer; nil: all pods of the job.
	gang func(metav1.Object) string
	// deadRanks selects pods that, once ended, the job's controller neither deletes nor replaces at a restart.
	deadRanks labels.Selector
	// ranks is how many pods run at the same time once the job is whole; 0: as many as before the stop.
	ranks int
	// templates are what its pods are made from, where that is known.
	templates []template
	// jobs are the batch Jobs that own the pods and have not ended.
	jobs []batchv1.Job
	// retries is the restart counter of a kind without a toggle that has one.
	retries int64
}

// failedCondition is [view.ended] of a job that ended without success, whatever the kind calls it.
const failedCondition = "Failed"

func (v view) key() client.ObjectKey { return client.ObjectKeyFromObject(v.object) }

// template is the pod template of some ranks.
type template struct {
	// of names it for people, e.g. "Worker".
	of    string
	ranks int
	spec  corev1.PodSpec
}

// toggle is the boolean field that stops a job and starts it again.
type toggle struct {
	// path leads to the field, e.g. spec.suspend.
	path string
	// stops is the value that stops the job: true of suspend, false of active. The other one is the default.
	stops bool
	// on has the field when it is not the job itself: the job's Workload in Kueue. No write can move it together with
	// the record, so it bears in [conditions.AnnotationRestartStep] for what it was moved last.
	on *unstructured.Unstructured
}

func (t toggle) exists() bool { return t.path != "" }

// stopped reads the field.
func (t toggle) stopped(object *unstructured.Unstructured) bool {
	value, found, err := unstructured.NestedBool(object.Object, strings.Split(t.path, ".")...)
	return err == nil && found && value == t.stops
}

// set is the part of a merge patch that moves the toggle.
func (t toggle) set(body map[string]any, stop bool) error {
	return unstructured.SetNestedField(body, stop == t.stops, strings.Split(t.path, ".")...)
}

// moved says, after "somebody", what was done to the job.
func (t toggle) moved(stop bool) string {
	switch {
	case !t.exists():
		return "stopped it"
	case t.on != nil:
		return fmt.Sprintf("set %s of %s %s to %t", t.path, t.on.GetKind(), t.on.GetName(), stop == t.stops)
	}
	return fmt.Sprintf("set %s to %t", t.path, stop == t.stops)
}

// fetch reads an object that has no Go type here, and of its fields those of T.
func fetch[T any](ctx context.Context, reader client.Reader, gvk schema.GroupVersionKind, key client.ObjectKey) (*unstructured.Unstructured, T, error) {
	var fields T
	object := &unstructured.Unstructured{}
	object.SetGroupVersionKind(gvk)
	if err := reader.Get(ctx, key, object); err != nil {
		return nil, fields, fmt.Errorf("get %s %s: %w", gvk.Kind, key, err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, &fields); err != nil {
		return nil, fields, fmt.Errorf("read %s %s: %w", gvk.Kind, key, err)
	}
	return object, fields, nil
}
