package visit

import (
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Strip returns a copy of the node without its record, and without the taint of a visit. A maintenance taint that the record does not
// explain is somebody else's.
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
	return stripped
}
