package repair

import (
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestAMaintenanceTaintThatNoVisitExplainsIsRemoved(t *testing.T) {
	tests := map[string]struct {
		change  func(w *world, m *machine)
		removed bool
	}{
		"the record was removed":    {func(_ *world, m *machine) { delete(m.Annotations, conditions.AnnotationRepair) }, true},
		"the record is there":       {func(*world, *machine) {}, false},
		"the record cannot be read": {func(_ *world, m *machine) { m.Annotations[conditions.AnnotationRepair] = "{" }, true},
		"paused":                    {func(w *world, m *machine) { delete(m.Annotations, conditions.AnnotationRepair); w.paused = "audit" }, false},
		"left alone": {func(_ *world, m *machine) {
			delete(m.Annotations, conditions.AnnotationRepair)
			m.Labels[conditions.LabelSkip] = "true"
		}, false},
		"another repairer": {func(_ *world, m *machine) {
			delete(m.Annotations, conditions.AnnotationRepair)
			m.Spec.Taints = []corev1.Taint{taint(conditions.TaintMaintenance, "firmware")}
		}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			m.run = func(*batchv1.Job) {}
			w.untilPhase(m, visit.Working)
			tt.change(w, m)
			f := w.facts(m)
			since := w.now
			f.OrphanSince = since
			s := Next(w.policy, f, since.Add(orphanTimeout-time.Second))
			n := m.DeepCopy()
			if s.Apply(n); len(n.Spec.Taints) != len(m.Spec.Taints) || tt.removed && s.After > time.Second {
				t.Errorf("too early: taints %v, again after %s", n.Spec.Taints, s.After)
			}
			f.Live = w.live(m, f)
			s = Next(w.policy, f, since.Add(orphanTimeout))
			if s.NeedsLive {
				t.Fatal("the step needs live facts")
			}
			s.Apply(n)
			if removed := len(n.Spec.Taints) < len(m.Spec.Taints); removed != tt.removed || removed != (len(s.Events) == 1) {
				t.Errorf("taints %v, events %v", n.Spec.Taints, s.Events)
			}
			f.OrphanSince = time.Time{}
			if s = Next(w.policy, f, since.Add(day)); s.orphan != nil {
				t.Error("removed before it was seen")
			}
		})
	}
}
