package handoff

import (
	"maps"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// FieldManager is the remediator's name in the managed fields of what it writes.
const FieldManager = "pitcrew-remediator"

// ancientChanges is what the API server makes of the oldest managers when an object has more than ten of them (apimachinery
// 0.37.1, pkg/util/managedfields/internal/capmanagers.go).
const ancientChanges = "ancient-changes"

// cordonedBy tells by whom a cordoned node was cordoned, as its managed fields say, whatever a record claims. Where they say
// nothing, the record decides.
func cordonedBy(n *corev1.Node) (us, others bool) {
	if !n.Spec.Unschedulable {
		return false, false
	}
	for _, m := range n.ManagedFields {
		if m.Manager != ancientChanges && node.ManagesCordon(m) {
			us, others = us || m.Manager == FieldManager, others || m.Manager != FieldManager
		}
	}
	return us, others
}

// HasLostCordon reports whether the cordon that a quarantine has added is gone, or is only that of others now.
func (c *NodeChanges) HasLostCordon(added *Added) bool {
	return added != nil && added.Cordon && (!c.Unschedulable || c.cordonedByOthers && !c.cordonedByUs)
}

// RemoveStrayCordon uncordons a node that a quarantine has cordoned whose record is lost, and reports whether it did: the managed fields
// say that we have cordoned it and no one else, and its reason is one of ours.
func (c *NodeChanges) RemoveStrayCordon(known Known) bool {
	reason, ok := c.Annotations[policy.CordonReason]
	if !ok || !c.Unschedulable || !c.cordonedByUs || c.cordonedByOthers {
		return false
	}
	ours, _ := known.Split(&Added{Annotations: map[string]string{policy.CordonReason: reason}})
	if len(ours.Annotations) == 0 {
		return false
	}
	c.RemoveHandOff(&Added{Annotations: ours.Annotations, Cordon: true})
	return true
}

// WithCordonOf is what was added together with the cordon of an earlier decision of the same quarantine, and its reason, if that cordon
// is not known: it is still on the node, for a policy that knows it.
func (a *Added) WithCordonOf(earlier *Added, known Known) *Added {
	if earlier == nil || !earlier.Cordon || known.CanCordon() {
		return a
	}
	all := Added{Cordon: true}
	if a != nil {
		all.Labels, all.Annotations, all.Taints = a.Labels, maps.Clone(a.Annotations), a.Taints
	}
	if reason, ok := earlier.Annotations[policy.CordonReason]; ok && all.Annotations[policy.CordonReason] == "" {
		all.Annotations = set(all.Annotations, policy.CordonReason, reason)
	}
	return &all
}

// DropCordon gives up the cordon of a quarantine, and removes its reason if that is known and as it was added. It returns what else
// was added; nil: nothing.
func (c *NodeChanges) DropCordon(added *Added, known Known) *Added {
	if reason, ok := added.Annotations[policy.CordonReason]; ok {
		ours, _ := known.Split(&Added{Annotations: map[string]string{policy.CordonReason: reason}})
		c.RemoveHandOff(ours)
	}
	rest := &Added{Labels: added.Labels, Annotations: maps.Clone(added.Annotations), Taints: added.Taints}
	delete(rest.Annotations, policy.CordonReason)
	if len(rest.Labels)+len(rest.Annotations)+len(rest.Taints) == 0 {
		return nil
	}
	return rest
}
