package repair

import (
	"fmt"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// switches are what a person or a reload of the policy may change while a repair is on its way.
var switches = map[string]struct{ from, to string }{
	"mode of the policy: observe": {"mode: enforce", "mode: observe"},
	"mode of the rule: observe":   {"xid:\n", "xid:\n      mode: observe\n"},
	"repair.mode: approve":        {"mode: auto", "mode: approve"},
	"repair.mode: off":            {"mode: auto", `mode: "off"`},
	"no rule":                     {"    xid:\n      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}\n      validate: true\n", ""},
	"paused":                      {},
	"breaker open":                {},
}

// moments take a node with a fault of class ResetGPU to a moment of its repair. resume lets it go on.
var moments = map[string]func(w *world, m *machine) (resume func()){
	"before the visit": func(w *world, m *machine) func() {
		w.set(m, string(corev1.NodeReady), corev1.ConditionFalse, "")
		w.until("quarantined", time.Hour, m.isQuarantined)
		return func() { w.set(m, string(corev1.NodeReady), corev1.ConditionTrue, "") }
	},
	"while the node becomes empty": func(w *world, m *machine) func() {
		m.pods = append(m.pods, gpuPod("train", "Job"))
		w.untilPhase(m, visit.Emptying)
		return func() { m.pods = nil }
	},
	"before the Job of the attempt": func(w *world, m *machine) func() {
		m.stalled = true
		w.untilPhase(m, visit.Working)
		return func() { m.stalled = false }
	},
	"after an action that has failed": func(w *world, m *machine) func() {
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": func(job *batchv1.Job) {
			m.pods = append(m.pods, gpuPod("train", "Job"))
			w.end(m, job, 1, `{"result":"failed","message":"busy"}`)
		}})
		w.until("the reset has failed", time.Hour, func() bool { return m.done() == "reset-gpu" && m.phase() == visit.Emptying })
		return func() { m.pods = nil }
	},
}

// The table of docs/security-switches.md.
func TestEachActionAsksThePresentPolicy(t *testing.T) {
	for name, change := range switches {
		for when, begin := range moments {
			t.Run(name+" "+when, func(t *testing.T) {
				w, m := sick(t, ecc)
				before := w.policy
				m.run = w.cures(m)
				resume := begin(w, m)
				jobs := len(w.created)
				switch name {
				case "paused":
					w.paused = "a person"
				case "breaker open":
					w.breaker = true
				default:
					w.policy = parse(t, change.from, change.to)
				}
				resume()
				w.never("an action begins", 3*time.Hour, func() bool { return len(w.created) > jobs || w.evicted > 0 })
				w.policy, w.paused, w.breaker = before, "", false
				w.until("an action begins again", 3*time.Hour, func() bool { return len(w.created) > jobs })
			})
		}
	}
}

func TestAnApprovalIsOfANamedPersonAndForOneQuarantine(t *testing.T) {
	w, m := sick(t, ecc, "mode: auto", "mode: approve")
	m.run = func(job *batchv1.Job) { w.end(m, job, 1, `{"result":"failed","message":"busy"}`) }
	w.until("it waits for a person", time.Hour, func() bool { return m.waiting != nil && m.waiting.Reason == waitsForApproval })
	r := m.record().Clone(m.Node)
	r.V, r.NodeUID = 1, m.UID
	r.Request = &visit.Request{Kind: visit.RequestRepair, Quarantine: m.quarantine().ID, At: w.now, Reason: "approved before"}
	r.Put(m.Node)
	w.never("a request of nobody begins a repair", time.Hour, func() bool { return len(w.created) > 0 })
	if !w.happened("RepairRefused: not repaired: the request names no person") {
		t.Errorf("events:\n%s", strings.Join(w.events, "\n"))
	}
	w.ask(m, visit.RequestRepair)
	w.untilClosed(m, visit.Repair, visit.Failed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done: %s", m.done())
	}
	if v := m.last(); v.ApprovedBy != "eve" {
		t.Errorf("approved by %q", v.ApprovedBy)
	}
}

// Another repairer takes the node in the middle: what eve has approved goes on afterwards, in her name.
func TestAnApprovalOutlivesTheRepairOfOthers(t *testing.T) {
	w, m := sick(t, ecc, "mode: auto", "mode: approve")
	m.run = w.cures(m)
	m.pods = append(m.pods, gpuPod("train", "Job"))
	w.until("it waits for a person", time.Hour, func() bool { return m.waiting != nil && m.waiting.Reason == waitsForApproval })
	w.ask(m, visit.RequestRepair)
	w.untilPhase(m, visit.Emptying)
	m.Spec.Taints = append(m.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule})
	w.until("it yields", time.Hour, func() bool { return m.record().Current == nil })
	if r := m.record().Request; r == nil || r.User != "eve" {
		t.Fatalf("request %v", fmt.Sprint(r))
	}
	m.Spec.Taints, m.pods = m.Spec.Taints[:len(m.Spec.Taints)-1], nil
	w.untilClosed(m, visit.Repair, visit.Passed)
}
