package quarantine

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
	"unicode"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// conditionByHand is the condition type of the cause of a manual quarantine, and the value of its taint.
const conditionByHand = "ByHand"

// Manual is who quarantines or releases a node manually, and why.
type Manual struct {
	// User is the user's name as the API server knows it; empty: unknown.
	User string
	// Reason is what the user gives as one; empty: none.
	Reason string
}

// Clean returns it without control characters, and with texts of a bounded length.
func (m Manual) Clean() Manual {
	return Manual{User: cleaned(m.User, maxUser), Reason: cleaned(m.Reason, conditions.MaxMessage)}
}

func cleaned(text string, maxBytes int) string {
	return strings.TrimSpace(causes.Clip(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, text), maxBytes))
}

// Note is the text of the Event about it; what is what has become of the node.
func (m Manual) Note(what string) string {
	m = m.Clean()
	return causes.Clip(fmt.Sprintf("%s by %s: %s", what, cmp.Or(m.User, UnknownUser), cmp.Or(m.Reason, NoReason)), causes.MaxText/2)
}

const (
	// UnknownUser stands for a user that the API server does not name.
	UnknownUser = "unknown user"
	// NoReason stands for a reason that was not given.
	NoReason = "no reason given"
	// maxUser is the most bytes of a user's name in a record.
	maxUser = 256
)

// QuarantineManually returns a copy of the node with a quarantine that only a person ends; its jobs are left alone, unless the node
// also has a fault whose rule restarts them. It is an error when the node is quarantined manually already, or has a record that does not
// parse.
func QuarantineManually(n *corev1.Node, by Manual, now time.Time) (*corev1.Node, error) {
	by = by.Clean()
	d, err := newManualDecider(n, now)
	if err != nil {
		return nil, err
	}
	if d.record == nil || d.record.Phase == causes.Released {
		d.record = causes.OpenNext(d.record, n, d.conditions.BootSeen, now)
		if len(d.record.Last) > 0 {
			d.record.Last[0].ManualReleaseActive = false // the later word counts
		}
	}
	if d.record.HasCause(conditionByHand) {
		return nil, fmt.Errorf("node %s is quarantined manually already", n.Name)
	}
	d.record.Causes = append(d.record.Causes, causes.Cause{
		Condition: conditionByHand, Rule: policy.ByHand, Repair: conditions.Inspect, Message: cmp.Or(by.Reason, NoReason),
		User: by.User, FirstSeen: now, Due: true, BootID: n.Status.NodeInfo.BootID,
	})
	if d.record.Phase != causes.Quarantined || d.record.IsIsolated() {
		if d.record.Phase != causes.Quarantined {
			d.record.Phase, d.record.QuarantinedAt = causes.Quarantined, now
		}
		d.setTaint(causes.Problem{Class: conditions.Inspect, Rule: policy.Rule{
			Name:    policy.ByHand,
			Taint:   corev1.Taint{Key: conditions.TaintUnhealthy, Value: conditionByHand, Effect: corev1.TaintEffectNoSchedule},
			HandOff: policy.HandOff{Annotations: policy.KeepNode},
		}})
	}
	return decidedNode(d), nil
}

// ReleaseManually returns a copy of the node without its quarantine, and without what that has put there as far as it is known; nil: all
// that the record names. Its causes quarantine it again only after they have cleared. It is an error when the node is not quarantined, or
// has a record that does not parse.
func ReleaseManually(n *corev1.Node, by Manual, known *handoff.Known, now time.Time) (*corev1.Node, error) {
	d, err := newManualDecider(n, now)
	if err != nil {
		return nil, err
	}
	if known != nil {
		d.known = *known
	}
	if d.record == nil && node.HasTaint(d.changes.Taints, conditions.TaintUnhealthy) {
		d.removeUnexplained() // as the next decision does, but also during a pause
		return decidedNode(d), nil
	}
	if d.record == nil || d.record.Phase != causes.Quarantined {
		return nil, fmt.Errorf("node %s is not quarantined", n.Name)
	}
	d.releaseManually(by)
	return decidedNode(d), nil
}

// Strip returns a copy of the node without anything of ours but the labels that people set, and the taint of whoever
// maintains it.
func Strip(n *corev1.Node) *corev1.Node {
	s := State{Changes: handoff.Of(n)}
	if record, err := causes.RecordOf(n); err == nil && record != nil && record.Phase == causes.Quarantined {
		record.RemoveFrom(&s.Changes, handoff.AnyKnown())
	}
	s.Changes.RemoveStrayCordon(handoff.AnyKnown())
	s.Changes.RemoveAWS()
	s.Changes.Taints = slices.DeleteFunc(s.Changes.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, conditions.Domain+"/") && t.Key != conditions.TaintMaintenance
	})
	stripped := n.DeepCopy()
	s.Apply(stripped)
	delete(stripped.Annotations, conditions.AnnotationRequest)
	return stripped
}

// Left names what the record of a quarantined node claims to have added and [ReleaseManually] and [Strip] leave on the node:
// labels and taints in the domains of Kubernetes. It is empty when the node is quarantined afterwards, too.
func Left(before, after *corev1.Node) []string {
	record, err := causes.RecordOf(before)
	if err != nil || record == nil || record.Phase != causes.Quarantined {
		return nil
	}
	if still, err := causes.RecordOf(after); err != nil || still != nil && still.Phase == causes.Quarantined {
		return nil
	}
	changes := handoff.Of(after)
	return record.RemoveFrom(&changes, handoff.AnyKnown())
}

func newManualDecider(n *corev1.Node, now time.Time) (*decider, error) {
	if n.DeletionTimestamp != nil {
		return nil, errors.New("the node is being deleted")
	}
	record, err := causes.RecordOf(n)
	if err != nil {
		return nil, err
	}
	known := handoff.AnyKnown()
	return newDecider(&policy.Policy{}, Observation{Node: n, Record: record, Known: &known}, now), nil
}

// decidedNode is a copy of the node as it is to become.
func decidedNode(d *decider) *corev1.Node {
	after := d.observed.Node.DeepCopy()
	(&State{Record: d.record, Changes: d.changes, maintained: d.conditions.Maintained}).Apply(after)
	return after
}
