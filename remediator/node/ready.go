// Package node has the facts of a Node, as the Node alone tells them: whether it is Ready and since when, who else works on it, its
// accelerators. Each question is answered here once, for the engine, the restart of jobs, repairs and kubectl. The package is pure: it
// reads no clock and no cluster, and knows no policy and no record. [Slim] is the Node that the cache keeps for all of them.
package node

import (
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// TaintShutdown is what the cloud controller manager sets on a node that is not Ready while the provider reports that its instance
// is shut down (k8s.io/cloud-provider v0.37.1 api/well_known_taints.go; controllers/nodelifecycle, MonitorNodes).
const TaintShutdown = "node.cloudprovider.kubernetes.io/shutdown"

// deletionTaints are the keys of the taints with which autoscalers mark a node that they are about to remove
// (kubernetes/autoscaler cluster-autoscaler/utils/taints/taints.go; kubernetes-sigs/karpenter pkg/apis/v1/taints.go).
var deletionTaints = []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}

// medik8s prefixes the taints of the remediators of medik8s (medik8s/common pkg/labels).
const medik8s = "medik8s.io/"

// ConditionOf returns a condition of a node; false: it has none of the type.
func ConditionOf(n *corev1.Node, of corev1.NodeConditionType) (corev1.NodeCondition, bool) {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == of })
	if i < 0 {
		return corev1.NodeCondition{}, false
	}
	return n.Status.Conditions[i], true
}

// IsReady reports whether the condition Ready of a node is True.
func IsReady(n *corev1.Node) bool {
	c, _ := ConditionOf(n, corev1.NodeReady)
	return c.Status == corev1.ConditionTrue
}

// NotReady returns the condition Ready of a node while it is not True; false while it is, and for a node without the condition, whose
// kubelet has never reported.
func NotReady(n *corev1.Node) (corev1.NodeCondition, bool) {
	c, ok := ConditionOf(n, corev1.NodeReady)
	if !ok || c.Status == corev1.ConditionTrue {
		return corev1.NodeCondition{}, false
	}
	return c, true
}

// NoHeartbeatSince returns since when the kubelet of a node reports nothing; false if it reports.
func NoHeartbeatSince(n *corev1.Node) (since time.Time, ok bool) {
	if c, ok := NotReady(n); ok && c.Status == corev1.ConditionUnknown {
		return c.LastTransitionTime.Time, true
	}
	return time.Time{}, false
}

// NeverReady reports whether a node has yet to start: its kubelet reports since the creation of the Node that it is not Ready, or has never
// reported anything (kubernetes pkg/controller/nodelifecycle/node_lifecycle_controller.go, tryUpdateNodeHealth). ready is the condition.
func NeverReady(n *corev1.Node, ready corev1.NodeCondition) bool {
	if ready.Status == corev1.ConditionUnknown {
		return ready.Reason == "NodeStatusNeverUpdated"
	}
	return ready.LastTransitionTime.Sub(n.CreationTimestamp.Time).Abs() <= conditions.MaxClockSkew
}

// NotReadySince returns since when a node has not been Ready; zero when that is not known. A kubelet takes the time from the clock of the
// node, which may be wrong after a boot: no transition is older than the Node. ready is the condition.
func NotReadySince(n *corev1.Node, ready corev1.NodeCondition) time.Time {
	if ready.LastTransitionTime.Time.Before(n.CreationTimestamp.Add(-conditions.MaxClockSkew)) {
		return time.Time{}
	}
	return ready.LastTransitionTime.Time
}

// Excluded reports whether a node is left alone, see [WhyExcluded].
func Excluded(n *corev1.Node) bool { return WhyExcluded(n) != "" }

// WhyExcluded returns why a node is left alone: it is one of the control plane, one with label [conditions.LabelSkip], one that is being
// deleted, or one that is [TooLarge]; empty: it is not.
func WhyExcluded(n *corev1.Node) string {
	const controlPlane, master = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"
	_, isControlPlane := n.Labels[controlPlane]
	_, isMaster := n.Labels[master]
	switch {
	case isControlPlane, isMaster, HasTaint(n.Spec.Taints, controlPlane), HasTaint(n.Spec.Taints, master):
		return "it belongs to the control plane"
	case n.Labels[conditions.LabelSkip] == "true":
		return "it has label " + conditions.LabelSkip + "=true"
	case n.DeletionTimestamp != nil:
		return "it is being deleted"
	}
	return TooLarge(n)
}

// HasTaint reports whether a taint with the key is among some.
func HasTaint(taints []corev1.Taint, key string) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == key })
}

// HasTaintValue reports whether a taint with the key and the value is among some.
func HasTaintValue(taints []corev1.Taint, key, value string) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == key && t.Value == value })
}

// DeletionTaint returns the key of a taint with which an autoscaler marks the node; empty: there is none.
func DeletionTaint(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if slices.Contains(deletionTaints, t.Key) {
			return t.Key
		}
	}
	return ""
}

// OfOtherRepairer reports whether others mark with the taint that they remove, fence or repair a node.
func OfOtherRepairer(t corev1.Taint) bool {
	return slices.Contains(deletionTaints, t.Key) || t.Key == corev1.TaintNodeOutOfService || t.Key == TaintShutdown ||
		strings.HasPrefix(t.Key, medik8s)
}

// Accelerators returns the names of the extended resources in a list, such as the allocatable resources of a node or the requests
// of a pod, sorted: those of a vendor of which there is at least one. What else than accelerators device plugins offer, such as
// network devices, counts too.
func Accelerators(list corev1.ResourceList) []corev1.ResourceName {
	var names []corev1.ResourceName
	for _, name := range slices.Sorted(maps.Keys(list)) {
		amount := list[name]
		domain, _, prefixed := strings.Cut(string(name), "/")
		standard := strings.Contains(domain, "kubernetes.io") || strings.HasPrefix(domain, corev1.DefaultResourceRequestsPrefix)
		if prefixed && !standard && amount.Sign() > 0 {
			names = append(names, name)
		}
	}
	return names
}

// PodFinished reports whether a pod has ended, well or not: it holds nothing of its node any more.
func PodFinished(p *corev1.Pod) bool {
	return p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
}
