package sweep

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
)

// unansweredTimeout is how long a pod counts about which no scheduler has reported anything.
const unansweredTimeout = 10 * time.Minute

// HasScheduler reports whether a scheduler may be at work for a pod that waits: one reports in the condition PodScheduled that it has found
// no node. A new pod counts in any case.
func HasScheduler(pod *corev1.Pod, now time.Time) bool {
	return now.Sub(pod.CreationTimestamp.Time) < unansweredTimeout ||
		slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == corev1.PodScheduled })
}

// CouldRunOn reports whether a pod that waits for an accelerator could be scheduled to the node if no sweep were there: its
// requests fit the empty node, its node selector and required node affinity match, and it tolerates the other taints. Whether it
// has a claim of dynamic resource allocation or a volume that the node can serve, and what else the scheduler asks for, is not known;
// such a pod could. Each pod of a gang is judged alone. A pod with a scheduling gate waits for something else.
func CouldRunOn(pod *corev1.Pod, node *corev1.Node) bool {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 || !HoldsAccelerator(pod) {
		return false
	}
	free := *node
	free.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool {
		return t.Key == conditions.TaintMaintenance
	})
	return capacity.Fits(&free, pod)
}

// StaysOnNode reports whether a pod is static, or one of a DaemonSet.
func StaysOnNode(pod *corev1.Pod) bool {
	if _, static := pod.Annotations[corev1.MirrorPodAnnotationKey]; static {
		return true
	}
	owner := metav1.GetControllerOf(pod)
	return owner != nil && owner.Kind == "DaemonSet"
}
