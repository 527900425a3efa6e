package quarantine

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// deletionTaints are the keys of the taints with which autoscalers mark a node that they are about to remove
// (kubernetes/autoscaler cluster-autoscaler/utils/taints/taints.go; kubernetes-sigs/karpenter pkg/apis/v1/taints.go).
var deletionTaints = []string{"ToBeDeletedByClusterAutoscaler", "karpenter.sh/disrupted"}

// NotReady is the condition Ready of a node while it is not True; false while it is, and for a node without the condition.
func NotReady(n *corev1.Node) (corev1.NodeCondition, bool) {
	i := slices.IndexFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if i < 0 || n.Status.Conditions[i].Status == corev1.ConditionTrue {
		return corev1.NodeCondition{}, false
	}
	return n.Status.Conditions[i], true
}

// DescribeNotReady says since when a node is not Ready, and why as far as its condition Ready tells.
func DescribeNotReady(c corev1.NodeCondition) string {
	return fmt.Sprintf("Ready is %s since %s (%s)", c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339), Clip(c.Message, conditions.MaxMessage/4))
}

// Unhandled says that a node is not Ready and no rule acts on that, and why; empty for any other node.
func Unhandled(p *policy.Policy, n *corev1.Node, now time.Time) string {
	c, ok := NotReady(n)
	if !ok {
		return ""
	}
	if rule, _, ok := p.Match(n.Labels, c); !ok || rule.AlertOnly {
		return DescribeNotReady(c) + ", and no rule of the policy acts on that"
	}
	r, err := RecordOf(n)
	if err != nil {
		return ""
	}
	if why := whyNotReadyIsNoFault(p, n, r, c, now); why != "" {
		return DescribeNotReady(c) + why
	}
	return ""
}

// whyNotReadyIsNoFault explains, as the end of a sentence, why a node that is not Ready is left alone; empty: it is not. Such a node
// hangs no job, and quarantines of all that a cluster has would use up the limits. A quarantine that stands goes on.
func whyNotReadyIsNoFault(p *policy.Policy, n *corev1.Node, r *Record, ready corev1.NodeCondition, now time.Time) string {
	if r == nil || r.closed() || !r.hasCause(corev1.NodeReady) {
		since := notReadySince(n, ready)
		switch {
		case hasNeverBeenReady(n, ready):
			return ", as it has been since it was created, so the node is taken for one that has yet to start"
		case !since.IsZero() && now.Sub(since) >= p.Budget.ParkedAfter:
			return ", longer than budget.parkedAfter, so the node is taken for switched off"
		}
	}
	if r != nil && r.Phase == Quarantined {
		return ""
	}
	if key := deletionTaint(n); key != "" {
		return "; the node has taint " + key + ", so this is taken for planned work"
	}
	if n.Spec.Unschedulable { // our own cordon ends with the quarantine
		return "; the node was cordoned by someone else, so this is taken for planned work"
	}
	return ""
}

// deletionTaint is the key of a taint with which an autoscaler marks the node; empty: there is none.
func deletionTaint(n *corev1.Node) string {
	for _, t := range n.Spec.Taints {
		if slices.Contains(deletionTaints, t.Key) {
			return t.Key
		}
	}
	return ""
}

// hasNeverBeenReady tells whether a node has yet to start: its kubelet says since the creation of the Node that it is not Ready, or has never
// said anything (kubernetes pkg/controller/nodelifecycle/node_lifecycle_controller.go, tryUpdateNodeHealth).
func hasNeverBeenReady(n *corev1.Node, ready corev1.NodeCondition) bool {
	if ready.Status == corev1.ConditionUnknown {
		return ready.Reason == "NodeStatusNeverUpdated"
	}
	return ready.LastTransitionTime.Sub(n.CreationTimestamp.Time).Abs() <= conditions.MaxClockSkew
}

// notReadySince is since when a node has not been Ready; zero when that is not known. A kubelet takes the time from the clock of the
// node, which may be wrong after a boot: no transition is older than the Node.
func notReadySince(n *corev1.Node, ready corev1.NodeCondition) time.Time {
	if ready.LastTransitionTime.Time.Before(n.CreationTimestamp.Add(-conditions.MaxClockSkew)) {
		return time.Time{}
	}
	return ready.LastTransitionTime.Time
}

// isReady tells whether the problem is that the node is not Ready.
func (p problem) isReady() bool { return p.condition.Type == corev1.NodeReady }
