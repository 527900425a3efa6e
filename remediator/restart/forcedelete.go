package restart

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// MayForceDelete returns why a pod that does not end may be deleted before its kubelet has confirmed that its processes are
// gone; empty: it may not be, or that has been done. node is nil if there is no node of that name.
func MayForceDelete(limits policy.Restart, pod *corev1.Pod, node *corev1.Node, cur Restart, now time.Time) string {
	// Of a pod that was deleted without a grace period, nothing but a finalizer is left.
	if !Overdue(pod, limits.ForceDeleteAfter, now) || ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0 {
		return ""
	}
	switch limits.ForceDelete {
	case policy.ForceUnreachable:
		return unreachable(node, now.Add(-limits.ForceDeleteAfter))
	case policy.ForceQuarantined:
		// The record alone proves nothing: whoever may write the job may write it, and the node may have been released.
		if node != nil && conditions.OutOfService(node.Labels[conditions.LabelStatus]) &&
			slices.ContainsFunc(cur.Quarantines, func(c Cause) bool { return c.Taint.Key != "" && c.Node == node.Name }) {
			return "its node is quarantined"
		}
		return unreachable(node, now.Add(-limits.ForceDeleteAfter))
	}
	return ""
}

// Overdue reports whether a pod should have ended so long ago: its deletionTimestamp is the end of its grace period.
func Overdue(pod metav1.Object, by time.Duration, now time.Time) bool {
	at := pod.GetDeletionTimestamp()
	return at != nil && !now.Before(at.Add(by))
}

// unreachable returns how a node was out of reach at a time and since; empty: it was not.
func unreachable(node *corev1.Node, at time.Time) string {
	if node == nil {
		return "its node was deleted"
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionUnknown && !c.LastTransitionTime.After(at) {
			return fmt.Sprintf("its node has been unreachable since %s", c.LastTransitionTime.UTC().Format(time.RFC3339))
		}
	}
	return ""
}
