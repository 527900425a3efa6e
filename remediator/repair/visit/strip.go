package visit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
)

// Unfinished reports whether a visit has left a taint or a paused label on a node, if no visit is under way.
func Unfinished(n *corev1.Node) bool { return OrphanOf(n, nil) != nil || operator.IsPaused(n.Labels) }

// Strip returns a copy of the node without its record, the taint of a visit and what it has paused. A taint that no record explains is
// somebody else's.
func Strip(n *corev1.Node) *corev1.Node {
	record, err := RecordOf(n)
	stripped := n.DeepCopy()
	delete(stripped.Annotations, conditions.AnnotationRepair)
	stripped.Spec.Taints = slices.DeleteFunc(stripped.Spec.Taints, func(t corev1.Taint) bool {
		if t.Key != conditions.TaintMaintenance {
			return false
		}
		if err != nil { // the record is ours, whatever has become of it
			return Kind(t.Value).IsKnown()
		}
		return record != nil && record.SetsTaint(t)
	})
	stripped.Labels = operator.Resume(stripped.Labels)
	return stripped
}
