package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// volcanoJob is batch.volcano.sh Job. It has no suspend; a Command restarts it, which counts as a retry, and the retry
// that reaches maxRetry fails the job for good. Volcano deletes a Command when it takes it, does not know two apart and
// does not look at the target's UID (all measured on v1.10.0).
var (
	volcanoJob = kind{gvk: volcanoJobGVK, read: readVolcanoJob, replace: commandRestart}

	volcanoJobGVK = schema.GroupVersionKind{Group: "batch.volcano.sh", Version: "v1alpha1", Kind: "Job"}
	commandGVK    = schema.GroupVersionKind{Group: "bus.volcano.sh", Version: "v1alpha1", Kind: "Command"}
)

func readVolcanoJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (view, error) {
	object, job, err := fetch[struct {
		Spec struct {
			MaxRetry int64 `json:"maxRetry"`
			Tasks    []struct {
				Name     string                 `json:"name"`
				Replicas int32                  `json:"replicas"`
				Template corev1.PodTemplateSpec `json:"template"`
			} `json:"tasks"`
		} `json:"spec"`
		Status struct {
			RetryCount int64 `json:"retryCount"`
			State      struct {
				Phase string `json:"phase"`
			} `json:"state"`
		} `json:"status"`
	}](ctx, reader, volcanoJobGVK, key)
	if err != nil {
		return view{}, err
	}
	v := view{
		object:  object,
		pods:    labels.SelectorFromSet(labels.Set{"volcano.sh/job-name": key.Name}),
		retries: job.Status.RetryCount,
	}
	switch phase := job.Status.State.Phase; phase {
	case "Failed", "Completing", "Completed", "Terminating", "Terminated":
		v.ended = phase
	case "Aborting", "Aborted":
		v.suspended = true // by a person: we never abort
	case "Restarting":
		v.busy = true
	}
	if v.retries+1 >= job.Spec.MaxRetry {
		v.shut = blocked{"MaxRetry", fmt.Sprintf("its retryCount is %d and its maxRetry %d: one more restart would fail it for good", v.retries, job.Spec.MaxRetry)}
	}
	for _, task := range job.Spec.Tasks {
		v.ranks += int(task.Replicas)
		v.templates = append(v.templates, template{of: "task " + task.Name, ranks: int(task.Replicas), spec: task.Template.Spec})
	}
	return v, nil
}

// commandRestart sends the Command once. A retry that was counted since the stop, or a pod that was deleted since, means
// that an earlier process sent it and died before it could say so; the pods go before the retry is counted.
func commandRestart(ctx context.Context, c client.Client, v view, cur *restart, left []metav1.PartialObjectMetadata) (string, error) {
	if cur.Sent || v.retries > cur.Retries || slices.ContainsFunc(left, cur.deletedSince) {
		return "", nil
	}
	job := metav1.NewControllerRef(v.object, volcanoJobGVK)
	target, err := runtime.DefaultUnstructuredConverter.ToUnstructured(job)
	if err != nil {
		return "", fmt.Errorf("write the target of a Command: %w", err)
	}
	command := &unstructured.Unstructured{Object: map[string]any{
		"action": "RestartJob", "target": target, "reason": "NodeFault", "message": "a node under the job was quarantined",
	}}
	command.SetGroupVersionKind(commandGVK)
	command.SetNamespace(v.object.GetNamespace())
	command.SetName("pitcrew-" + cur.ID)
	command.SetOwnerReferences([]metav1.OwnerReference{*job})
	if err := c.Create(ctx, command); err != nil && !apierrors.IsAlreadyExists(err) {
		return "", fmt.Errorf("create Command %s/%s: %w", command.GetNamespace(), command.GetName(), err)
	}
	cur.Sent = true
	return "", nil
}

// deletedSince tells whether a pod's deletion was asked for in or after the second of the stop.
func (r *restart) deletedSince(pod metav1.PartialObjectMetadata) bool {
	if pod.DeletionTimestamp == nil {
		return false
	}
	grace := time.Duration(ptr.Deref(pod.DeletionGracePeriodSeconds, 0)) * time.Second
	return !pod.DeletionTimestamp.Add(-grace).Before(r.PhaseSince.Truncate(time.Second))
}
