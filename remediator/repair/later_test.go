package repair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/job"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// What a later version has begun ends after a downgrade, whatever its kind and phase: without a Job and without a taint, after which this
// version goes on.
func TestAVisitOfALaterVersionEnds(t *testing.T) {
	for _, kind := range []visit.Kind{visit.Repair, visit.Validation, visit.Sweep, visit.FirstCheck, "firmware"} {
		for _, phase := range []visit.Phase{visit.Emptying, visit.Working, visit.Ending, visit.Proving, "Cooling"} {
			for _, then := range []visit.Phase{"", visit.Failed, "Reported"} {
				if kind.IsKnown() && phase.IsKnown() && then != "Reported" || (phase == visit.Ending) != (then != "") {
					continue
				}
				t.Run(fmt.Sprint(kind, " ", phase, " ", then), func(t *testing.T) {
					w := newWorld(t, parse(t), "a")
					m := w.nodes["a"]
					v := &visit.Visit{
						ID: "later", Kind: kind, Phase: phase, Then: then, Attempt: 1, Template: "check", BootID: "a-boot-0",
						StartedAt: w.now, PhaseSince: w.now,
					}
					if phase != visit.Ending {
						v.Deadline = w.now.Add(time.Hour)
					}
					r := &visit.Record{V: 1, NodeUID: m.UID, Current: v, Request: &visit.Request{Kind: "dance", At: w.now}, Last: []visit.Visit{{ID: "l", Kind: "firmware", Phase: "Cooled"}}}
					text := strings.Replace(r.String(), `{"v":1,`, `{"v":1,"fan":{"speed":3},`, 1)
					m.Annotations = map[string]string{conditions.AnnotationRepair: text}
					m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, string(kind)))
					if name := r.JobName(m.Node); name != "" {
						job := job.New(w.templates["check"], m.Node, v, conditions.RepairNamespace)
						w.create(m, job)
					}
					w.until("it ends", 5*time.Minute, func() bool { return m.record().Current == nil })
					w.step(time.Minute)
					if m.phase() != "" || len(m.jobs) > 0 || len(m.Spec.Taints) > 0 || m.record().Request != nil {
						t.Errorf("phase %s, Jobs %v, taints %v, record %s", m.phase(), m.jobs, m.Spec.Taints, m.record())
					}
					if last := m.record().Last[0]; last.ID != "later" || then != visit.Failed && last.Phase != visit.Yielded || then == "" && !strings.Contains(last.Outcome, "later version") {
						t.Errorf("%+v", last)
					}
					w.fault(m, "GPUXidError", ecc)
					m.run = w.cures(m)
					w.until("this version repairs the node", 4*time.Hour, func() bool {
						return slices.ContainsFunc(m.record().Last, func(v visit.Visit) bool { return v.Kind == visit.Repair && v.Phase == visit.Passed })
					})
				})
			}
		}
	}
}

// A maintenance taint of ours outlives no record that cannot be read.
func TestTheTaintOfAnUnreadableRecordGoes(t *testing.T) {
	w := newWorld(t, parse(t), "a")
	m := w.nodes["a"]
	m.Annotations = map[string]string{conditions.AnnotationRepair: "{"}
	f := w.facts(m)
	for value, goes := range map[string]bool{"repair": true, "sweep": true, "firmware": false} {
		m.Spec.Taints = nil
		m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, value))
		f.OrphanSince = time.Time{}
		if visit.OrphanOf(m.Node, nil) != nil {
			f.OrphanSince = w.now
		}
		for after, want := range map[time.Duration]bool{0: false, orphanTimeout: goes} {
			n := m.DeepCopy()
			s := Next(w.policy, f, w.now.Add(after))
			s.Apply(n)
			if gone := len(n.Spec.Taints) == 0; gone != want || n.Annotations[conditions.AnnotationRepair] != "{" || s.Waits == nil {
				t.Errorf("%s after %s: gone %t, %+v", value, after, gone, s)
			}
		}
	}
}
