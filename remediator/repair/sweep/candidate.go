package sweep

import (
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// NodeOf sums up a node for [Plan], with what [visit.RecordOf] returns for it. The record is not changed.
func NodeOf(p *policy.Policy, n *corev1.Node, r *visit.Record, err error, idle Idle, now time.Time) Node {
	s := Node{Name: n.Name, Labels: labels.Set(n.Labels), Created: n.CreationTimestamp.Time, Idle: idle}
	q, badQuarantine := causes.RecordOf(n)
	if err != nil || badQuarantine != nil {
		s.Unavailable = "a record of the node cannot be read"
		return s
	}
	s.Record = r.Clone(n)
	if q != nil && q.NodeUID == n.UID && q.Phase == causes.Suspect {
		for _, c := range q.Causes {
			if c.HealthySince.IsZero() {
				s.SuspectSince = firstcheck.Later(s.SuspectSince, c.FirstSeen)
			}
		}
	}
	s.Unavailable = Unavailable(p, n, s.Record, q, now)
	return s
}

// Unavailable returns why no sweep may begin on a node, whatever its pods; empty: nothing is in the way.
func Unavailable(p *policy.Policy, n *corev1.Node, r *visit.Record, q *causes.Record, now time.Time) string {
	switch {
	case node.Excluded(n):
		return "Pitcrew leaves the node alone"
	case len(node.Accelerators(n.Status.Allocatable)) == 0:
		return "the node has no accelerator"
	case !node.IsReady(n):
		return "the node is not Ready"
	case n.Spec.Unschedulable:
		return "the node is cordoned"
	case firstcheck.Waits(p, n):
		return "the node waits for its first check"
	case proof.Standing(n, q) != nil:
		return "the node is quarantined"
	case q != nil && q.NodeUID == n.UID && q.IsIsolated():
		return "a GPU of the node is isolated"
	}
	for _, t := range n.Spec.Taints {
		if t.Key == conditions.TaintUnhealthy || t.Key == conditions.TaintUnchecked {
			return "the node has taint " + t.ToString()
		}
	}
	return OtherRepairer(n, r, now)
}

// OtherRepairer returns who else works on the node; empty: no one does.
func OtherRepairer(n *corev1.Node, r *visit.Record, now time.Time) string {
	for _, t := range n.Spec.Taints {
		if node.OfOtherRepairer(t) || t.Key == conditions.TaintMaintenance && !r.SetsTaint(t) {
			return "another repairer works on the node: it has taint " + t.ToString()
		}
	}
	if label := operator.PausedByOthers(n.Labels); label != "" {
		return "the GPU operator works on the node, as in a driver upgrade: it has label " + label
	}
	return node.WorkOfOthers(n, now)
}
