package jobs

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// holders keeps the pods whose claims hold a device of the quarantine; all pods if it is of the whole node. It reads each claim once,
// live. A pod that got its device as an extended resource has a claim like any other; Kubernetes does not evict such a pod, whatever the
// effect of the taint.
func (c *Controller) holders(ctx context.Context, q restart.Quarantine, pods []corev1.Pod) ([]corev1.Pod, error) {
	if q.Devices == nil {
		return pods, nil
	}
	holds := map[client.ObjectKey]bool{}
	var kept []corev1.Pod
	for i := range pods {
		pod := &pods[i]
		held := false
		for _, name := range claimsOf(pod) {
			key := client.ObjectKey{Namespace: pod.Namespace, Name: name}
			if _, known := holds[key]; !known {
				var claim resourceapi.ResourceClaim
				err := c.apiReader.Get(ctx, key, &claim)
				switch {
				case apierrors.IsForbidden(err):
					return nil, fmt.Errorf("find out which pods hold the isolated devices: get of resourceclaims (resource.k8s.io) is missing in the remediator's role: %w", err)
				case client.IgnoreNotFound(err) != nil:
					return nil, fmt.Errorf("find out which pods hold the isolated devices: get claim %s: %w", key, err)
				}
				holds[key] = err == nil && q.IsHeldBy(&claim)
			}
			held = held || holds[key]
		}
		if held {
			kept = append(kept, *pod)
		}
	}
	return kept, nil
}

// claimsOf are the names of a pod's claims, in its namespace.
func claimsOf(pod *corev1.Pod) (names []string) {
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
