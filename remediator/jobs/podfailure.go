package jobs

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slimPod keeps what [failure] reads of a pod, so that watching many of them stays cheap.
func slimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone
	}
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
			Labels: p.Labels, OwnerReferences: p.OwnerReferences,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, RestartPolicy: p.Spec.RestartPolicy},
		Status: corev1.PodStatus{Phase: p.Status.Phase, Reason: p.Status.Reason},
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			slim.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	slim.Status.InitContainerStatuses = ends(p.Status.InitContainerStatuses)
	slim.Status.ContainerStatuses = ends(p.Status.ContainerStatuses)
	return slim, nil
}

// ends keeps how containers ended.
func ends(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for _, c := range all {
		if t := c.State.Terminated; t != nil {
			kept = append(kept, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, Reason: t.Reason, FinishedAt: t.FinishedAt},
			}})
		}
	}
	return kept
}

// nodeLost is the status.reason of a pod whose node does not answer (kubernetes pkg/util/node, NodeUnreachablePodReason).
const nodeLost = "NodeLost"

// failure says how a rank failed; empty: it has not, or it restarts in place. A pod that somebody deleted, as a suspended
// job's controller does, has not failed: it is marked as disrupted if it was evicted or preempted.
func failure(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return "disrupted: " + c.Reason
		}
	}
	switch {
	case p.DeletionTimestamp != nil:
		return ""
	case p.Status.Reason == nodeLost || p.Status.Phase == corev1.PodUnknown:
		return "its node does not answer"
	case p.Status.Phase == corev1.PodFailed && p.Status.Reason != "":
		return p.Status.Reason // Evicted, UnexpectedAdmissionError, DeadlineExceeded, ...
	case p.Status.Phase != corev1.PodFailed && p.Spec.RestartPolicy != corev1.RestartPolicyNever:
		return ""
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("container %s: %s, exit code %d", c.Name, t.Reason, t.ExitCode)
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return "it does not say why"
	}
	return ""
}
