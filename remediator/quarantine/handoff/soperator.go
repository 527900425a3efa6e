package handoff

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Suspected and Cleared are the reasons of [policy.SoperatorCondition] that mark it as ours. soperator's own is "GPUHealthCheckFailed
// (Soperator)", and it never takes the condition back: it waits until the node is deleted (internal/controller/soperatorchecks).
const (
	Suspected = "QuarantinedByPitcrew"
	Cleared   = "ReleasedByPitcrew"
)

// IsOurSuspicion reports whether a condition is [policy.SoperatorCondition], and was written by us.
func IsOurSuspicion(c corev1.NodeCondition) bool {
	return c.Type == policy.SoperatorCondition && (c.Reason == Suspected || c.Reason == Cleared)
}

// Suspicion is [policy.SoperatorCondition] as a node must have it; false: it stays as it is. An empty message says that the node is
// in service. A node that was never quarantined needs no condition: to soperator, none is the same as False.
func Suspicion(n *corev1.Node, message string, now time.Time) (corev1.NodeCondition, bool) {
	c := corev1.NodeCondition{
		Type: policy.SoperatorCondition, Status: corev1.ConditionTrue, Reason: Suspected, Message: message,
		LastHeartbeatTime: metav1.NewTime(now), LastTransitionTime: metav1.NewTime(now),
	}
	if message == "" {
		c.Status, c.Reason, c.Message = corev1.ConditionFalse, Cleared, "the node is in service"
	}
	before, found := node.ConditionOf(n, policy.SoperatorCondition)
	if !found {
		return c, message != ""
	}
	if !IsOurSuspicion(before) || before.Status == c.Status && before.Reason == c.Reason && before.Message == c.Message {
		return before, false
	}
	if before.Status == c.Status {
		c.LastTransitionTime = before.LastTransitionTime
	}
	return c, true
}
