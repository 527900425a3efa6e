package repair

import (
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestWhatOthersMaintainIsRepairedAfterwards(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	w.engine(m)
	m.Labels[node.LabelScheduledMaintenance] = strconv.FormatInt(w.now.Add(time.Hour).Unix(), 10)
	w.never("a visit", 2*time.Hour, func() bool { return m.record0() != nil && m.record0().Current != nil })
	if m.waiting == nil || m.waiting.Reason != "held" || !strings.Contains(m.waiting.Message, node.LabelScheduledMaintenance) {
		t.Errorf("waits %+v", m.waiting)
	}
	w.untilClosed(m, visit.Repair, visit.Passed)
}

func TestWhatOthersMaintainIsNotSweptNorFirstChecked(t *testing.T) {
	for _, of := range []corev1.NodeConditionType{corev1.NodeMaintenancePlanned, corev1.NodeMaintenanceInProgress, "VMEventScheduled"} {
		t.Run(string(of), func(t *testing.T) {
			claim := func(p *play) {
				p.facts.Node.Status.Conditions = append(p.facts.Node.Status.Conditions,
					corev1.NodeCondition{Type: of, Status: corev1.ConditionTrue, LastTransitionTime: metav1.NewTime(p.now)})
			}
			swept := newPlay(t, "conditions: [all]")
			swept.live.Templates = map[string]*corev1.PodTemplate{"check": checkTemplate}
			swept.facts.Selected = &Selection{Sweep: "weekly", At: swept.now}
			claim(swept)
			swept.step()
			if text := swept.facts.Node.Annotations[conditions.AnnotationRepair]; text != "" || swept.facts.Job != nil {
				t.Errorf("swept: %s", text)
			}
			first := registered(t, "conditions: [GPUXidError]")
			claim(first)
			if s := first.step(); s.untaint != "" || s.Waits == nil || !strings.Contains(s.Waits.Message, string(of)) {
				t.Errorf("checked: %+v", s.Waits)
			}
		})
	}
}
