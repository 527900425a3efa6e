package jobs

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/claims"
)

// holders keeps the pods whose claims hold a device of the quarantine; all pods if it is of the whole node. It reads each claim once,
// live. A pod that got its device as an extended resource has a claim like any other; Kubernetes does not evict such a pod, whatever the
// effect of the taint.
//
// unread are the pods of which this cannot be told, because a claim could not be read; the error joins why. They hold back no other.
func (c *Controller) holders(ctx context.Context, q restart.Quarantine, pods []corev1.Pod) (kept, unread []corev1.Pod, err error) {
	if q.Devices == nil {
		return pods, nil, nil
	}
	type answer struct {
		holds bool
		err   error
	}
	answers := map[client.ObjectKey]answer{}
	var errs []error
	for i := range pods {
		var pod answer
		for _, name := range claims.Of(&pods[i]) {
			key := client.ObjectKey{Namespace: pods[i].Namespace, Name: name}
			claim, known := answers[key]
			if !known {
				claim.holds, claim.err = c.holds(ctx, q, key)
				answers[key] = claim
				errs = append(errs, claim.err)
			}
			pod.holds = pod.holds || claim.holds
			pod.err = cmp.Or(pod.err, claim.err)
		}
		switch {
		case pod.holds:
			kept = append(kept, pods[i])
		case pod.err != nil:
			unread = append(unread, pods[i])
		}
	}
	return kept, unread, errors.Join(errs...)
}

// holds tells whether a claim holds a device of the quarantine. One that is gone holds none.
func (c *Controller) holds(ctx context.Context, q restart.Quarantine, key client.ObjectKey) (bool, error) {
	var claim resourceapi.ResourceClaim
	switch err := c.apiReader.Get(ctx, key, &claim); {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err):
		return false, fmt.Errorf("find out which pods hold the isolated devices: get of resourceclaims (resource.k8s.io) is missing in the remediator's role: %w", err)
	case err != nil:
		return false, fmt.Errorf("find out which pods hold the isolated devices: get claim %s: %w", key, err)
	}
	return q.IsHeldBy(&claim), nil
}
