package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

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
	text := DescribeNotReady(c)
	if rule, _, ok := p.Match(n.Labels, c); !ok || rule.AlertOnly {
		return text + ", and no rule of the policy acts on that"
	}
	if isParked(p, c, now) {
		return text + ", longer than budget.parkedAfter, so the node is taken for switched off"
	}
	return ""
}

// isParked tells whether a node has not been Ready for so long that it is taken for switched off.
func isParked(p *policy.Policy, ready corev1.NodeCondition, now time.Time) bool {
	since := ready.LastTransitionTime.Time
	return !since.IsZero() && now.Sub(since) >= p.Budget.ParkedAfter
}

// outOfService tells what keeps a node out of service without a quarantine, and since when; empty when nothing does, and a
// zero time when that is not known.
func outOfService(n *corev1.Node) (why string, since time.Time) {
	if c, ok := NotReady(n); ok {
		why, since = limits.NotReady, c.LastTransitionTime.Time
	}
	if !n.Spec.Unschedulable {
		return why, since
	}
	// Of two reasons the earlier one counts: a machine that is parked may be switched off later.
	if at := cordonedAt(n); since.IsZero() || !at.IsZero() && at.Before(since) {
		since = at
	}
	return limits.Cordoned, since
}

// cordonedAt is when the node was cordoned: the time of the taint that the node lifecycle controller adds for it or, without
// one, the latest change by the manager that set the field. It is zero when neither is known.
func cordonedAt(n *corev1.Node) time.Time {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeUnschedulable && t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
	}
	if m := managerOfCordon(n); m != nil {
		return m.Time.Time
	}
	return time.Time{}
}

// managerOfCordon is the latest entry of the managed fields that has spec.unschedulable; nil when there is none with a time.
func managerOfCordon(n *corev1.Node) (latest *metav1.ManagedFieldsEntry) {
	for i := range n.ManagedFields {
		m := &n.ManagedFields[i]
		if m.Time == nil || m.FieldsV1 == nil || !strings.Contains(m.FieldsV1.GetRawString(), `"f:unschedulable":`) {
			continue
		}
		if latest == nil || m.Time.After(latest.Time.Time) {
			latest = m
		}
	}
	return latest
}

// SlimManagedFields are the managed fields of a node as far as decisions read them: when a cordoned node was cordoned, and since
// when a driver upgrade that is under way is in its step.
func SlimManagedFields(n *corev1.Node) []metav1.ManagedFieldsEntry {
	var kept []metav1.ManagedFieldsEntry
	if m := managerOfCordon(n); m != nil && n.Spec.Unschedulable {
		kept = append(kept, metav1.ManagedFieldsEntry{Time: m.Time, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
	}
	if !isUpgraded(n) {
		return kept
	}
	for _, m := range n.ManagedFields {
		if managesUpgradeState(m) {
			kept = append(kept, metav1.ManagedFieldsEntry{Time: m.Time, FieldsV1: metav1.NewFieldsV1(`{"f:metadata":{"f:labels":{"f:` + gpuUpgradeState + `":{}}}}`)})
		}
	}
	return kept
}
