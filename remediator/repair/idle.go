package repair

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
)

// HoldsAccelerator reports whether the pod may use an accelerator: one of its containers, init containers too, requests an
// extended resource, or the pod has a claim of dynamic resource allocation, and it has not ended. A pod that is being deleted
// has not.
func HoldsAccelerator(pod *corev1.Pod) bool {
	switch {
	case pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed:
		return false
	case len(pod.Spec.ResourceClaims) > 0 || pod.Status.ExtendedResourceClaimStatus != nil:
		return true
	}
	return len(Accelerators(resource.PodRequests(pod, resource.PodResourcesOptions{}))) > 0
}

// Accelerators returns the names of the extended resources in a list, such as the allocatable resources of a node or the requests
// of a pod, sorted: those of a vendor of which there is at least one. What else than accelerators device plugins offer, such as
// network devices, counts too.
func Accelerators(list corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for _, name := range slices.Sorted(maps.Keys(list)) {
		amount := list[name]
		domain, _, prefixed := strings.Cut(string(name), "/")
		if prefixed && !strings.Contains(domain, "kubernetes.io") && !strings.HasPrefix(domain, corev1.DefaultResourceRequestsPrefix) && amount.Sign() > 0 {
			names = append(names, name)
		}
	}
	return names
}
