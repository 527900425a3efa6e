package restart

import (
	"github.com/go-logr/logr" //nolint:depguard // the scheduler's functions take a logger; they get one that discards
	corev1 "k8s.io/api/core/v1"
	scheduling "k8s.io/component-helpers/scheduling/corev1"
)

// toleratesTaint reports whether one of the tolerations is for the taint.
func toleratesTaint(tolerations []corev1.Toleration, taint *corev1.Taint) bool {
	return scheduling.TolerationsTolerateTaint(logr.Discard(), tolerations, taint, true)
}

// keptOut reports whether a taint keeps the pod from being scheduled to the node.
func keptOut(node *corev1.Node, pod *corev1.Pod) bool {
	_, found := scheduling.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, pod.Spec.Tolerations, func(t *corev1.Taint) bool {
		return t.Effect != corev1.TaintEffectPreferNoSchedule
	}, true)
	return found
}
