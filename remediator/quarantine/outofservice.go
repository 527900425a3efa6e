package quarantine

import (
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// outOfService tells what keeps a node out of service without a quarantine, and since when; empty when nothing does, and a
// zero time when that is not known.
func outOfService(n *corev1.Node) (why string, since time.Time) {
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			why, since = limits.NotReady, c.LastTransitionTime.Time
		}
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

// SlimManagedFields are the managed fields of a node as far as [PeerOf] reads them: when a cordoned node was cordoned.
func SlimManagedFields(n *corev1.Node) []metav1.ManagedFieldsEntry {
	if !n.Spec.Unschedulable {
		return nil
	}
	m := managerOfCordon(n)
	if m == nil {
		return nil
	}
	return []metav1.ManagedFieldsEntry{{Time: m.Time, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)}}
}
