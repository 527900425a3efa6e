package handoff

import (
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// FieldManager is the remediator's name in the managed fields of what it writes.
const FieldManager = "pitcrew-remediator"

// ancientChanges is what the API server makes of the oldest managers when an object has more than ten of them (apimachinery
// 0.37.1, pkg/util/managedfields/internal/capmanagers.go).
const ancientChanges = "ancient-changes"

// ManagesCordon tells whether a manager has set spec.unschedulable. The API server drops the field from all managers when a node
// is uncordoned, and a write that leaves the field as it is does not add it.
func ManagesCordon(m metav1.ManagedFieldsEntry) bool {
	return m.FieldsV1 != nil && strings.Contains(m.FieldsV1.GetRawString(), `"f:unschedulable":`)
}

// CordonedByOthers tells whether the managed fields of a cordoned node say that others have cordoned it, whatever a record
// claims. Where they say nothing, the record decides.
func CordonedByOthers(n *corev1.Node) bool {
	if !n.Spec.Unschedulable {
		return false
	}
	for _, m := range n.ManagedFields {
		if m.Manager != FieldManager && m.Manager != ancientChanges && ManagesCordon(m) {
			return true
		}
	}
	return false
}

// HasLostCordon tells whether the cordon that a quarantine has added is gone, or is that of others now.
func (c *NodeChanges) HasLostCordon(added *Added) bool {
	return added != nil && added.Cordon && (!c.Unschedulable || c.cordonedByOthers)
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
