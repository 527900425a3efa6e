package restart

import (
	"time"

	corev1 "k8s.io/api/core/v1"
)

// taintShutdown is what the cloud controller manager sets on a node that is not Ready while the provider reports that its instance
// is shut down (k8s.io/cloud-provider v0.37.1 api/well_known_taints.go; controllers/nodelifecycle, MonitorNodes).
const taintShutdown = "node.cloudprovider.kubernetes.io/shutdown"

// ProofOfDeath returns what proves that no process of a pod that is being deleted runs any more, as the end of a sentence about it;
// empty: nothing does. node is nil if there is no node of that name. It has to be read live.
//
// A proof rests only on what a person, a fencer or the provider states about the machine. That it does not answer proves nothing. The
// pod garbage collector of Kubernetes accepts the same for the first two (v1.37.1 pkg/controller/podgc, gcOrphaned and gcTerminating),
// up to a minute later. A boot id proves nothing here: no object tells in which boot a pod was started last, and a kubelet that is back
// in a new boot ends the pods itself.
func ProofOfDeath(pod *corev1.Pod, node *corev1.Node, now time.Time) string {
	if node == nil {
		// The deletion of a Node stops no kubelet. One that runs gives the pod its time, in which a rank may write a checkpoint.
		if Overdue(pod, 0, now) {
			return "its Node was deleted"
		}
		return ""
	}
	// A taint that stayed on a node that is back says nothing about the pods that run there now.
	if !NotReady(node) {
		return ""
	}
	for _, taint := range node.Spec.Taints {
		switch taint.Key {
		case corev1.TaintNodeOutOfService:
			return "its node is not Ready and has taint " + taint.Key
		case taintShutdown:
			return "the cloud provider reports its node as shut down, by taint " + taint.Key
		}
	}
	return ""
}

// NotReady reports whether a node's kubelet has reported, and reports now that it is not Ready, or reports nothing any more.
func NotReady(node *corev1.Node) bool {
	ready := readyCondition(node)
	return ready != nil && ready.Status != corev1.ConditionTrue
}

// ActiveOn reports whether a pod counts as one on its node: it has not ended, and will not end by itself. One that is being deleted does
// as long as its kubelet answers; from a node that is not Ready Kubernetes evicts pods, and the ranks beside them run on. node is nil if
// there is none of that name.
func ActiveOn(pod *corev1.Pod, node *corev1.Node) bool {
	return !PodFinished(pod) && (pod.DeletionTimestamp == nil || node != nil && NotReady(node))
}

// silentSince is since when a node does not answer; ok is false if it answers.
func silentSince(node *corev1.Node) (since time.Time, ok bool) {
	if ready := readyCondition(node); ready != nil && ready.Status == corev1.ConditionUnknown {
		return ready.LastTransitionTime.Time, true
	}
	return time.Time{}, false
}

// readyCondition is a node's condition Ready; nil if it has none.
func readyCondition(node *corev1.Node) *corev1.NodeCondition {
	for i := range node.Status.Conditions {
		if node.Status.Conditions[i].Type == corev1.NodeReady {
			return &node.Status.Conditions[i]
		}
	}
	return nil
}
