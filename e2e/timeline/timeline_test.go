package timeline

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
	"k8s.io/apimachinery/pkg/watch"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const machine = "gpu-node"

func TestTheTimelineHasTheTimesOfTheNews(t *testing.T) {
	begun := time.Now()
	s := empty()
	s.news = make(chan news, 3)
	s.news <- nodeAt(begun.Add(5*time.Millisecond), corev1.ConditionFalse)
	s.news <- nodeAt(begun.Add(700*time.Millisecond), corev1.ConditionTrue)
	s.news <- nodeAt(begun.Add(720*time.Millisecond), corev1.ConditionTrue, corev1.Taint{
		Key: conditions.TaintUnhealthy, Value: conditions.GPUXidError, Effect: corev1.TaintEffectNoSchedule,
	})
	var out bytes.Buffer
	condition, taint := ConditionIs(machine, conditions.GPUXidError, corev1.ConditionTrue, "Reboot"), Tainted(machine)
	if err := s.Follow(t.Context(), &out, begun, []*Step{condition, taint}); err != nil {
		t.Fatal(err)
	}
	const want = `   +700 ms  NodeCondition GPUXidError is True: True, GPUXidSeen: Reboot gpu 1: Xid 79
   +720 ms  node is tainted: pitcrew.dev/unhealthy=GPUXidError:NoSchedule
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if condition.After != 700*time.Millisecond || taint.After != 720*time.Millisecond {
		t.Errorf("after %s and %s", condition.After, taint.After)
	}
}

func TestWhatHappenedBeforeTheBeginningTakesNoTime(t *testing.T) {
	begun := time.Now()
	s := empty()
	s.news = make(chan news, 1)
	s.news <- nodeAt(begun.Add(-5*time.Millisecond), corev1.ConditionTrue)
	condition := ConditionIs(machine, conditions.GPUXidError, corev1.ConditionTrue, "")
	if err := s.Follow(t.Context(), &bytes.Buffer{}, begun, []*Step{condition}); err != nil {
		t.Fatal(err)
	}
	if condition.After != 0 {
		t.Errorf("after %s", condition.After)
	}
}

func TestAStepThatDoesNotHappenIsReportedWithWhatIsSeen(t *testing.T) {
	s := empty()
	s.apply(nodeAt(time.Now(), corev1.ConditionTrue).event)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("kwok ended"))
	err := s.Follow(ctx, &bytes.Buffer{}, time.Now(), []*Step{
		ConditionIs(machine, conditions.GPUXidError, corev1.ConditionFalse, ""), Tainted(machine),
	}, []*Step{EventIs("Node", machine, "NodeReleased", "")})
	const want = `kwok ended
  expected: NodeCondition GPUXidError is False
  seen:     True, GPUXidSeen: Reboot gpu 1: Xid 79
  expected: Event NodeReleased
  seen:     none`
	if err == nil || err.Error() != want {
		t.Errorf("got %v\nwant %s", err, want)
	}
}

func TestAWatchThatEndsEndsTheDemo(t *testing.T) {
	s := empty()
	watcher := watch.NewFake()
	watcher.Stop()
	go s.forward(t.Context(), watcher, "nodes")
	err := s.Follow(t.Context(), &bytes.Buffer{}, time.Now(), []*Step{Tainted(machine)})
	if err == nil || !strings.Contains(err.Error(), "the watch of nodes has ended") {
		t.Errorf("got %v", err)
	}
}

func nodeAt(at time.Time, status corev1.ConditionStatus, taints ...corev1.Taint) news {
	return news{at: at, event: watch.Event{Type: watch.Modified, Object: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: machine},
		Spec:       corev1.NodeSpec{Taints: taints},
		Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: conditions.GPUXidError, Status: status, Reason: "GPUXidSeen", Message: "Reboot gpu 1: Xid 79"},
		}},
	}}}
}
