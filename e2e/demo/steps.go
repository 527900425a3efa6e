package main

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/e2e/timeline"
)

func suspended(want bool) *timeline.Step {
	expected := "JobSet is suspended"
	if !want {
		expected = "JobSet is resumed"
	}
	return &timeline.Step{Expected: expected, Seen: func(s *timeline.Scene) (string, bool) {
		for _, jobSet := range s.Other {
			got, _, err := unstructured.NestedBool(jobSet.Object, "spec", "suspend")
			return fmt.Sprintf("spec.suspend=%v", got), err == nil && got == want
		}
		return "no JobSet", false
	}}
}

// gone waits until the pods with these UIDs are gone.
func gone(old []types.UID) *timeline.Step {
	return &timeline.Step{Expected: "the old pods are gone", Seen: func(s *timeline.Scene) (string, bool) {
		left := 0
		for _, uid := range old {
			if s.Pods[uid] != nil {
				left++
			}
		}
		return fmt.Sprintf("%d of %d left", left, len(old)), left == 0
	}}
}

// ranksRun waits until every rank runs in a pod that is not old, with or without one on this machine.
func ranksRun(expected string, old []types.UID, onMachine bool) *timeline.Step {
	return &timeline.Step{Expected: expected, Seen: func(s *timeline.Scene) (string, bool) {
		var nodes []string
		for uid, pod := range s.Pods {
			if pod.Status.Phase == corev1.PodRunning && pod.DeletionTimestamp == nil && !slices.Contains(old, uid) {
				nodes = append(nodes, pod.Spec.NodeName)
			}
		}
		slices.Sort(nodes)
		return fmt.Sprintf("%d of %d on %s", len(nodes), ranks, strings.Join(nodes, ", ")),
			len(nodes) == ranks && len(slices.Compact(nodes)) == ranks && slices.Contains(nodes, machine) == onMachine
	}}
}
