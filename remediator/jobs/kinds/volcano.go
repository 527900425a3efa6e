package kinds

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// volcanoJob is batch.volcano.sh Job. It has no suspend; a Command restarts it, which counts as a retry, and the retry
// that reaches maxRetry fails the job for good. Volcano deletes a Command when it takes it, does not know two apart and
// does not look at the target's UID (measured on v1.10.0 and v1.14.1). It leaves a Command without a target alone, and takes it
// as soon as it has one (measured on v1.14.1).
var (
	volcanoJob = Kind{
		GVK: volcanoJobGVK, Resource: "jobs", ExtraRules: []rbacv1.PolicyRule{rule(commandGVK.Group, "commands", "create", "get", "patch")},
		read: readVolcanoJob, replace: commandRestart,
	}

	volcanoJobGVK = schema.GroupVersionKind{Group: "batch.volcano.sh", Version: "v1alpha1", Kind: "Job"}
	commandGVK    = schema.GroupVersionKind{Group: "bus.volcano.sh", Version: "v1alpha1", Kind: "Command"}
)

func readVolcanoJob(ctx context.Context, reader client.Reader, key client.ObjectKey) (restart.Job, error) {
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
		return restart.Job{}, err
	}
	j := restart.Job{
		Object:  object,
		Pods:    labels.SelectorFromSet(labels.Set{"volcano.sh/job-name": key.Name}),
		Retries: job.Status.RetryCount,
	}
	j.Controllers = controlledBy(object, j.Pods)
	switch phase := job.Status.State.Phase; phase {
	case "Failed", "Completing", "Completed", "Terminating", "Terminated":
		j.FinishedReason = phase
	case "Aborting", "Aborted":
		j.Suspended = true // by a person: we never abort
	case "Restarting":
		j.ReplacingPods = true
	}
	if j.Retries+1 >= job.Spec.MaxRetry {
		j.Unsupported = restart.Blocked{Reason: "MaxRetry", Text: fmt.Sprintf("its retryCount is %d and its maxRetry %d: one more restart would fail it for good", j.Retries, job.Spec.MaxRetry)}
	}
	for _, task := range job.Spec.Tasks {
		j.Ranks += int(task.Replicas)
		j.Templates = append(j.Templates, restart.Template{Of: "task " + task.Name, Ranks: int(task.Replicas), Spec: task.Template.Spec})
	}
	return j, nil
}

// commandRestart sends the Command once: it creates a Command without a target, has the record say so, and then gives it the target.
// Until the record says so, the Command is still there and cannot be created twice. From then on none is created, and one that
// Volcano has taken is gone and cannot be given a target again. A create that was given up may still succeed after that: such a Command
// has another UID than the record, and gets no target. The record is written first, too, because Volcano carries out a Command once
// more when its own write of the job meets a conflict.
//
// A retry that was counted since the stop, or that every pod was deleted since, means that the job has been restarted; the pods go
// before the retry is counted. Kubernetes may evict single pods from a node that does not answer.
func commandRestart(ctx context.Context, c client.Client, j restart.Job, cur *restart.Restart, remaining []metav1.PartialObjectMetadata) (string, error) {
	untouched := func(p metav1.PartialObjectMetadata) bool { return !cur.DeletedSince(&p) }
	if j.Retries > cur.Retries || len(remaining) > 0 && !slices.ContainsFunc(remaining, untouched) {
		return "", nil
	}
	job := metav1.NewControllerRef(j.Object, volcanoJobGVK)
	command := &unstructured.Unstructured{Object: map[string]any{
		"action": "RestartJob", "reason": "NodeFault", "message": "a node under the job was quarantined",
	}}
	command.SetGroupVersionKind(commandGVK)
	command.SetNamespace(j.Object.GetNamespace())
	command.SetName("pitcrew-" + cur.ID)
	command.SetOwnerReferences([]metav1.OwnerReference{*job})
	if !cur.Sent {
		err := c.Create(ctx, command)
		if apierrors.IsAlreadyExists(err) {
			// By a process that died, or by a create without an answer. The client reads objects without a Go type live.
			err = c.Get(ctx, client.ObjectKeyFromObject(command), command)
		}
		if isRefused(err) {
			return fmt.Sprintf("Command %s is refused: %v", command.GetName(), err), nil
		}
		if err != nil {
			return "", fmt.Errorf("create Command %s/%s: %w", command.GetNamespace(), command.GetName(), err)
		}
		cur.Sent, cur.Command = true, command.GetUID()
		return "", nil
	}
	target, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": cur.Command}, "target": job})
	if err != nil {
		return "", fmt.Errorf("write the target of a Command: %w", err)
	}
	err = c.Patch(ctx, command, client.RawPatch(types.MergePatchType, target))
	switch {
	case err == nil, apierrors.IsNotFound(err), isOther(err):
		return "", nil
	case isRefused(err):
		return fmt.Sprintf("the target of Command %s is refused: %v", command.GetName(), err), nil
	}
	return "", fmt.Errorf("patch Command %s/%s: %w", command.GetNamespace(), command.GetName(), err)
}

// isRefused reports whether a right is missing or an admission policy denied the request.
func isRefused(err error) bool { return apierrors.IsForbidden(err) || apierrors.IsInvalid(err) }

// isOther reports whether a patch named the UID of another object than the one of that name.
func isOther(err error) bool {
	cause, _ := apierrors.StatusCause(err, metav1.CauseTypeFieldValueInvalid)
	return cause.Field == "metadata.uid"
}
