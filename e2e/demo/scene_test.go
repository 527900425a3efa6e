package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestTheTimelineHasTheTimesOfTheNews(t *testing.T) {
	begun := time.Now()
	s := &stage{scene: scene{pods: map[types.UID]*corev1.Pod{}}, news: make(chan news, 3)}
	s.news <- nodeAt(begun.Add(5*time.Millisecond), corev1.ConditionFalse)
	s.news <- nodeAt(begun.Add(700*time.Millisecond), corev1.ConditionTrue)
	s.news <- nodeAt(begun.Add(720*time.Millisecond), corev1.ConditionTrue, corev1.Taint{
		Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule,
	})
	var out bytes.Buffer
	condition, taint := conditionIs(corev1.ConditionTrue, "Reboot"), taintIs(true)
	if err := s.follow(t.Context(), &out, begun, []*step{condition, taint}); err != nil {
		t.Fatal(err)
	}
	const want = `   +700 ms  NodeCondition GPUXidError is True: "True" "Reboot gpu 1: Xid 79"
   +720 ms  node is tainted: pitcrew.dev/unhealthy=GPUXidError:NoSchedule
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if condition.after != 700*time.Millisecond || taint.after != 720*time.Millisecond {
		t.Errorf("after %s and %s", condition.after, taint.after)
	}
}

func TestAStepThatDoesNotHappenIsReportedWithWhatIsSeen(t *testing.T) {
	s := &stage{scene: scene{pods: map[types.UID]*corev1.Pod{}}, news: make(chan news)}
	s.apply(nodeAt(time.Now(), corev1.ConditionTrue).event)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("kwok ended"))
	err := s.follow(ctx, &bytes.Buffer{}, time.Now(), []*step{
		conditionIs(corev1.ConditionFalse, ""), taintIs(true),
	}, []*step{eventIs("Node", machine, "NodeReleased")})
	const want = `kwok ended
  expected: NodeCondition GPUXidError is False
  seen:     "True" "Reboot gpu 1: Xid 79"
  expected: Event NodeReleased
  seen:     none`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestAWatchThatEndsEndsTheDemo(t *testing.T) {
	s := &stage{news: make(chan news)}
	watcher := watch.NewFake()
	watcher.Stop()
	go s.forward(t.Context(), watcher, "nodes")
	err := s.follow(t.Context(), &bytes.Buffer{}, time.Now(), []*step{taintIs(true)})
	if err == nil || !strings.Contains(err.Error(), "the watch of nodes has ended") {
		t.Errorf("got %v", err)
	}
}

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
			s := &scene{pods: map[types.UID]*corev1.Pod{}}
			for _, p := range []*corev1.Pod{
				pod("new-1", "kwok-0", corev1.PodRunning), pod("new-2", "kwok-1", corev1.PodRunning),
				pod("new-3", "kwok-2", corev1.PodRunning), tt.last,
			} {
				s.pods[p.UID] = p
			}
			description, got := ranksRun("", []types.UID{"old-4"}, false).seen(s)
			if got != tt.want {
				t.Errorf("%v: %s", got, description)
			}
		})
	}
}

func nodeAt(at time.Time, status corev1.ConditionStatus, taints ...corev1.Taint) news {
	return news{at: at, event: watch.Event{Type: watch.Modified, Object: &corev1.Node{
		Spec: corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: conditions.GPUXidError, Status: status, Message: "Reboot gpu 1: Xid 79"},
		}},
	}}}
}
