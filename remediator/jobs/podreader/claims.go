package podreader

import (
	"cmp"
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// Holder is a pod that holds a device of a quarantine, or of which that cannot be told.
type Holder struct {
	corev1.Pod
	// Unread is why it cannot be told; nil: the pod holds one.
	Unread error
}

// Holders returns the pods that hold a device of the quarantine, and those of which that cannot be told; all pods if it is of the whole
// node. It reads each claim once, live.
func (r Reader) Holders(ctx context.Context, t restart.Trigger, pods []corev1.Pod) (kept []Holder) {
	answers := map[client.ObjectKey]answer{}
	for i := range pods {
		a := answer{holds: t.Devices == nil}
		if !a.holds {
			a = r.podHolds(ctx, t, &pods[i], answers)
		}
		if a.holds || a.err != nil {
			kept = append(kept, Holder{pods[i], a.err})
		}
	}
	return kept
}

// answer is whether a claim or a pod holds a device of a quarantine, or why that cannot be told.
type answer struct {
	holds bool
	err   error
}

// podHolds reports whether one of a pod's claims holds a device of the quarantine. A pod that got its device as an extended resource has a
// claim like any other. answers are those so far, by claim.
func (r Reader) podHolds(ctx context.Context, t restart.Trigger, pod *corev1.Pod, answers map[client.ObjectKey]answer) answer {
	var unread error
	for _, name := range devices.ClaimsOf(pod) {
		key := client.ObjectKey{Namespace: pod.Namespace, Name: name}
		claim, known := answers[key]
		if !known {
			claim.holds, claim.err = r.holds(ctx, t, key)
			answers[key] = claim
		}
		if claim.holds {
			return claim
		}
		unread = cmp.Or(unread, claim.err)
	}
	return answer{err: unread}
}

// holds reports whether a claim holds a device of the quarantine. One that is gone holds none.
func (r Reader) holds(ctx context.Context, t restart.Trigger, key client.ObjectKey) (bool, error) {
	var claim resourceapi.ResourceClaim
	switch err := r.API.Get(ctx, key, &claim); {
	case apierrors.IsNotFound(err):
		return false, nil
	case apierrors.IsForbidden(err):
		return false, fmt.Errorf("find out which pods hold the isolated devices: "+
			"get of resourceclaims (resource.k8s.io) is missing in the remediator's role: %w", err)
	case err != nil:
		return false, fmt.Errorf("find out which pods hold the isolated devices: get claim %s: %w", key, err)
	}
	return t.IsHeldBy(&claim), nil
}
