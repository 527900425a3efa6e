// Package kinds adapts the kinds of training jobs to package restart: one file for each operator defines how a job of its
// kinds is read, stopped and started, and what the remediator has to be allowed for that.
//
// The job of a pod is the topmost object of a known kind above it, see [OwnerResolver]; only the labels of that job and of
// its namespace opt in or out, see [ReadOptIn].
package kinds

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy/jobkind"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// Kind is all that has to be known of one kind of job. A kind is restarted in one of two ways: by a field that stops all of
// its pods and starts them again, or, where it has none, by replace.
type Kind struct {
	GVK schema.GroupVersionKind
	// Resource is the plural under which the API server serves the kind; empty for kinds of the policy. The remediator
	// gets, lists, watches and patches it.
	Resource string
	// ExtraRules are what else the remediator has to be allowed for a restart of this kind.
	ExtraRules []rbacv1.PolicyRule
	// ReplacesFailedRank: the kind's controller replaces a failed rank alone. Others restart the whole gang, or fail, as
	// their own policies require (JobSet, TrainJob, Volcano, LeaderWorkerSet, Ray), or have no gang.
	ReplacesFailedRank bool
	// IsService: its objects keep single pods alive and are no training jobs. One that does not opt in is no mistake.
	IsService bool

	// read fills in what it can find out about the job and what the job owns, its Controllers or OtherControllers among it: a pod
	// of others is neither a reason to restart the job nor waited for. Errors of the API server are wrapped.
	read func(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error)
	// replace has the job's own controller replace the pods, for kinds without a suspend field. It is called in every reconcile
	// while the restart is stopping and must not do twice what may be done once only; what it changes of the restart is
	// written to the record. remaining are the recorded pods that are not gone. The text is why it was refused; empty: it was not.
	replace func(ctx context.Context, c client.Client, job restart.Job, cur *restart.Restart, remaining []metav1.PartialObjectMetadata) (refused string, err error)
}

// builtIn are the kinds that can be restarted without being named in a policy, in the order in which they are tried.
var builtIn = []Kind{
	batchJob, jobSet, trainJob,
	pyTorchJob, tfJob, xgboostJob, paddleJob, jaxJob, mpiJobV1, mpiJob,
	rayJob, rayCluster,
	volcanoJob, leaderWorkerSet,
	statefulSet, deployment, replicaSet,
}

// BuiltIn lists the kinds that can be restarted without being named in a policy.
func BuiltIn() []Kind { return slices.Clone(builtIn) }

// All lists the built-in kinds, which come first, and those that a policy names.
func All(named []jobkind.Kind) []Kind {
	all := BuiltIn()
	for _, k := range named {
		all = append(all, configured(k))
	}
	return all
}

// Find finds the adapter of an owner: of the version that the reference names, else of any.
func Find(all []Kind, apiVersion, name string) (found Kind, known bool) {
	want := schema.FromAPIVersionAndKind(apiVersion, name)
	for _, k := range all {
		if k.GVK == want {
			return k, true
		}
		if !known && k.GVK.GroupKind() == want.GroupKind() {
			found, known = k, true
		}
	}
	return found, known
}

// Get finds the adapter of exactly one group, version and kind.
func Get(all []Kind, gvk schema.GroupVersionKind) (found Kind, known bool) {
	i := slices.IndexFunc(all, func(k Kind) bool { return k.GVK == gvk })
	if i < 0 {
		return Kind{}, false
	}
	return all[i], true
}

// List is an empty list of the metadata of objects of the kind.
func (k Kind) List() *metav1.PartialObjectMetadataList {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(k.GVK.GroupVersion().WithKind(k.GVK.Kind + "List"))
	return list
}

// Read reads a job and finds out which field stops it. An error for which [Gone] is true means that there is no such job.
func (k Kind) Read(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
	job, err := k.read(ctx, reader, key)
	if err != nil {
		return restart.Job{}, err
	}
	job.GVK = k.GVK
	if err := useKueue(ctx, reader, &job); err != nil {
		return restart.Job{}, err
	}
	compact(&job)
	return job, nil
}

