package visit

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// OrphanOf is a maintenance taint of a kind of ours on a node without a visit of that kind under way, as is left when a person removes
// the record; nil: there is none. Others use values of their own.
func OrphanOf(n *corev1.Node, r *Record) *corev1.Taint {
	for _, t := range n.Spec.Taints {
		ours := t.Key == conditions.TaintMaintenance && Kind(t.Value).IsKnown()
		if ours && (r == nil || r.Current == nil || t.Value != string(r.Current.Kind)) {
			return &t
		}
	}
	return nil
}
