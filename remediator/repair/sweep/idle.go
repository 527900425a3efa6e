package sweep

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// HoldsAccelerator reports whether the pod may use an accelerator: one of its containers, init containers too, requests an
// extended resource, or the pod has a claim of dynamic resource allocation, and it has not ended. A pod that is being deleted
// has not.
func HoldsAccelerator(pod *corev1.Pod) bool {
	switch {
	case node.PodFinished(pod):
		return false
	case len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil:
		return true
	}
	return len(node.Accelerators(resource.PodRequests(pod, resource.PodResourcesOptions{}))) > 0
}
