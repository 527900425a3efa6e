// Package failure reads from a pod how it failed.
package failure

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// maxKept is the most that is kept of a pod, in bytes of memory, about. Its labels, owners and containers may have 1.5 MB.
	maxKept = 8 << 10
	// perLabel and perContainer are what these cost beside their text, in bytes.
	perLabel, perContainer = 48, 512
)

// Slim returns what [Of] reads of a pod that has failed, so that a cache of many of them stays small. Of one that has not, or that is too
// large to judge, only its name is left: it has no owner whose restart its failure could cause. It is a transform of an informer; what is
// no pod it leaves alone.
func Slim(object any) (any, error) {
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
			slim.Status.Conditions = []corev1.PodCondition{{
				Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime,
			}}
		}
	}
	slim.Status.InitContainerStatuses = terminations(p.Status.InitContainerStatuses)
	slim.Status.ContainerStatuses = terminations(p.Status.ContainerStatuses)
	size := slim.Size() + perLabel*len(slim.Labels) + perContainer*(len(slim.Status.ContainerStatuses)+len(slim.Status.InitContainerStatuses))
	if why, _ := Of(slim); why == "" || size > maxKept {
		slim.Labels, slim.OwnerReferences, slim.Status = nil, nil, corev1.PodStatus{}
	}
	return slim, nil
}

// terminations keeps how containers ended.
func terminations(all []corev1.ContainerStatus) []corev1.ContainerStatus {
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

// Of returns how a rank failed, and when if that is known; empty: it has not, or it restarts in place. A pod that
// was deleted, as a suspended job's controller does, has not failed: it is marked as disrupted if it was evicted or
// preempted.
func Of(p *corev1.Pod) (why string, at metav1.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return "disrupted: " + c.Reason, c.LastTransitionTime
		}
	}
	switch {
	case p.DeletionTimestamp != nil:
		return "", at
	case p.Status.Reason == nodeLost || p.Status.Phase == corev1.PodUnknown:
		return "its node does not answer", at
	case p.Status.Phase == corev1.PodFailed && p.Status.Reason != "":
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.FinishedAt.After(at.Time) {
				at = t.FinishedAt
			}
		}
		return p.Status.Reason, at // Evicted, UnexpectedAdmissionError, DeadlineExceeded, ...
	case p.Status.Phase != corev1.PodFailed && p.Spec.RestartPolicy != corev1.RestartPolicyNever:
		return "", at
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("container %s: %s, exit code %d", c.Name, t.Reason, t.ExitCode), t.FinishedAt
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return "no reason given", at
	}
	return "", at
}
