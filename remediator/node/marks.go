package node

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Marks are all labels, annotations and taints of a node, those of others included.
type Marks struct {
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
}

// marksOf copies those of a node.
func marksOf(n *corev1.Node) Marks {
	return Marks{maps.Clone(n.Labels), maps.Clone(n.Annotations), slices.Clone(n.Spec.Taints)}
}

// HandOff is what a quarantine has put on the node for other controllers, and takes away again.
type HandOff struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Taints      []corev1.Taint    `json:"taints,omitempty"`
}

// hand puts on the node what is not there yet, and returns that; nil if it is nothing. What somebody else has put there, with
// whatever value, is theirs.
func (m *Marks) hand(want policy.HandOff) *HandOff {
	var put HandOff
	put.Labels, m.Labels = added(m.Labels, want.Labels)
	put.Annotations, m.Annotations = added(m.Annotations, want.Annotations)
	for _, t := range want.Taints {
		if !slices.ContainsFunc(m.Taints, func(on corev1.Taint) bool { return on.MatchTaint(&t) }) {
			put.Taints = append(put.Taints, t)
			m.Taints = append(m.Taints, t)
		}
	}
	if len(put.Labels)+len(put.Annotations)+len(put.Taints) == 0 {
		return nil
	}
	return &put
}

func added(to, want map[string]string) (put, all map[string]string) {
	for key, value := range want {
		if _, theirs := to[key]; theirs {
			continue
		}
		put, to = set(put, key, value), set(to, key, value)
	}
	return put, to
}

// put adds what a quarantine puts on the node and is not there.
func (m *Marks) put(q *Quarantine) {
	if !hasTaint(m.Taints, q.Taint) {
		m.Taints = append(m.Taints, q.Taint.On())
	}
	if h := q.HandOff; h != nil {
		m.hand(policy.HandOff{Labels: h.Labels, Annotations: h.Annotations, Taints: h.Taints})
	}
}

// strip removes what a quarantine has put on the node.
func (m *Marks) strip(q *Quarantine) {
	if t := q.Taint; t != nil && !t.Foreign {
		m.Taints = slices.DeleteFunc(m.Taints, t.same)
	}
	m.takeBack(q.HandOff)
}

// takeBack removes what was handed off and is as we have put it. What somebody has changed since is theirs.
func (m *Marks) takeBack(h *HandOff) {
	if h == nil {
		return
	}
	ours := func(put map[string]string) func(key, value string) bool {
		return func(key, value string) bool {
			had, ok := put[key]
			return ok && had == value
		}
	}
	maps.DeleteFunc(m.Labels, ours(h.Labels))
	maps.DeleteFunc(m.Annotations, ours(h.Annotations))
	m.Taints = slices.DeleteFunc(m.Taints, func(on corev1.Taint) bool {
		return slices.ContainsFunc(h.Taints, func(t corev1.Taint) bool { return on.MatchTaint(&t) && on.Value == t.Value })
	})
}
