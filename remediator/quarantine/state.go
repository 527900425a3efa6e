package quarantine

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record/pending"
)

// Differ reports whether two versions of a node can lead to different decisions about it, whatever its conditions show.
func Differ(a, b *corev1.Node) bool {
	return a.UID != b.UID ||
		(a.DeletionTimestamp == nil) != (b.DeletionTimestamp == nil) ||
		a.Annotations[conditions.AnnotationQuarantine] != b.Annotations[conditions.AnnotationQuarantine] ||
		a.Annotations[conditions.AnnotationRepair] != b.Annotations[conditions.AnnotationRepair] ||
		a.Annotations[conditions.AnnotationRequest] != b.Annotations[conditions.AnnotationRequest] ||
		!maps.Equal(a.Labels, b.Labels) ||
		a.Spec.Unschedulable != b.Spec.Unschedulable ||
		!slices.EqualFunc(a.Spec.Taints, b.Spec.Taints, func(a, b corev1.Taint) bool { return a.MatchTaint(&b) && a.Value == b.Value }) ||
		a.Status.NodeInfo.BootID != b.Status.NodeInfo.BootID
}

// Changes reports whether the decision changes a node.
func (d Decision) Changes(n *corev1.Node) bool {
	if d.State == nil {
		return false
	}
	after := *n
	d.State.Apply(&after)
	return n.Spec.Unschedulable != after.Spec.Unschedulable || !maps.Equal(n.Labels, after.Labels) ||
		!maps.Equal(n.Annotations, after.Annotations) || !equality.Semantic.DeepEqual(n.Spec.Taints, after.Spec.Taints)
}

// Quarantines reports whether the node is quarantined after the decision.
func (d Decision) Quarantines() bool {
	return d.State != nil && d.State.Record != nil && d.State.Record.Phase == causes.Quarantined
}

// State is what a node must carry; our labels follow from the record.
type State struct {
	// Record is nil when the node needs none.
	Record *causes.Record
	// Changes are the labels, annotations, taints and the cordon, but for our labels and the record.
	Changes handoff.NodeChanges
	// maintained reports whether a sweep, a repair or an upgrade works on the node.
	maintained bool
	// suspicion is what [State.Suspicion] returns, without it nothing is known.
	suspicion *string
}

// Apply puts the state on a node object.
func (s *State) Apply(n *corev1.Node) {
	s.Changes.Apply(n)
	status, repair := s.Record.Labels(s.maintained)
	if status == conditions.StatusRepairing && isValidating(n) {
		status = conditions.StatusValidating
	}
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

// isValidating reports whether the maintenance of a node is a validation.
func isValidating(n *corev1.Node) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == conditions.TaintMaintenance && t.Value == conditions.MaintenanceValidation
	})
}

// Suspicion returns for what the node is out of service; empty: it is not, or a quarantine is only claimed or asks the scheduler to avoid
// the node. It is false if that is not known and what was said before stays: nothing was decided, or the taint is missing during a
// maintenance, in which it is not put back.
func (s *State) Suspicion() (string, bool) {
	if s == nil || s.suspicion == nil {
		return "", false
	}
	return *s.suspicion, true
}

func suspicion(s *situation) *string {
	var text string
	r := s.record
	if r == nil || r.Phase != causes.Quarantined || r.IsIsolated() || r.Taint.HeldFor != "" || limits.IsSoft(r.Taint.Effect) ||
		!s.known.HasTaint(r.Taint.NodeTaint()) {
		return &text
	}
	if !causes.HasTaint(s.changes.Taints, r.Taint) {
		if s.conditions.Maintained {
			return nil
		}
		return &text
	}
	text = fmt.Sprintf("%s: needs %s (rule %s)", r.Decisive().Condition, causes.Needs(r.Taint.Repair), r.Taint.Rule)
	return &text
}

// Overlay puts a record on a node object, with what its quarantine adds to the node or has removed from it, and without the
// taints of our domain that it does not explain. r may be nil.
func Overlay(n *corev1.Node, r *causes.Record) {
	s := State{Record: r, Changes: handoff.Of(n), maintained: node.MarkedMaintained(n)}
	s.Changes.Taints = slices.DeleteFunc(s.Changes.Taints, func(t corev1.Taint) bool { return mayBeQuarantine(t) && !r.Explains(t) })
	if r != nil && r.Phase == causes.Quarantined {
		r.AddTo(&s.Changes)
	} else if r != nil && r.Phase == causes.Released {
		r.RemoveFrom(&s.Changes, handoff.AnyKnown())
	}
	s.Apply(n)
}

// Pending are the records of quarantines among [pending.Writes].
var Pending = pending.Kind[*causes.Record]{Annotation: conditions.AnnotationQuarantine, Overlay: Overlay, Text: text}

func text(r *causes.Record) string {
	if r == nil {
		return ""
	}
	return r.String()
}

// mayBeQuarantine reports whether the key of a taint is one that a quarantine may set in our domain.
func mayBeQuarantine(t corev1.Taint) bool {
	return strings.HasPrefix(t.Key, conditions.Domain+"/") && t.Key != conditions.TaintMaintenance && t.Key != conditions.TaintUnchecked
}

// AwaitsHeartbeat reports that a condition for which a rule acts, or its health, counts only with its next heartbeat, because the node came
// back after the last one; empty: none does.
func AwaitsHeartbeat(p *policy.Policy, n *corev1.Node, now time.Time) string {
	r, err := causes.RecordOf(n)
	if err != nil {
		return ""
	}
	a := newDecider(p, Observation{Node: n, Record: r}, now).conditions
	if a.Maintained {
		return ""
	}
	for _, c := range n.Status.Conditions {
		rule, _, ok := p.Match(n.Labels, c)
		isCause := r != nil && r.Phase == causes.Quarantined && r.HasCause(c.Type)
		if !ok && isCause {
			rule, ok = a.RuleOf(&causes.Cause{Condition: c.Type})
		}
		isAfterBoot := !c.LastHeartbeatTime.Time.Before(a.BootSeen.Truncate(time.Second))
		if !ok || rule.AlertOnly || c.Type == corev1.NodeReady || isAfterBoot || a.IsCurrent(c, rule) {
			continue
		}
		return fmt.Sprintf("waiting for a heartbeat of %s: the last one, at %s, is from before the node came back at %s",
			c.Type, c.LastHeartbeatTime.UTC().Format(time.RFC3339), a.BootSeen.UTC().Format(time.RFC3339))
	}
	return ""
}
