package restart

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
)

// IsHeldBy tells whether a claim holds a device of the quarantine. A monitor, which has adminAccess, uses none, and a claim that
// tolerates the taint keeps what it has.
func (q Quarantine) IsHeldBy(claim *resourceapi.ResourceClaim) bool {
	if claim.Status.Allocation == nil {
		return false
	}
	return slices.ContainsFunc(claim.Status.Allocation.Devices.Results, func(r resourceapi.DeviceRequestAllocationResult) bool {
		return slices.Contains(q.Devices, devices.Device{Driver: r.Driver, Pool: r.Pool, Name: r.Device}) &&
			!ptr.Deref(r.AdminAccess, false) && !slices.ContainsFunc(r.Tolerations, q.isTolerated)
	})
}

// isTolerated tells whether a toleration is for the taint of the devices, for ever.
func (q Quarantine) isTolerated(t resourceapi.DeviceToleration) bool {
	switch {
	case t.TolerationSeconds != nil, t.Effect != "" && string(t.Effect) != string(q.Taint.Effect):
		return false
	case t.Operator == resourceapi.DeviceTolerationOpExists:
		return t.Key == "" || t.Key == q.Taint.Key
	}
	return t.Key == q.Taint.Key && t.Value == q.Taint.Value
}

// ClaimsOf are the names of a pod's claims, in its namespace.
func ClaimsOf(pod *corev1.Pod) (names []string) {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			names = append(names, *s.ResourceClaimName)
		}
	}
	for _, c := range pod.Spec.ResourceClaims {
		if c.ResourceClaimName != nil {
			names = append(names, *c.ResourceClaimName)
		}
	}
	if s := pod.Status.ExtendedResourceClaimStatus; s != nil {
		names = append(names, s.ResourceClaimName)
	}
	slices.Sort(names)
	return slices.Compact(names)
}
