package node

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// conditionByHand stands for the condition of a quarantine that a person ordered.
const conditionByHand = "ByHand"

// OrderQuarantine is the node with a person's quarantine on it, which only a person ends; its jobs are left alone. It is an
// error when the node already has one, or a record that does not parse.
func OrderQuarantine(n *corev1.Node, reason string, now time.Time) (*corev1.Node, error) {
	d, err := byHand(n, now)
	if err != nil {
		return nil, err
	}
	if d.record == nil || d.record.Phase == Released {
		d.begin()
	}
	if d.record.blames(conditionByHand) {
		return nil, fmt.Errorf("node %s is quarantined by hand already", n.Name)
	}
	d.record.Causes = append(d.record.Causes, Cause{
		Condition: conditionByHand, Rule: policy.ByHand, Repair: conditions.Inspect, Message: clip(reason),
		FirstSeen: now, Due: true, BootID: n.Status.NodeInfo.BootID,
	})
	if d.record.Phase != Quarantined {
		d.record.Phase, d.record.QuarantinedAt = Quarantined, now
		d.taint(problem{class: conditions.Inspect, rule: policy.Rule{
			Name:    policy.ByHand,
			Taint:   corev1.Taint{Key: conditions.TaintUnhealthy, Value: conditionByHand, Effect: corev1.TaintEffectNoSchedule},
			HandOff: policy.HandOff{Annotations: policy.KeepNode},
		}})
	}
	return d.applied(), nil
}

// OrderRelease is the node without its quarantine. Its causes quarantine it again only after they have cleared. It is an
// error when the node is not quarantined.
func OrderRelease(n *corev1.Node, now time.Time) (*corev1.Node, error) {
	d, err := byHand(n, now)
	if err != nil {
		return nil, err
	}
	if d.record == nil && hasTaintKey(d.marks.Taints, conditions.TaintUnhealthy) {
		// Somebody removed the record from under the taint, which nobody else would take away.
		d.marks.Taints = slices.DeleteFunc(d.marks.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy })
		return d.applied(), nil
	}
	if d.record == nil || d.record.Phase != Quarantined {
		return nil, fmt.Errorf("node %s is not quarantined", n.Name)
	}
	d.release(ByPerson)
	d.record.Holds = slices.ContainsFunc(d.record.Causes, func(c Cause) bool { return c.Rule != policy.ByHand })
	return d.applied(), nil
}

// Strip is the node without anything of ours but the labels that people set, and the taint of whoever maintains it.
func Strip(n *corev1.Node) *corev1.Node {
	s := State{Marks: marksOf(n)}
	if record, err := RecordOf(n); err == nil && record != nil && record.Phase == Quarantined {
		s.Marks.strip(&record.Quarantine)
	}
	s.Marks.unmarkAWS()
	s.Marks.Taints = slices.DeleteFunc(s.Marks.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, conditions.Domain+"/") && t.Key != conditions.TaintMaintenance
	})
	stripped := n.DeepCopy()
	s.apply(stripped)
	return stripped
}

func byHand(n *corev1.Node, now time.Time) (*decider, error) {
	if n.DeletionTimestamp != nil {
		return nil, errors.New("the node is being deleted")
	}
	record, err := RecordOf(n)
	if err != nil {
		return nil, err
	}
	return newDecider(&policy.Policy{}, Observation{Node: n, Record: record}, now), nil
}

func (d *decider) applied() *corev1.Node {
	after := d.Node.DeepCopy()
	(&State{Record: d.record, Marks: d.marks}).apply(after)
	return after
}
