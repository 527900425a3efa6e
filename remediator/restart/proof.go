package restart

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// ProofOfDeath returns what proves that no process of a pod that is being deleted runs any more, as the end of a sentence about it;
// empty: nothing does. n is nil if there is no node of that name. It has to be read live.
//
// A proof rests only on what a person, a fencer or the provider states about the machine. That it does not answer proves nothing. The
// pod garbage collector of Kubernetes accepts the same for the first two (v1.37.1 pkg/controller/podgc, gcOrphaned and gcTerminating),
// up to a minute later. A boot id proves nothing here: no object tells in which boot a pod was started last, and a kubelet that is back
// in a new boot ends the pods itself.
func ProofOfDeath(pod *corev1.Pod, n *corev1.Node, now time.Time) string {
	if n == nil {
		// The deletion of a Node stops no kubelet. One that runs gives the pod its time, in which a rank may write a checkpoint.
		if Overdue(pod, 0, now) {
			return "its Node was deleted"
		}
		return ""
	}
	// A taint that stayed on a node that is back says nothing about the pods that run there now.
	if !NotReady(n) {
		return ""
	}
	for _, taint := range n.Spec.Taints {
		switch taint.Key {
		case corev1.TaintNodeOutOfService:
			return "its node is not Ready and has taint " + taint.Key
		case node.TaintShutdown:
			return "the cloud provider reports its node as shut down, by taint " + taint.Key
		}
	}
	return ""
}

// ActiveOn reports whether a pod counts as one on its node: it has not ended, and will not end by itself. One that is being deleted does
// as long as its kubelet answers; from a node that is not Ready Kubernetes evicts pods, and the ranks beside them run on. n is nil if
// there is none of that name.
func ActiveOn(pod *corev1.Pod, n *corev1.Node) bool {
	return !node.PodFinished(pod) && (pod.DeletionTimestamp == nil || n != nil && NotReady(n))
}

// NotReady is [node.NotReady] without the condition.
func NotReady(n *corev1.Node) bool {
	_, is := node.NotReady(n)
	return is
}
