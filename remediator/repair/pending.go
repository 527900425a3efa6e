package repair

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// CouldRunOn reports whether a pod that waits for an accelerator could be scheduled to the node if no sweep were there: its
// requests fit the empty node, its node selector and required node affinity match, and it tolerates the other taints. Whether it
// has a claim of dynamic resource allocation that the node can serve, and what else the scheduler asks for, is not known; such a
// pod could. Each pod of a gang is judged alone. A pod with a scheduling gate waits for something else.
func CouldRunOn(pod *corev1.Pod, node *corev1.Node) bool {
	if pod.Spec.NodeName != "" || pod.DeletionTimestamp != nil || len(pod.Spec.SchedulingGates) > 0 || !HoldsAccelerator(pod) {
		return false
	}
	free := *node
	free.Spec.Taints = slices.DeleteFunc(slices.Clone(node.Spec.Taints), func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
	return restart.Fits(&free, pod)
}
