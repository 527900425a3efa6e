// Package handoff keeps the labels, annotations, taints and the cordon of a Node that other controllers read. It adds what the
// policy hands off, removes it again, and leaves alone what others have set. It is pure.
package handoff

import (
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// NodeChanges are all labels, annotations and taints that a node is to carry, those of others included, and its cordon.
type NodeChanges struct {
	Labels, Annotations map[string]string
	Taints              []corev1.Taint
	// Unschedulable is spec.unschedulable.
	Unschedulable bool
	// cordonedByUs and cordonedByOthers are set when the node is known to have been cordoned so; both if it was twice.
	cordonedByUs, cordonedByOthers bool
}

// Of copies the labels, annotations, taints and the cordon of a node.
func Of(n *corev1.Node) NodeChanges {
	us, others := cordonedBy(n)
	return NodeChanges{
		Labels: maps.Clone(n.Labels), Annotations: maps.Clone(n.Annotations), Taints: slices.Clone(n.Spec.Taints),
		Unschedulable: n.Spec.Unschedulable, cordonedByUs: us, cordonedByOthers: others,
	}
}

// Apply puts copies of them on a node object, in place of what it has.
func (c NodeChanges) Apply(n *corev1.Node) {
	n.Labels, n.Annotations, n.Spec.Taints = maps.Clone(c.Labels), maps.Clone(c.Annotations), slices.Clone(c.Taints)
	n.Spec.Unschedulable = c.Unschedulable
}

// SetLabel sets a label, or removes it when the value is empty.
func (c *NodeChanges) SetLabel(key, value string) { c.Labels = set(c.Labels, key, value) }

// SetAnnotation sets an annotation, or removes it when the value is empty.
func (c *NodeChanges) SetAnnotation(key, value string) {
	c.Annotations = set(c.Annotations, key, value)
}

// Added is what a quarantine has added to a node for other controllers, and removes again. It is part of the node's record.
type Added struct {
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
	Taints      []corev1.Taint    `json:"taints,omitempty"`
	// Cordon is set when the quarantine has cordoned the node.
	Cordon bool `json:"cordon,omitempty"`
}

// AddHandOff adds what is not on the node yet and returns that; nil if it added nothing. A key that is there already,
// with whatever value, belongs to others.
func (c *NodeChanges) AddHandOff(want policy.HandOff) *Added {
	var added Added
	if c.Unschedulable {
		want = want.WithoutCordon()
	}
	if want.Cordons() {
		c.Unschedulable, c.cordonedByUs, c.cordonedByOthers, added.Cordon = true, true, false, true
	}
	added.Labels, c.Labels = addMissing(c.Labels, want.Labels)
	added.Annotations, c.Annotations = addMissing(c.Annotations, want.Annotations)
	for _, t := range want.Taints {
		if !slices.ContainsFunc(c.Taints, func(on corev1.Taint) bool { return on.MatchTaint(&t) }) {
			added.Taints = append(added.Taints, t)
			c.Taints = append(c.Taints, t)
		}
	}
	if len(added.Labels)+len(added.Annotations)+len(added.Taints) == 0 && !added.Cordon {
		return nil
	}
	return &added
}

// RemoveHandOff removes what was added and has not changed. What others have changed since is theirs.
func (c *NodeChanges) RemoveHandOff(added *Added) {
	if added == nil {
		return
	}
	unchanged := func(added map[string]string) func(key, value string) bool {
		return func(key, value string) bool {
			had, ok := added[key]
			return ok && had == value
		}
	}
	maps.DeleteFunc(c.Labels, unchanged(added.Labels))
	maps.DeleteFunc(c.Annotations, unchanged(added.Annotations))
	c.Taints = slices.DeleteFunc(c.Taints, func(on corev1.Taint) bool {
		return slices.ContainsFunc(added.Taints, func(t corev1.Taint) bool { return on.MatchTaint(&t) && on.Value == t.Value })
	})
	if added.Cordon && !c.cordonedByOthers {
		c.Unschedulable = false
	}
}

// addMissing returns what it has added to a map, and the map.
func addMissing(to, want map[string]string) (added, all map[string]string) {
	for key, value := range want {
		if _, exists := to[key]; exists {
			continue
		}
		// Not set: an empty value is one, too.
		if added == nil {
			added = map[string]string{}
		}
		if to == nil {
			to = map[string]string{}
		}
		added[key], to[key] = value, value
	}
	return added, to
}

// set sets a key, or removes it when the value is empty.
func set(m map[string]string, key, value string) map[string]string {
	if value == "" {
		delete(m, key)
		return m
	}
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}