// compact drops what no decision needs: a look at a node keeps all the jobs on it, and each may have 1.5 MB.
func compact(job *restart.Job) {
	job.Object = metadataOf(job.Object, job.GVK)
	if on := job.SuspendField.Elsewhere; on != nil {
		job.SuspendField.Elsewhere = handleOf(on)
	}
	for i := range job.Templates {
		slim.Spec(&job.Templates[i].Spec)
	}
	for i := range job.Jobs {
		slim.Job(&job.Jobs[i])
	}
}

// maxAnnotation is the longest annotation of others that is kept of a job, in bytes.
const maxAnnotation = 1 << 10

// metadataOf are the metadata of a job, without long annotations of others.
func metadataOf(object metav1.Object, gvk schema.GroupVersionKind) *metav1.PartialObjectMetadata {
	m := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: object.GetNamespace(), Name: object.GetName(), UID: object.GetUID(), ResourceVersion: object.GetResourceVersion(),
		Generation: object.GetGeneration(), CreationTimestamp: object.GetCreationTimestamp(), DeletionTimestamp: object.GetDeletionTimestamp(),
		Labels: object.GetLabels(), Annotations: maps.Clone(object.GetAnnotations()), OwnerReferences: object.GetOwnerReferences(),
	}}
	m.SetGroupVersionKind(gvk)
	maps.DeleteFunc(m.Annotations, func(key, value string) bool {
		return len(value) > maxAnnotation && !strings.HasPrefix(key, conditions.Domain+"/")
	})
	return m
}

// Replace has the job's own controller replace those of the remaining pods that are the job's. What it changes of the
// restart has to be written to the record. refused is why the API server refused it, if it did; a kind with a suspend field replaces nothing.
func (k Kind) Replace(ctx context.Context, c client.Client, job restart.Job, cur *restart.Restart, remaining []metav1.PartialObjectMetadata) (refused string, err error) {
	if k.replace == nil {
		return "", nil
	}
	// Whoever may write the job's record could name any pod of the namespace there.
	own := slices.DeleteFunc(slices.Clone(remaining), func(p metav1.PartialObjectMetadata) bool { return !job.Pods.Matches(labels.Set(p.Labels)) })
	return k.replace(ctx, c, job, cur, own)
}

// Gone reports whether an object, or its kind, does not exist.
func Gone(err error) bool { return apierrors.IsNotFound(err) || meta.IsNoMatchError(err) }

// controlledBy are the [restart.Job.Controllers] of a job whose pods it controls itself.
func controlledBy(controller metav1.Object, pods labels.Selector) map[types.UID]labels.Selector {
	return map[types.UID]labels.Selector{controller.GetUID(): pods}
}

// addChildJob adds the batch Job of a name to the controllers of a job's pods if the job controls that Job.
func addChildJob(ctx context.Context, reader client.Reader, j *restart.Job, name string) error {
	var child batchv1.Job
	if err := reader.Get(ctx, client.ObjectKey{Namespace: j.Object.GetNamespace(), Name: name}, &child); err != nil {
		if Gone(err) {
			return nil
		}
		return fmt.Errorf("get Job %s/%s: %w", j.Object.GetNamespace(), name, err)
	}
	if !metav1.IsControlledBy(&child, j.Object) {
		return nil
	}
	pods, err := metav1.LabelSelectorAsSelector(child.Spec.Selector)
	if err != nil {
		return fmt.Errorf("read the selector of Job %s/%s: %w", child.Namespace, name, err)
	}
	j.Controllers[child.UID] = pods
	return nil
}

// DeletePod deletes this pod and no later one of its name. One that is gone is no error.
func DeletePod(ctx context.Context, c client.Client, pod metav1.Object, opts ...client.DeleteOption) error {
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.GetNamespace(), Name: pod.GetName()}}
	uid := pod.GetUID()
	err := c.Delete(ctx, target, append(opts, client.Preconditions{UID: &uid})...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.GetNamespace(), pod.GetName(), err)
	}
	return nil
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

// rule allows verbs on a resource.
func rule(group, resource string, verbs ...string) rbacv1.PolicyRule {
	return rbacv1.PolicyRule{APIGroups: []string{group}, Resources: []string{resource}, Verbs: verbs}
}

// kueueRule allows the restart of a job that is queued by Kueue.
var kueueRule = rule(workloadGroup, "workloads", "get", "list", "patch")
