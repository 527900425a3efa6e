package timeline

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// ConditionIs expects a node's condition to have a status and a message or reason that contains text.
func ConditionIs(node string, kind corev1.NodeConditionType, status corev1.ConditionStatus, text string) *Step {
	return &Step{
		Expected: fmt.Sprintf("NodeCondition %s is %s", kind, status),
		Seen: func(s *Scene) (string, bool) {
			c := s.condition(node, kind)
			return fmt.Sprintf("%s, %s: %s", c.Status, c.Reason, c.Message),
				c.Status == status && (strings.Contains(c.Message, text) || strings.Contains(c.Reason, text))
		},
	}
}

// Tainted expects a node to have our taint.
func Tainted(node string) *Step {
	return &Step{Expected: "node is tainted", Seen: func(s *Scene) (string, bool) {
		taint := s.taint(node)
		if taint == nil {
			return s.standing(node), false
		}
		return taint.ToString(), true
	}}
}

// Released expects a node to be without our taint.
func Released(node string) *Step {
	return &Step{Expected: "node is released", Seen: func(s *Scene) (string, bool) {
		if s.taint(node) != nil {
			return s.standing(node), false
		}
		return "no taint " + conditions.TaintUnhealthy, s.Nodes[node] != nil
	}}
}

// EventIs expects an Event about an object with a reason and a message that contains text.
func EventIs(kind, name, reason, text string) *Step {
	return &Step{Expected: "Event " + reason, Seen: func(s *Scene) (string, bool) {
		for _, e := range s.Events {
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason && strings.Contains(e.Message, text) {
				return e.Message, true
			}
		}
		return "none", false
	}}
}

// condition returns a zero condition when there is none.
func (s *Scene) condition(node string, kind corev1.NodeConditionType) corev1.NodeCondition {
	if n := s.Nodes[node]; n != nil {
		for _, c := range n.Status.Conditions {
			if c.Type == kind {
				return c
			}
		}
	}
	return corev1.NodeCondition{}
}

func (s *Scene) taint(node string) *corev1.Taint {
	if n := s.Nodes[node]; n != nil {
		for i := range n.Spec.Taints {
			if n.Spec.Taints[i].Key == conditions.TaintUnhealthy {
				return &n.Spec.Taints[i]
			}
		}
	}
	return nil
}

// standing describes the taint and the known conditions of a node.
func (s *Scene) standing(node string) string {
	taint := "no taint " + conditions.TaintUnhealthy
	if t := s.taint(node); t != nil {
		taint = t.ToString()
	}
	for _, known := range conditions.All {
		c := s.condition(node, corev1.NodeConditionType(known.Type))
		taint += fmt.Sprintf("; %s %s: %s", known.Type, c.Status, c.Message)
	}
	return taint
}
