package main

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/e2e/timeline"
)

func TestOnlyNewPodsOnOtherNodesCountAsARestart(t *testing.T) {
	pod := func(name, node string, phase corev1.PodPhase) *corev1.Pod {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{UID: types.UID(name)},
			Spec:       corev1.PodSpec{NodeName: node},
			Status:     corev1.PodStatus{Phase: phase},
		}
	}
	tests := []struct {
		name string
		last *corev1.Pod
		want bool
	}{
		{"the fourth rank runs on the spare node", pod("new-4", "spare-0", corev1.PodRunning), true},
		{"the fourth rank is still pending", pod("new-4", "spare-0", corev1.PodPending), false},
		{"the fourth rank runs where the fault is", pod("new-4", machine, corev1.PodRunning), false},
		{"the fourth rank is the old one", pod("old-4", "spare-0", corev1.PodRunning), false},
		{"the fourth rank shares a node", pod("new-4", "kwok-0", corev1.PodRunning), false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &timeline.Scene{Pods: map[types.UID]*corev1.Pod{}}
			for _, p := range []*corev1.Pod{
				pod("new-1", "kwok-0", corev1.PodRunning), pod("new-2", "kwok-1", corev1.PodRunning),
				pod("new-3", "kwok-2", corev1.PodRunning), tt.last,
			} {
				s.Pods[p.UID] = p
			}
			description, got := ranksRun("", []types.UID{"old-4"}, false).Seen(s)
			if got != tt.want {
				t.Errorf("%v: %s", got, description)
			}
		})
	}
}
