// Package restart decides whether a training job may be restarted, and what the next step of its restart is.
//
// It is pure: it has no client, no clock and no goroutine. What it needs to know comes in as values, and its answers are
// values: [Evaluate] and [RateLimits] decide whether a restart may begin, [Next] decides the next step of one that is under way.
// Package remediator/jobs observes and acts, package remediator/jobs/kinds reads each kind of job.
//
// All state of a restart is in one annotation of the job, see [Record], so that a crash between any two writes resumes:
//
//	Checkpointing  nothing is stopped yet, until the job has saved its state or its time is over; only for faults that can wait
//	Stopping       the job's suspend field is set, until every pod of the old incarnation is gone: no status of any owner
//	               proves that
//	Starting       the suspend field is back, until all ranks run
//
// Whoever may write a job can write its record, so a record is input: [ReadRecord] bounds what is in it, [Record.Clamp] its times,
// and package jobs accepts a cause only if a Node's record has it. No record can hold up the restarts of other jobs.
package restart

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Job is the facts of one look at a job, whatever its kind.
type Job struct {
	// GVK is the kind under which the job was read.
	GVK schema.GroupVersionKind
	// Object carries the metadata; its resourceVersion guards the next patch.
	Object metav1.Object
	// SuspendField stops and starts the job. It is zero where the kind has none; the job's controller has then to
	// replace the pods, only the recorded pods have to go, and there is nothing to start.
	SuspendField SuspendField
	// Suspended: the job is stopped, by its suspend field or, where it has none, in another way that we never use.
	Suspended bool
	// SuspendObserved: the controllers of the job report that they have acted on the suspend field. It does not prove
	// that the pods are gone.
	SuspendObserved bool
	// FinishedReason is the condition that ended the job, or is about to, [ConditionFailed] if that was no success;
	// empty while it may still run.
	FinishedReason string
	// ReplacingPods: the job's own controller is replacing all of its pods just now.
	ReplacingPods bool
	// FailsIfOldPodsRemain: a start that finds an old pod may fail the job for good.
	FailsIfOldPodsRemain bool
	// ManagedBy names the controller in charge when it is not the default one.
	ManagedBy string
	// Unsupported is why this job cannot be restarted, as far as only its kind knows; zero: it can.
	Unsupported Blocked
	// Pods selects the pods of every incarnation of the job. Whoever may create pods can give them these labels, see [Job.Owns].
	Pods labels.Selector
	// Controllers are the objects that control the job's pods, by UID: the job itself or what it owns. Each has the selector by which
	// it recognizes its pods.
	Controllers map[types.UID]labels.Selector
	// OtherControllers: further objects control pods of the job. Only the owners of such a pod lead to the job.
	OtherControllers bool
	// Gang decides which pods must be restarted together, as those with the same answer; nil: all pods of the job.
	Gang func(metav1.Object) string
	// TerminalPodsToDelete selects pods that, once they have ended, the job's controller neither deletes nor replaces at
	// a restart; nil: it has no such pods.
	TerminalPodsToDelete labels.Selector
	// Ranks is how many pods run at the same time once the job is whole; 0: as many as before the stop.
	Ranks int
	// Templates are what the pods are made from, where that is known.
	Templates []Template
	// Jobs are the batch Jobs that own the pods and have not ended.
	Jobs []batchv1.Job
	// GangNeeds is how many pods the scheduler waits for before it starts any, where no Job of Jobs says so; 0: it does not wait.
	GangNeeds int
	// PlacedBy are the labels of nodes by which the queue that admitted the job has chosen where its pods run, in their node
	// selectors; nil: it has not. At the next start it chooses again.
	PlacedBy []string
	// Retries is the restart counter of a kind without a suspend field that has one.
	Retries int64
}

// ConditionFailed is [Job.FinishedReason] of a job that ended without success, whatever its kind calls it.
const ConditionFailed = "Failed"

// Key names the job in its namespace.
func (j Job) Key() types.NamespacedName {
	return types.NamespacedName{Namespace: j.Object.GetNamespace(), Name: j.Object.GetName()}
}

// SharesGang returns a test of whether a pod has to be restarted together with the pods on the node.
func (j Job) SharesGang(onNode []corev1.Pod) func(metav1.Object) bool {
	if j.Gang == nil {
		return func(metav1.Object) bool { return true }
	}
	gangs := map[string]bool{}
	for i := range onNode {
		gangs[j.Gang(&onNode[i])] = true
	}
	return func(pod metav1.Object) bool { return gangs[j.Gang(pod)] }
}

