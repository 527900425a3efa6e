package node

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// LabelUpgradeState is the label in which the GPU operator's upgrade controller names its current step
// (NVIDIA/k8s-operator-libs pkg/upgrade/consts.go).
const LabelUpgradeState = "nvidia.com/gpu-driver-upgrade-state"

// UpgradeStepLimit is how long a step of a driver upgrade may take. The GPU operator gives a step at most some twenty minutes by
// default: 5 to delete pods, 5 to drain, 21 for the driver's container to start, 10 to validate (NVIDIA/k8s-operator-libs
// api/upgrade/v1alpha1/upgrade_spec.go and pkg/upgrade/validation_manager.go; the startup probe of NVIDIA/gpu-operator's driver
// DaemonSet). Only its wait for jobs has no limit by default, and then jobs run whose node must be watched.
const UpgradeStepLimit = 2 * time.Hour

// Maintained reports whether a sweep, a repair or an upgrade works on the node: taint [conditions.TaintMaintenance], or a
// driver upgrade of the GPU operator whose step began less than two hours ago. A label of an upgrade that was given up must not
// silence a node permanently.
func Maintained(n *corev1.Node, now time.Time) bool {
	return MarkedMaintained(n) && StaleUpgrade(n, now) == ""
}

// MarkedMaintained is [Maintained], but however old the mark is.
func MarkedMaintained(n *corev1.Node) bool {
	return HasTaint(n.Spec.Taints, conditions.TaintMaintenance) || isUpgraded(n)
}

// MaintainedUntil returns when [Maintained] ends by itself; zero when the node is not marked. It is false when nothing but a change
// of the node ends it.
func MaintainedUntil(n *corev1.Node) (at time.Time, ends bool) {
	if !MarkedMaintained(n) {
		return time.Time{}, true
	}
	since, known := UpgradeSince(n)
	if !known || HasTaint(n.Spec.Taints, conditions.TaintMaintenance) {
		return time.Time{}, false
	}
	return since.Add(UpgradeStepLimit), true
}

func isUpgraded(n *corev1.Node) bool {
	// While an upgrade is only required, or after it has failed, no one works on the node.
	switch n.Labels[LabelUpgradeState] {
	case "", "unknown", "upgrade-required", "upgrade-failed", "upgrade-done":
		return false
	}
	return true
}

// UpgradeSince returns when the step of a driver upgrade was written to the node, by the API server's own clock: the time at which
// the manager of the label last changed it or another of its fields. It is false when no upgrade is under way, or the time is
// not known.
func UpgradeSince(n *corev1.Node) (at time.Time, known bool) {
	if !isUpgraded(n) {
		return time.Time{}, false
	}
	for _, f := range n.ManagedFields {
		if f.Time != nil && managesUpgradeState(f) && f.Time.After(at) {
			at, known = f.Time.Time, true
		}
	}
	return at, known
}

// managesUpgradeState reports whether an entry of metadata.managedFields has the label of the upgrade's step.
func managesUpgradeState(f metav1.ManagedFieldsEntry) bool {
	return f.FieldsV1 != nil && strings.Contains(f.FieldsV1.GetRawString(), `"f:`+LabelUpgradeState+`"`)
}

// StaleUpgrade explains that a driver upgrade has been in the same step for longer than [UpgradeStepLimit]; empty: none has.
func StaleUpgrade(n *corev1.Node, now time.Time) string {
	at, known := UpgradeSince(n)
	if !known || now.Sub(at) < UpgradeStepLimit || HasTaint(n.Spec.Taints, conditions.TaintMaintenance) {
		return ""
	}
	const text = "label %s=%.63s has not changed for %s, so it is ignored: no step of a driver upgrade takes %s; has the upgrade failed?"
	return fmt.Sprintf(text,
		LabelUpgradeState, n.Labels[LabelUpgradeState], duration.HumanDuration(now.Sub(at)), duration.HumanDuration(UpgradeStepLimit))
}

// CordonedAt returns when the node was cordoned: the time of the taint that the node lifecycle controller adds for it or, without
// one, the latest change by the manager that set the field. It is zero when neither is known.
func CordonedAt(n *corev1.Node) (at time.Time) {
	for _, t := range n.Spec.Taints {
		if t.Key == corev1.TaintNodeUnschedulable && t.TimeAdded != nil {
			return t.TimeAdded.Time
		}
	}
	for _, m := range n.ManagedFields {
		if m.Time != nil && ManagesCordon(m) && m.Time.After(at) {
			at = m.Time.Time
		}
	}
	return at
}

// ManagesCordon reports whether a manager has set spec.unschedulable. The API server drops the field from all managers when a node
// is uncordoned, and a write that leaves the field as it is does not add it.
func ManagesCordon(m metav1.ManagedFieldsEntry) bool {
	const key = "f:unschedulable"
	if m.FieldsV1 == nil || !strings.Contains(m.FieldsV1.GetRawString(), key) {
		return false
	}
	var fields struct {
		Spec map[string]json.RawMessage `json:"f:spec"`
	}
	if err := json.Unmarshal([]byte(m.FieldsV1.GetRawString()), &fields); err != nil {
		return false // the API server writes no such entry
	}
	_, ok := fields.Spec[key] // labels may have any key
	return ok
}

// SlimManagedFields returns the managed fields of a node as far as decisions read them: by whom and when a cordoned node was cordoned,
// and since when a driver upgrade that is under way is in its step.
func SlimManagedFields(n *corev1.Node) []metav1.ManagedFieldsEntry {
	var kept []metav1.ManagedFieldsEntry
	for _, m := range n.ManagedFields {
		if n.Spec.Unschedulable && ManagesCordon(m) {
			fields := metav1.NewFieldsV1(`{"f:spec":{"f:unschedulable":{}}}`)
			kept = append(kept, metav1.ManagedFieldsEntry{Manager: m.Manager, Time: m.Time, FieldsV1: fields})
		}
	}
	if !isUpgraded(n) {
		return kept
	}
	for _, m := range n.ManagedFields {
		if managesUpgradeState(m) {
			text := `{"f:metadata":{"f:labels":{"f:` + LabelUpgradeState + `":{}}}}`
			kept = append(kept, metav1.ManagedFieldsEntry{Time: m.Time, FieldsV1: metav1.NewFieldsV1(text)})
		}
	}
	return kept
}
