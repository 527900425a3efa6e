package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// mayForce says why a pod that does not end may be deleted without the word of its kubelet that its processes are gone;
// empty: it may not be, or that has been done. It is pure. node is nil if there is no node of that name.
func mayForce(l policy.Restart, pod *corev1.Pod, node *corev1.Node, cur restart, now time.Time) string {
	// Of a pod that was deleted without a grace period, nothing but a finalizer is left.
	if !overdue(pod, l.ForceDeleteAfter, now) || ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0 {
		return ""
	}
	switch l.ForceDelete {
	case policy.ForceUnreachable:
		return unreachable(node, now.Add(-l.ForceDeleteAfter))
	case policy.ForceQuarantined:
		// The record alone proves nothing: whoever may write the job may write it, and the node may have been released.
		if node != nil && node.Labels[conditions.LabelStatus] == "quarantined" &&
			slices.ContainsFunc(cur.Quarantines, func(c cause) bool { return c.Taint.Key != "" && c.Node == node.Name }) {
			return "its node is quarantined"
		}
		return unreachable(node, now.Add(-l.ForceDeleteAfter))
	}
	return ""
}

// overdue tells whether a pod should have ended so long ago: its deletionTimestamp is the end of its grace period.
func overdue(pod metav1.Object, by time.Duration, now time.Time) bool {
	at := pod.GetDeletionTimestamp()
	return at != nil && !now.Before(at.Add(by))
}

// unreachable says how a node was out of reach at a time and since; empty: it was not.
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

// force deletes those of a stopped job's pods that do not end, if the policy and their nodes let it.
func (r *Restarter) force(ctx context.Context, v view, cur restart, left []metav1.PartialObjectMetadata, now time.Time) error {
	l := r.limits()
	late := func(p metav1.PartialObjectMetadata) bool { return overdue(&p, l.ForceDeleteAfter, now) }
	if l.ForceDelete == "" || l.ForceDelete == policy.ForceNever || !slices.ContainsFunc(left, late) {
		return nil
	}
	// Metadata does not say on which nodes they are.
	var pods corev1.PodList
	if err := r.reader.List(ctx, &pods, client.InNamespace(v.object.GetNamespace()), client.MatchingLabelsSelector{Selector: v.pods}); err != nil {
		return fmt.Errorf("list the pods of %s %s: %w", v.gvk.Kind, v.key(), err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		waitedFor := slices.ContainsFunc(left, func(p metav1.PartialObjectMetadata) bool { return p.UID == pod.UID })
		if !waitedFor || pod.Spec.NodeName == "" || !overdue(pod, l.ForceDeleteAfter, now) {
			continue // what was never bound to a node has no process
		}
		var node *corev1.Node
		var found corev1.Node
		switch err := r.reader.Get(ctx, client.ObjectKey{Name: pod.Spec.NodeName}, &found); {
		case err == nil:
			node = &found
		case !apierrors.IsNotFound(err):
			return fmt.Errorf("get node %s: %w", pod.Spec.NodeName, err)
		}
		why := mayForce(l, pod, node, cur, now)
		if why == "" {
			continue
		}
		if err := deletePod(ctx, r.writer, metav1.PartialObjectMetadata{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"}, ObjectMeta: pod.ObjectMeta},
			client.GracePeriodSeconds(0)); err != nil {
			return err
		}
		r.forced(v, cur, pod, why)
	}
	return nil
}