// Unplaced are pods of the job without the choice of its queue, see [Job.PlacedBy].
func (j Job) Unplaced(pods []corev1.Pod) []corev1.Pod {
	if len(j.PlacedBy) == 0 {
		return pods
	}
	pods = slices.Clone(pods)
	for i := range pods {
		selector := maps.Clone(pods[i].Spec.NodeSelector)
		maps.DeleteFunc(selector, func(key, _ string) bool { return slices.Contains(j.PlacedBy, key) })
		pods[i].Spec.NodeSelector = selector
	}
	return pods
}

// abortRequested reports whether a person asks to put the job back as it was.
func (j Job) abortRequested() bool {
	_, asks := j.Object.GetAnnotations()[conditions.AnnotationAbortRestart]
	return asks
}

// Owns reports whether the pod is controlled by one of [Job.Controllers], which would recognize it. A name, a label or an owner
// reference alone proves nothing.
func (j Job) Owns(pod metav1.Object) bool {
	owner := metav1.GetControllerOfNoCopy(pod)
	if owner == nil {
		return false
	}
	selector := j.Controllers[owner.UID]
	return selector != nil && selector.Matches(labels.Set(pod.GetLabels()))
}

// MustEnd reports whether a pod that is active, or is being deleted, stands in the way of a start: a recorded one, though it may
// have lost the job's labels, and, where a suspend field stops all pods, any of the job, whenever it was created. Of a job
// without a suspend field the new pods may be there already.
func (j Job) MustEnd(cur Restart, pod metav1.Object) bool {
	return slices.Contains(cur.Pods, pod.GetUID()) || j.SuspendField.Exists() && j.Owns(pod)
}

// MustBeDeleted reports whether a pod that has ended is one of [Job.TerminalPodsToDelete], and is deleted now.
func (j Job) MustBeDeleted(pod metav1.Object) bool {
	return j.SuspendObserved && j.TerminalPodsToDelete != nil && j.TerminalPodsToDelete.Matches(labels.Set(pod.GetLabels())) && j.Owns(pod) &&
		pod.GetDeletionTimestamp() == nil
}

// WholeRanks is how many pods run once the job is whole again.
func (j Job) WholeRanks(cur Restart) int { return cmp.Or(j.Ranks, cur.Ranks) }

// Template is the pod template of some ranks.
type Template struct {
	// Of names it for people, e.g. "Worker".
	Of    string
	Ranks int
	Spec  corev1.PodSpec
}

// SuspendField is the boolean field that stops a job and starts it again. The zero value is no such field.
type SuspendField struct {
	// Path leads to the field, e.g. spec.suspend.
	Path string
	// StopValue is the value that stops the job: true of suspend, false of active. The other one is the default.
	StopValue bool
	// Elsewhere is the object that has the field when it is not the job itself: the job's Workload in Kueue. No write
	// can set it together with the record, so it bears in [conditions.AnnotationRestartStep] for what it was set last.
	Elsewhere *unstructured.Unstructured
}

// Exists reports whether there is such a field.
func (f SuspendField) Exists() bool { return f.Path != "" }

// Stops reports whether an object's field stops the job.
func (f SuspendField) Stops(object *unstructured.Unstructured) bool {
	value, found, err := unstructured.NestedBool(object.Object, strings.Split(f.Path, ".")...)
	return err == nil && found && value == f.StopValue
}

// Set adds the field to the body of a merge patch. An error means that the path crosses a field that is no object.
func (f SuspendField) Set(body map[string]any, stop bool) error {
	return unstructured.SetNestedField(body, stop == f.StopValue, strings.Split(f.Path, ".")...)
}

// changed describes what another user or controller did to the job.
func (f SuspendField) changed(stop bool) string {
	switch {
	case !f.Exists():
		return "stopped it"
	case f.Elsewhere != nil:
		return fmt.Sprintf("set %s of %s %s to %t", f.Path, f.Elsewhere.GetKind(), f.Elsewhere.GetName(), stop == f.StopValue)
	}
	return fmt.Sprintf("set %s to %t", f.Path, stop == f.StopValue)
}
