package quarantine

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// Changes tells whether the decision changes a node.
func (d Decision) Changes(n *corev1.Node) bool {
	if d.State == nil {
		return false
	}
	after := n.DeepCopy()
	d.State.Apply(after)
	return !equality.Semantic.DeepEqual(n, after)
}

// State is what a node must carry; our labels follow from the record.
type State struct {
	// Record is nil when the node needs none.
	Record *Record
	// Changes are the labels, annotations and taints, but for our labels and the record.
	Changes handoff.NodeChanges
}

// Apply puts the state on a node object.
func (s *State) Apply(n *corev1.Node) {
	s.Changes.Apply(n)
	status, repair := s.Record.Labels(Maintained(n))
	text := ""
	if s.Record != nil {
		text = s.Record.String()
	}
	all := handoff.NodeChanges{Labels: n.Labels, Annotations: n.Annotations, Taints: n.Spec.Taints}
	all.SetLabel(conditions.LabelStatus, status)
	all.SetLabel(conditions.LabelRepair, repair)
	all.SetAnnotation(conditions.AnnotationQuarantine, text)
	n.Labels, n.Annotations = all.Labels, all.Annotations
}

// Overlay puts a record on a node object, with what its quarantine adds to the node or has removed from it. r may be nil.
func Overlay(n *corev1.Node, r *Record) {
	s := State{Record: r, Changes: handoff.Of(n)}
	if r != nil && r.Phase == Quarantined {
		r.addTo(&s.Changes)
	} else if r != nil && r.Phase == Released {
		r.removeFrom(&s.Changes)
	}
	s.Apply(n)
}

// addTo adds what the quarantine puts on a node, as far as it is not there.
func (q *Quarantine) addTo(c *handoff.NodeChanges) {
	if !hasTaint(c.Taints, q.Taint) {
		c.Taints = append(c.Taints, q.Taint.NodeTaint())
	}
	if h := q.HandOff; h != nil {
		c.AddHandOff(policy.HandOff{Labels: h.Labels, Annotations: h.Annotations, Taints: h.Taints})
	}
}

// removeFrom removes what the quarantine has put on a node. The taint goes whatever its value has become.
func (q *Quarantine) removeFrom(c *handoff.NodeChanges) {
	if t := q.Taint; t != nil && !t.PreExisting {
		c.Taints = slices.DeleteFunc(c.Taints, t.matches)
	}
	c.RemoveHandOff(q.HandOff)
}
