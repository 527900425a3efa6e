package node

import (
	"fmt"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// LabelScheduledMaintenance is when GKE is going to maintain the host of a node, in seconds since 1970
// (https://cloud.google.com/kubernetes-engine/docs/how-to/view-maintenance-events).
const LabelScheduledMaintenance = "cloud.google.com/scheduled-maintenance-time"

// vmEventScheduled is the condition in which AKS announces that Azure is going to reboot, move, freeze or delete the machine of a node
// (https://learn.microsoft.com/azure/aks/node-problem-detector).
const vmEventScheduled corev1.NodeConditionType = "VMEventScheduled"

const (
	// ClaimLimit is how long a claim holds. Whoever may write the status of a Node can make one, its kubelet among them.
	ClaimLimit = 2 * time.Hour
	// claimAhead is how long before its time a maintenance with a time keeps visits from the node: a check under load may take as long.
	claimAhead = time.Hour
)

// Claim is the maintenance of a node by others, as its Node announces it.
type Claim struct {
	// Why names the condition or the label.
	Why string
	// InProgress is set if others work on the node now. One that is planned may take the node away, and explains no other fault.
	InProgress bool
	// From and Until are when the claim holds.
	From, Until time.Time
}

// IsOwnMaintenance reports whether a condition is MaintenanceInProgress as we write it. Whoever may write the status of a Node can write
// the same.
func IsOwnMaintenance(c corev1.NodeCondition) bool {
	return c.Type == corev1.NodeMaintenanceInProgress && c.Reason == conditions.ReasonRepair
}

// Claims are what a Node announces: conditions MaintenanceInProgress and MaintenancePlanned (KEP-5683), VMEventScheduled of AKS, and the
// label of GKE. They need not hold now. Our own condition is none while the node has the taint of our repair, which its kubelet may not
// write; without the taint it is a claim like any other.
func Claims(n *corev1.Node) (claims []Claim) {
	for _, c := range n.Status.Conditions {
		switch c.Type {
		case corev1.NodeMaintenanceInProgress, corev1.NodeMaintenancePlanned, vmEventScheduled:
		default:
			continue
		}
		if IsOwnMaintenance(c) && HasTaintValue(n.Spec.Taints, conditions.TaintMaintenance, conditions.MaintenanceRepair) {
			continue
		}
		if from := c.LastTransitionTime.Time; c.Status == corev1.ConditionTrue && !from.IsZero() {
			claims = append(claims, Claim{
				Why: fmt.Sprintf("condition %s is True (%.63s)", c.Type, c.Reason), InProgress: c.Type == corev1.NodeMaintenanceInProgress,
				From: from.UTC(), Until: from.Add(ClaimLimit).UTC(),
			})
		}
	}
	if at, ok := scheduledMaintenance(n); ok {
		claims = append(claims, Claim{
			Why:  fmt.Sprintf("label %s announces maintenance at %s", LabelScheduledMaintenance, at.Format(time.RFC3339)),
			From: at.Add(-claimAhead), Until: at.Add(ClaimLimit),
		})
	}
	return claims
}

// scheduledMaintenance returns the time in the label of GKE; false: there is none that a clock can show.
func scheduledMaintenance(n *corev1.Node) (time.Time, bool) {
	const maxDigits = 11
	text := n.Labels[LabelScheduledMaintenance]
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err != nil || len(text) > maxDigits {
		return time.Time{}, false
	}
	return time.Unix(int64(seconds), 0).UTC(), true //nolint:gosec // it has 11 digits at most
}

// Holds reports whether the claim holds at a time.
func (c Claim) Holds(at time.Time) bool { return !at.Before(c.From) && at.Before(c.Until) }

// HoldingClaims are the [Claims] of a node that hold at a time.
func HoldingClaims(n *corev1.Node, at time.Time) (holding []Claim) {
	for _, c := range Claims(n) {
		if c.Holds(at) {
			holding = append(holding, c)
		}
	}
	return holding
}

// Excuse explains that a fault of a node which began at a time is taken for planned work of others; empty: it is not. A fault that is
// older than a claim is none of its work, and an absence ends when the claim does.
func Excuse(claims []Claim, condition corev1.NodeConditionType, began time.Time) string {
	for _, c := range claims {
		if c.Holds(began) && (c.InProgress || condition == corev1.NodeReady) {
			return c.Why
		}
	}
	return ""
}

// WorkOfOthers explains that others work on a node, or are about to, whatever its taints say; empty: no one does.
func WorkOfOthers(n *corev1.Node, now time.Time) string {
	if !HasTaint(n.Spec.Taints, conditions.TaintMaintenance) && Maintained(n, now) {
		return "a driver upgrade is under way on the node"
	}
	for _, c := range HoldingClaims(n, now) {
		return "others maintain the node: " + c.Why
	}
	return ""
}
