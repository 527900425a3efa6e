package repair

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
)

// orphanTimeout is how long a maintenance taint stays that no visit explains.
const orphanTimeout = 10 * time.Minute

// OrphanOf is a maintenance taint of a kind of ours on a node without a visit of that kind under way, as is left when a person removes
// the record; nil: there is none. Others use values of their own.
func OrphanOf(n *corev1.Node, r *Record) *corev1.Taint {
	for _, t := range n.Spec.Taints {
		ours := t.Key == conditions.TaintMaintenance && slices.Contains([]Kind{Sweep, Repair, Validation, FirstCheck}, Kind(t.Value))
		if ours && (r == nil || r.Current == nil || t.Value != string(r.Current.Kind)) {
			return &t
		}
	}
	return nil
}

// removeOrphan takes away a maintenance taint that no visit explains. Without the record it would count as that of another repairer, for
// ever.
func (d *decider) removeOrphan() {
	orphan, since := OrphanOf(d.facts.Node, d.record), d.facts.OrphanSince
	switch over := since.Add(orphanTimeout); {
	case orphan == nil || since.IsZero() || d.facts.Paused != "" || node.Excluded(d.facts.Node):
	case d.now.Before(over):
		d.requeueAt(over)
	default:
		d.step.orphan = orphan
		d.event(corev1.EventTypeWarning, (&Visit{Kind: Kind(orphan.Value)}).endReason(), "taint %s was removed: for %s no visit to the node has explained it",
			orphan.ToString(), orphanTimeout)
	}
}
