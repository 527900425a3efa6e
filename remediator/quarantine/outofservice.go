package quarantine

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// outOfService tells what keeps a node out of service without a quarantine, and since when; empty when nothing does, and a
// zero time when that is not known.
func outOfService(n *corev1.Node) (why string, since time.Time) {
	if c, ok := NotReady(n); ok {
		why, since = limits.NotReady, notReadySince(n, c)
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
		if m.Time == nil || !handoff.ManagesCordon(*m) {
			continue
		}
		if latest == nil || m.Time.After(latest.Time.Time) {
			latest = m
		}
	}
	return latest
}

// SlimManagedFields are the managed fields of a node as far as decisions read them: by whom and when a cordoned node was cordoned,
// and since when a driver upgrade that is under way is in its step.
func SlimManagedFields(n *corev1.Node) []metav1.ManagedFieldsEntry {
	var kept []metav1.ManagedFieldsEntry
	for _, m := range n.ManagedFields {
		if n.Spec.Unschedulable && handoff.ManagesCordon(m) {
			kept = append(kept, metav1.ManagedFieldsEntry{Manager: m.Manager, Time: m.Time, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)})
		}
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
