package repair

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// What a later version has begun ends after a downgrade, whatever its kind and phase: without a Job and without a taint, after which this
// version goes on.
func TestAVisitOfALaterVersionEnds(t *testing.T) {
	for _, kind := range []Kind{Repair, Validation, Sweep, FirstCheck, "firmware"} {
		for _, phase := range []Phase{Emptying, Working, Ending, Proving, "Cooling"} {
			for _, then := range []Phase{"", Failed, "Reported"} {
				if kind.IsKnown() && phase.IsKnown() && then != "Reported" || (phase == Ending) != (then != "") {
					continue
				}
				t.Run(fmt.Sprint(kind, " ", phase, " ", then), func(t *testing.T) {
					w := newWorld(t, parse(t), "a")
					m := w.nodes["a"]
					v := &Visit{
						ID: "later", Kind: kind, Phase: phase, Then: then, Attempt: 1, Template: "check", BootID: "a-boot-0",
						StartedAt: w.now, PhaseSince: w.now,
					}
					if phase != Ending {
						v.Deadline = w.now.Add(time.Hour)
					}
					r := &Record{V: 1, NodeUID: m.UID, Current: v, Request: &Request{Kind: "dance", At: w.now}, Last: []Visit{{ID: "l", Kind: "firmware", Phase: "Cooled"}}}
					text := strings.Replace(r.String(), `{"v":1,`, `{"v":1,"fan":{"speed":3},`, 1)
					m.Annotations = map[string]string{conditions.AnnotationRepair: text}
					m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, string(kind)))
					if name := r.JobName(m.Node); name != "" {
						job := newJob(w.templates["check"], m.Node, v, conditions.RepairNamespace)
						w.create(m, job)
					}
					w.until("it ends", 5*time.Minute, func() bool { return m.record().Current == nil })
					w.step(time.Minute)
					if m.phase() != "" || len(m.jobs) > 0 || len(m.Spec.Taints) > 0 || m.record().Request != nil {
						t.Errorf("phase %s, Jobs %v, taints %v, record %s", m.phase(), m.jobs, m.Spec.Taints, m.record())
					}
					if last := m.record().Last[0]; last.ID != "later" || then != Failed && last.Phase != Yielded || then == "" && !strings.Contains(last.Outcome, "later version") {
						t.Errorf("%+v", last)
					}
					w.fault(m, "GPUXidError", ecc)
					m.run = w.cures(m)
					w.until("this version repairs the node", 4*time.Hour, func() bool {
						return slices.ContainsFunc(m.record().Last, func(v Visit) bool { return v.Kind == Repair && v.Phase == Passed })
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
		if OrphanOf(m.Node, nil) != nil {
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
