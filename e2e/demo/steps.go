package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func conditionIs(status corev1.ConditionStatus, message string) *step {
	return &step{
		expected: fmt.Sprintf("NodeCondition %s is %s", conditions.GPUXidError, status),
		seen: func(s *scene) (string, bool) {
			c := s.condition(conditions.GPUXidError)
			return fmt.Sprintf("%q %q", c.Status, c.Message), c.Status == status && strings.HasPrefix(c.Message, message)
		},
	}
}

func taintIs(there bool) *step {
	expected := "node is tainted"
	if !there {
		expected = "node is released"
	}
	return &step{expected: expected, seen: func(s *scene) (string, bool) {
		taint, found := s.taint(conditions.TaintUnhealthy)
		if found == there && !there {
			return "no taint " + conditions.TaintUnhealthy, true
		}
		if found == there {
			return taint.ToString(), true
		}
		c := s.condition(conditions.GPUXidError)
		return fmt.Sprintf("taints %v, %s is %s %q", s.node.Spec.Taints, c.Type, c.Status, c.Message), false
	}}
}

func suspended(want bool) *step {
	expected := "JobSet is suspended"
	if !want {
		expected = "JobSet is resumed"
	}
	return &step{expected: expected, seen: func(s *scene) (string, bool) {
		got, _, err := unstructured.NestedBool(s.jobSet.Object, "spec", "suspend")
		return fmt.Sprintf("spec.suspend=%v", got), err == nil && got == want
	}}
}

// gone waits until the pods with these UIDs are gone.
func gone(old []types.UID) *step {
	return &step{expected: "the old pods are gone", seen: func(s *scene) (string, bool) {
		left := 0
		for _, uid := range old {
			if s.pods[uid] != nil {
				left++
			}
		}
		return fmt.Sprintf("%d of %d left", left, len(old)), left == 0
	}}
}

// ranksRun waits until every rank runs in a pod that is not old, with or without one on this machine.
func ranksRun(expected string, old []types.UID, onMachine bool) *step {
	return &step{expected: expected, seen: func(s *scene) (string, bool) {
		var nodes []string
		for uid, pod := range s.pods {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && !slices.Contains(old, uid) {
				nodes = append(nodes, pod.Spec.NodeName)
			}
		}
		slices.Sort(nodes)
		return fmt.Sprintf("%d of %d on %s", len(nodes), ranks, strings.Join(nodes, ", ")),
			len(nodes) == ranks && len(slices.Compact(nodes)) == ranks && slices.Contains(nodes, machine) == onMachine
	}}
}

func eventIs(kind, name, reason string) *step {
	return &step{expected: "Event " + reason, seen: func(s *scene) (string, bool) {
		for _, e := range s.events {
			if e.InvolvedObject.Kind == kind && e.InvolvedObject.Name == name && e.Reason == reason {
				return e.Message, true
			}
		}
		return "none", false
	}}
}
