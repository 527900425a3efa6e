package restart

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Unconfirmed is a pod of a stopped job that is being deleted, and whose kubelet has not confirmed that its processes are gone.
type Unconfirmed struct {
	Pod *corev1.Pod
	// Force is why the pod is deleted without that; zero: it is not.
	Force Force
	// Waiting is what the job waits for, if the pod's node is not Ready and does not end it; empty: it may end by itself, or Force is set.
	Waiting string
}

// Force is why a pod is deleted before its kubelet has confirmed that its processes are gone. The zero value is no reason.
type Force struct {
	// Why is the end of a sentence about the pod.
	Why string
	// Proven: its processes do not run any more. Otherwise they may, and the policy takes the risk.
	Proven bool
}

// NewUnconfirmed judges a pod that is being deleted. node is that of the pod, nil if there is none of that name.
func NewUnconfirmed(limits policy.Restart, pod *corev1.Pod, n *corev1.Node, cur Restart, now time.Time) Unconfirmed {
	u := Unconfirmed{Pod: pod, Force: MayForceDelete(limits, pod, n, cur, now)}
	if u.Force.Why == "" {
		u.Waiting = waiting(limits, pod, n, cur, now)
	}
	return u
}

// MayForceDelete returns why a pod may be deleted before its kubelet has confirmed that its processes are gone, if it may and that has
// not been done: at once with a [ProofOfDeath], after some time if the policy takes the risk. node is nil if there is no node of that
// name.
func MayForceDelete(limits policy.Restart, pod *corev1.Pod, n *corev1.Node, cur Restart, now time.Time) Force {
	// Of a pod that was deleted without a grace period, nothing but a finalizer is left.
	if pod.DeletionTimestamp == nil || ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0 {
		return Force{}
	}
	if proof := ProofOfDeath(pod, n, now); proof != "" {
		return Force{Why: proof, Proven: true}
	}
	if n == nil {
		return Force{} // its time has not ended yet, nor has that of the policy
	}
	at, ok := forcedAt(limits, pod, n, cur)
	if !ok || now.Before(at) {
		return Force{}
	}
	if since, unanswered := node.NoHeartbeatSince(n); unanswered {
		return Force{Why: "its node has not answered since " + since.UTC().Format(time.RFC3339)}
	}
	return Force{Why: "its node is quarantined"}
}

// forcedAt is when the policy has a pod deleted that does not end; ok is false if it does not.
func forcedAt(limits policy.Restart, pod *corev1.Pod, n *corev1.Node, cur Restart) (at time.Time, ok bool) {
	at = pod.DeletionTimestamp.Add(limits.ForceDeleteAfter)
	switch limits.ForceDelete {
	case policy.ForceQuarantined:
		// The record alone proves nothing: whoever may write the job may write it, and the node may have been released.
		if conditions.OutOfService(n.Labels[conditions.LabelStatus]) &&
			slices.ContainsFunc(cur.Quarantines, func(c Cause) bool { return c.Kind() == NodeQuarantined && c.Node == n.Name }) {
			return at, true
		}
	case policy.ForceUnreachable:
	default:
		return time.Time{}, false
	}
	since, unanswered := node.NoHeartbeatSince(n)
	if later := since.Add(limits.ForceDeleteAfter); later.After(at) {
		at = later
	}
	return at, unanswered
}

// Overdue reports whether a pod should have ended so long ago: its deletionTimestamp is the end of its grace period.
func Overdue(pod metav1.Object, by time.Duration, now time.Time) bool {
	at := pod.GetDeletionTimestamp()
	return at != nil && !now.Before(at.Add(by))
}

// EndsBy is how long after the end of its grace period a pod may still be listed before it counts as one that does not end: the kubelet
// has killed its processes and reports that.
const EndsBy = 10 * time.Second

// waiting is what a job waits for that cannot go on because of a pod on a node that is not Ready, and everything that ends that; empty:
// the pod has time to end yet, or its kubelet ends it. A kubelet that does not answer ends none, and one whose container runtime hangs
// answers, but may end none either.
func waiting(limits policy.Restart, pod *corev1.Pod, n *corev1.Node, cur Restart, now time.Time) string {
	var since time.Time
	unanswered := false
	if n != nil {
		if since, unanswered = node.NoHeartbeatSince(n); !unanswered && (!NotReady(n) || node.PodFinished(pod) || !Overdue(pod, EndsBy, now)) {
			return ""
		}
	}
	if ptr.Deref(pod.DeletionGracePeriodSeconds, 1) == 0 {
		return fmt.Sprintf("pod %s on node %s was deleted by force, but its finalizers (%s) keep the object", pod.Name, pod.Spec.NodeName,
			cut(strings.Join(pod.Finalizers, ", "), maxReason))
	}
	if n == nil {
		return ""
	}
	why := fmt.Sprintf("may still run, and the node has not answered since %s. The wait ends when the node answers again",
		since.UTC().Format(time.RFC3339))
	if !unanswered {
		why = fmt.Sprintf("should have ended at %s, but the node is not Ready: its kubelet answers and does not end the pod. "+
			"The wait ends when it does", pod.DeletionTimestamp.UTC().Format(time.RFC3339))
	}
	forced := "; forceDelete of the policy does not delete it"
	if at, ok := forcedAt(limits, pod, n, cur); ok {
		forced = fmt.Sprintf("; forceDelete of the policy deletes it at %s", at.UTC().Format(time.RFC3339))
	}
	return fmt.Sprintf("pod %s on node %s %s, its Node is deleted, it gets taint %s (by you, once it is off) or %s (by the cloud provider)%s",
		pod.Name, n.Name, why, corev1.TaintNodeOutOfService, node.TaintShutdown, forced)
}

// waitsForNodes reports whether every pod that is being deleted waits for a node that is not Ready, so that waiting alone may never
// end. Pods that have ended may stay listed until those are gone, as the leader of a LeaderWorkerSet's group does, and pods that are not
// being deleted may be waiting for them, as the workers of an evicted leader do.
func (f Facts) waitsForNodes() bool {
	waits, over := false, map[types.UID]bool{}
	for _, u := range f.Unconfirmed {
		waits = waits || u.Waiting != ""
		over[u.Pod.UID] = u.Waiting != "" || node.PodFinished(u.Pod)
	}
	return waits && !slices.ContainsFunc(f.Remaining,
		func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil && !over[p.UID] })
}
