package repair

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/actions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/proof"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// sick is a world with one node that a fault has quarantined.
func sick(t *testing.T, message string, change ...string) (*world, *machine) {
	t.Helper()
	w := newWorld(t, parse(t, change...), "a")
	m := w.nodes["a"]
	w.step(time.Minute)
	w.fault(m, "GPUXidError", message)
	return w, m
}

func (w *world) untilPhase(m *machine, phase visit.Phase) {
	w.Helper()
	w.until("phase "+string(phase), 3*time.Hour, func() bool { return m.phase() == phase })
}

// untilClosed waits for the end of a visit of a kind.
func (w *world) untilClosed(m *machine, kind visit.Kind, phase visit.Phase) {
	w.Helper()
	w.until(string(kind)+" "+string(phase), 4*time.Hour, func() bool { return m.last().Kind == kind && m.last().Phase == phase && m.record().Current == nil })
}

// never lets time pass and fails if a condition holds.
func (w *world) never(what string, during time.Duration, holds func() bool) {
	w.Helper()
	for end := w.now.Add(during); w.now.Before(end); w.step(30 * time.Second) {
		if holds() {
			w.Fatalf("%s; events:\n%s", what, strings.Join(w.events, "\n"))
		}
	}
}

func (w *world) ask(m *machine, kind string) {
	w.Helper()
	asked, err := visit.Ask(m.Node, kind, m.quarantine().ID, quarantine.Manual{User: "eve", Reason: "because"}, w.now)
	if err != nil {
		w.Fatal(err)
	}
	m.Node = asked
}

// done lists the actions of a node so far.
func (m *machine) done() string {
	var names []string
	for _, a := range m.record().Repairs {
		names = append(names, a.Template)
	}
	return strings.Join(names, " ")
}

// program runs what a map has for the template of a Job.
func (w *world) program(m *machine, programs map[string]func(*batchv1.Job)) {
	cures := w.cures(m)
	m.run = func(job *batchv1.Job) {
		if run, ok := programs[job.Labels[conditions.LabelTemplate]]; ok {
			if run != nil {
				run(job)
			}
			return
		}
		cures(job)
	}
}

func (w *world) exits(m *machine, code int32, message string) func(*batchv1.Job) {
	return func(job *batchv1.Job) { w.end(m, job, code, message) }
}

const done = `{"result":"done","message":"reset 1 GPU"}`

func TestAResetIsProvenValidatedAndTheNodeReturns(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	var jobs []*batchv1.Job
	w.onCreate = func(m *machine, job *batchv1.Job) {
		jobs = append(jobs, job)
		if !slices.ContainsFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance }) {
			t.Errorf("Job %s without the taint", job.Name)
		}
	}
	w.untilClosed(m, visit.Repair, visit.Passed)
	w.untilClosed(m, visit.Validation, visit.Passed)
	w.until("the node is released", time.Hour, func() bool { return !m.isQuarantined() })
	if q := m.quarantine(); q.ReleasedBy != causes.ByPitcrew {
		t.Errorf("released by %q", q.ReleasedBy)
	}
	if r := m.record(); len(r.Repairs) != 1 || !r.Repairs[0].Proven || !r.ValidatedFor(m.quarantine().ID, "a-boot-0") || r.ValidatedFor("other", "a-boot-0") || r.ValidatedFor(m.quarantine().ID, "a-boot-1") {
		t.Errorf("record %s", r)
	}
	if len(jobs) != 2 {
		t.Fatalf("%d Jobs", len(jobs))
	}
	if args := jobs[0].Spec.Template.Spec.Containers[0].Args; !slices.Equal(args, []string{"reset-gpu", "-gpu=0000:1b:00"}) {
		t.Errorf("reset-gpu has args %q", args)
	}
	if args := jobs[1].Spec.Template.Spec.Containers[0].Args; !slices.Equal(args, []string{"check", "-level", "3"}) {
		t.Errorf("check has args %q", args)
	}
	if got := *jobs[0].Spec.ActiveDeadlineSeconds; got != 600 {
		t.Errorf("the reset may run %d s, want 600", got)
	}
	if !w.happened("RepairStarted: reset-gpu for GPUXidError") || !w.happened("RepairSucceeded: reset-gpu has helped") || !w.happened("NodeChecked: validation has passed") {
		t.Errorf("events:\n%s", strings.Join(w.events, "\n"))
	}
}

func TestARebootIsProvenByANewBootAlone(t *testing.T) {
	w, m := sick(t, lost)
	w.program(m, map[string]func(*batchv1.Job){"reboot": w.exits(m, 0, `{"result":"done","message":"ordered","bootID":"a-boot-0"}`)})
	w.untilPhase(m, visit.Working)
	w.never("the end of the Job is taken for a reboot", 5*time.Minute, func() bool { return m.phase() != visit.Working })
	// The condition clears, but the machine has not rebooted.
	w.fault(m, "GPUXidError", "")
	w.never("a healthy condition is taken for a reboot", 5*time.Minute, func() bool { return m.phase() != visit.Working })
	w.set(m, string(corev1.NodeReady), corev1.ConditionUnknown, "")
	w.step(time.Minute)
	m.Status.NodeInfo.BootID = "a-boot-1"
	w.never("a node that is not Ready is taken for rebooted", time.Minute, func() bool { return m.phase() != visit.Working })
	w.reboot(m)
	w.untilClosed(m, visit.Repair, visit.Passed)
}

// others has a rule for a condition that is not ours.
var others = []string{
	"match: {condition: GPUMemoryError, repair: [ResetGPU, Reboot, Replace]}", "match: {condition: GpuXid, repair: [ResetGPU]}\n      validate: true",
}

// resetAll resets all GPUs if none is named.
func resetAll() *corev1.PodTemplate {
	return template("reset-gpu", "reset-gpu", "-gpu=$(GPUS)", "-all")
}

// resets is a reset after which a condition is healthy.
func (w *world) resets(m *machine, condition string) func(*batchv1.Job) {
	return func(job *batchv1.Job) {
		w.fault(m, condition, "")
		w.end(m, job, 0, done)
	}
}

func TestAConditionOfOthersThatIsHealthyForAMomentProvesNothing(t *testing.T) {
	w, m := sick(t, "", others...)
	w.templates["reset-gpu"] = resetAll()
	w.fault(m, "GpuXid", "Xid 95")
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.resets(m, "GpuXid")})
	w.untilPhase(m, visit.Proving)
	w.never("proven", 25*time.Second, func() bool { return m.phase() != visit.Proving })
	w.fault(m, "GpuXid", "Xid 95")
	w.never("proven", 5*time.Minute, func() bool { return m.phase() != visit.Proving })
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done: %s", m.done())
	}
}

// Whoever writes conditions of others may write them as healthy when it starts. Ours are only written by what a plugin has found.
func TestConditionsOfOthersMustStayHealthyForAMinute(t *testing.T) {
	for condition, settles := range map[string]bool{"GPUXidError": false, "GpuXid": true} {
		check := func(t *testing.T, what string, from, to time.Time) {
			t.Helper()
			if took := to.Sub(from); (took >= time.Minute) != settles || took < 0 || took > 2*time.Minute {
				t.Errorf("%s comes %s after %s is healthy", what, took, condition)
			}
		}
		t.Run("the proof, "+condition, func(t *testing.T) {
			w, m := sick(t, "", others...)
			w.templates["reset-gpu"] = resetAll()
			w.fault(m, condition, ecc)
			w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.resets(m, condition)})
			w.untilClosed(m, visit.Repair, visit.Passed)
			check(t, "the proof", m.last().JobEndedAt, m.last().EndedAt)
		})
		t.Run("the validation, "+condition, func(t *testing.T) {
			w, m := sick(t, "", append([]string{"mode: auto", "mode: off"}, others...)...)
			m.run = w.cures(m)
			w.fault(m, condition, ecc)
			w.step(time.Minute)
			w.fault(m, condition, "")
			healthy := w.now
			w.untilClosed(m, visit.Validation, visit.Passed)
			check(t, "the validation", healthy, m.last().StartedAt)
		})
	}
}

func TestAConditionThatSaysNothingGetsThreeTimesAsLong(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": func(job *batchv1.Job) {
		w.end(m, job, 0, done)
		w.set(m, "GPUXidError", corev1.ConditionUnknown, "no answer")
	}})
	w.untilPhase(m, visit.Proving)
	w.never("given up", 29*time.Minute, func() bool { return m.phase() != visit.Proving })
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done: %s", m.done())
	}
}

func TestACauseOfClassRebootIsNotProvenWithoutABoot(t *testing.T) {
	w, m := sick(t, lost, "Reboot: [{template: reboot, timeout: 20m}]", "Reboot: [{template: reset-gpu}]")
	m.run = w.cures(m)
	w.untilClosed(m, visit.Repair, visit.Failed)
}

func TestABootThatTheEngineHasNotSeenAsksForNothing(t *testing.T) {
	w, m := sick(t, ecc)
	w.engine(m)
	m.Status.NodeInfo.BootID = "a-boot-9"
	if w.visit(m); m.record().Current != nil {
		t.Errorf("record %s", m.record())
	}
}

func TestGPUsAreNamedOnlyIfTheMessageNamesAll(t *testing.T) {
	var findings []conditions.Finding
	for i := range 20 {
		findings = append(findings, conditions.Finding{Repair: conditions.ResetGPU, Subject: fmt.Sprintf("gpu 0000:%02x:00", i), Text: "Xid 95 " + strings.Repeat("x", 40)})
	}
	for count, want := range map[int]string{2: "-gpu=0000:00:00,0000:01:00", 20: "-gpu="} {
		w, m := sick(t, conditions.Summarize(findings[:count]).String())
		w.templates["reset-gpu"] = resetAll()
		m.run = w.cures(m)
		var args []string
		w.onCreate = func(_ *machine, job *batchv1.Job) { args = append(args, job.Spec.Template.Spec.Containers[0].Args...) }
		w.untilClosed(m, visit.Repair, visit.Passed)
		if !slices.Contains(args, want) {
			t.Errorf("%d GPUs: args %q", count, args)
		}
	}
}

func TestARepairThatHasFailedIsNoConcernWhileRepairsAreOff(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 1, ""), "reboot": w.exits(m, 1, `{"result":"failed","message":"no"}`)})
	w.untilClosed(m, visit.Repair, visit.Failed)
	if actions.GivenUp(w.policy, m.Node, m.record(), m.quarantine()) == nil {
		t.Errorf("record %s", m.record())
	}
	off := w.without(func(r *policy.Repair) *policy.Repair { r.Mode = policy.RepairOff; return r })
	for name, p := range map[string]*policy.Policy{"mode: off": off, "no repair": w.without(noRepair)} {
		if v := actions.GivenUp(p, m.Node, m.record(), m.quarantine()); v != nil {
			t.Errorf("%s: %+v", name, v)
		}
	}
	r := m.record()
	r.Last[0].Kind = visit.Validation
	if actions.GivenUp(off, m.Node, r, m.quarantine()) == nil {
		t.Error("a validation runs in each mode")
	}
}

func TestAnActionThatNeedsUnknownGPUsIsSkipped(t *testing.T) {
	const unnamed = "ResetGPU driver: 3 GPUs have hung"
	w, m := sick(t, unnamed)
	m.run = w.cures(m)
	begins := w.now
	w.untilPhase(m, visit.Working)
	if v := m.record().Current; v.Template != "reboot" || v.Attempt != 1 || w.now.Sub(begins) > time.Minute || m.done() != "reboot" {
		t.Errorf("after %s: %s", w.now.Sub(begins), m.record())
	}
	if !w.happened("RepairRefused", "reset-gpu was skipped", "next is reboot") || w.created["reset-gpu"] > 0 {
		t.Errorf("events:\n%s", strings.Join(w.events, "\n"))
	}
	w.untilClosed(m, visit.Repair, visit.Passed)

	w, m = sick(t, unnamed, ", {template: reboot, timeout: 20m}]", "]")
	m.run = w.cures(m)
	w.untilClosed(m, visit.Repair, visit.Failed)
	if v := m.last(); !strings.Contains(v.Outcome, "reset-gpu was skipped") || len(w.created) > 0 || m.record().Advice != nil {
		t.Errorf("Jobs %v, record %s", w.created, m.record())
	}
	if !w.happened("RepairFailed", "reset-gpu was skipped", "waits for a person") {
		t.Errorf("events:\n%s", strings.Join(w.events, "\n"))
	}
	// A person asks for it when the GPU is known.
	w.fault(m, "GPUXidError", ecc)
	w.ask(m, visit.RequestRepair)
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu" {
		t.Errorf("done: %s", m.done())
	}
}

func TestAnActionAfterASkippedOneIsDoneOnce(t *testing.T) {
	once := []string{"{template: reset-gpu, timeout: 10m}, ", "{template: reset-gpu, timeout: 10m}, {template: reset-gpu, args: [-all], timeout: 10m}, "}
	twice := []string{once[0], once[1] + "{template: reset-gpu, args: [--all], timeout: 10m}, "}
	const unnamed = "ResetGPU driver: 3 GPUs have hung"
	t.Run("by two visits", func(t *testing.T) {
		w, m := sick(t, unnamed, twice...)
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 0, done)})
		w.untilPhase(m, visit.Proving)
		m.pods = []corev1.Pod{gpuPod("train", "Job")}
		w.untilPhase(m, visit.Emptying)
		m.Spec.Taints = append(m.Spec.Taints, taint("karpenter.sh/disrupted", ""))
		w.untilClosed(m, visit.Repair, visit.Yielded)
		m.pods = nil
		m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "karpenter.sh/disrupted" })
		w.untilClosed(m, visit.Repair, visit.Passed)
		if m.done() != "reset-gpu reset-gpu reboot" || !w.happened("reset-gpu has not helped", "next is reset-gpu") {
			t.Errorf("done: %s; record %s", m.done(), m.record())
		}
	})
	t.Run("when it was refused", func(t *testing.T) {
		w, m := sick(t, unnamed, once...)
		w.policy.Repair.NextIfRefused = true
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 2, `{"result":"refused","message":"in use"}`)})
		w.untilClosed(m, visit.Repair, visit.Passed)
		if took := m.last().EndedAt.Sub(m.last().StartedAt); took > 35*time.Minute || m.done() != "reset-gpu reboot" {
			t.Errorf("done in %s: %s; record %s", took, m.done(), m.record())
		}
	})
}

func TestTheNextActionFollowsOnlyWhenTheLastHasNotHelped(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 0, done)})
	w.untilPhase(m, visit.Proving)
	w.never("a heavier action before the proof timeout", 9*time.Minute, func() bool { return m.phase() != visit.Proving })
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done: %s", m.done())
	}
	if !w.happened("reset-gpu has not helped: GPUXidError has not cleared; next is reboot") {
		t.Errorf("events:\n%s", strings.Join(w.events, "\n"))
	}
}

func TestAfterTheLastActionTheNodeWaitsForAPerson(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){
		"reset-gpu": w.exits(m, 1, `{"result":"failed","message":"nvidia-smi: in use"}`),
		"reboot":    func(job *batchv1.Job) { w.reboot(m); w.end(m, job, 137, ""); w.fault(m, "GPUXidError", ecc) },
	})
	w.untilClosed(m, visit.Repair, visit.Failed)
	w.never("another visit", 6*time.Hour, func() bool { return m.record().Current != nil })
	if a := m.record().Advice; a == nil || a.Do != visit.AdviseReplace || m.done() != "reset-gpu reboot" {
		t.Errorf("done %s, advice %+v", m.done(), a)
	}
	w.ask(m, visit.RequestRepair)
	w.step(time.Minute)
	if m.record().Current != nil || m.record().Request != nil || !w.happened("RepairRefused", "no action for class ResetGPU is left") {
		t.Errorf("record %s; events:\n%s", m.record(), strings.Join(w.events, "\n"))
	}
}

func TestAClassThatBecomesWorseSkipsToItsOwnActions(t *testing.T) {
	w, m := sick(t, ecc, "ResetGPU: [{template: reset-gpu, timeout: 10m}, {template: reboot, timeout: 20m}]", "ResetGPU: [{template: reset-gpu}, {template: other}]")
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 0, done)})
	w.untilPhase(m, visit.Proving)
	w.fault(m, "GPUXidError", lost)
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done: %s", m.done())
	}
}

func TestActionsOfAClass(t *testing.T) {
	tests := map[string]struct{ list, done, want string }{
		"first":                    {"reset reboot", "", "reset"},
		"second":                   {"reset reboot", "reset", "reboot"},
		"none":                     {"reset reboot", "reset reboot", ""},
		"a milder one never":       {"reset reboot", "reboot", ""},
		"twice the same":           {"reset reset reboot", "reset", "reset"},
		"twice the same, then on":  {"reset reset reboot", "reset reset", "reboot"},
		"what was done for others": {"reset", "other", "reset"},
		"no list":                  {"", "", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := parse(t)
			p.Repair.Actions.ResetGPU = nil
			for _, template := range strings.Fields(test.list) {
				check := p.Repair.Actions.Reboot[0]
				check.Template = template
				p.Repair.Actions.ResetGPU = append(p.Repair.Actions.ResetGPU, check)
			}
			r := &visit.Record{Repairs: []visit.Action{{Template: "reboot", Quarantine: "earlier"}}}
			for _, template := range strings.Fields(test.done) {
				r.Repairs = append(r.Repairs, visit.Action{Template: template, Quarantine: "q"})
			}
			got, ok := actions.Plan{View: proof.View{Policy: p}, Record: r}.Next("q", conditions.ResetGPU)
			if got.Template != test.want || ok != (test.want != "") {
				t.Errorf("next is %q, want %q", got.Template, test.want)
			}
		})
	}
}

func TestModes(t *testing.T) {
	t.Run("approve", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: approve")
		m.run = w.cures(m)
		w.never("a repair without approval", time.Hour, func() bool { return m.record().Current != nil })
		if m.waiting == nil || m.waiting.Reason != "approval" {
			t.Errorf("waits %+v", m.waiting)
		}
		w.ask(m, visit.RequestRepair)
		w.untilClosed(m, visit.Repair, visit.Passed)
		w.untilClosed(m, visit.Validation, visit.Passed)
	})
	t.Run("off validates what a person has repaired", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: off")
		m.run = w.cures(m)
		w.never("a repair", time.Hour, func() bool { return m.record().Current != nil })
		w.ask(m, visit.RequestRepair)
		w.step(time.Minute)
		if !w.happened("RepairRefused", "repair.mode is off") {
			t.Errorf("events %q", w.events)
		}
		w.fault(m, "GPUXidError", "")
		w.untilClosed(m, visit.Validation, visit.Passed)
		if m.done() != "" {
			t.Errorf("done: %s", m.done())
		}
	})
	t.Run("a node that a person has quarantined waits for approval", func(t *testing.T) {
		w, m := sick(t, ecc)
		var err error
		if m.Node, err = quarantine.QuarantineManually(m.Node, quarantine.Manual{Reason: "mine"}, w.now); err != nil {
			t.Fatal(err)
		}
		w.never("a repair without approval", time.Hour, func() bool { return m.record().Current != nil })
	})
	t.Run("no repair in the policy", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.policy.Repair = nil
		w.never("a visit", time.Hour, func() bool { return m.Annotations[conditions.AnnotationRepair] != "" })
	})
}

func TestWhatIsNeverRepaired(t *testing.T) {
	tests := map[string]func(w *world, m *machine){
		"an observed rule": func(w *world, _ *machine) {
			w.policy.Rules[2].Observe, w.policy.Rules[0].Observe, w.policy.Rules[1].Observe = true, true, true
		},
		"class Replace":     func(w *world, m *machine) { w.fault(m, "GPUXidError", dead) },
		"class Inspect":     func(w *world, m *machine) { w.fault(m, "GPUXidError", ""); w.fault(m, "SlowNode", "Inspect slow") },
		"label skip":        func(_ *world, m *machine) { m.Labels = map[string]string{conditions.LabelSkip: "true"} },
		"the control plane": func(_ *world, m *machine) { m.Labels = map[string]string{"node-role.kubernetes.io/control-plane": ""} },
		"a pause":           func(w *world, m *machine) { w.engine(m); w.paused = "audit" },
		"an open breaker":   func(w *world, _ *machine) { w.breaker = true },
		"a driver upgrade": func(w *world, m *machine) {
			w.engine(m)
			m.Labels["nvidia.com/gpu-driver-upgrade-state"] = "drain-required"
		},
		"maintenance of others": func(w *world, m *machine) {
			w.engine(m)
			m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, "firmware"))
		},
		"an autoscaler's removal": func(w *world, m *machine) { m.Spec.Taints = append(m.Spec.Taints, taint("karpenter.sh/disrupted", "")) },
		"a remediator of medik8s": func(w *world, m *machine) {
			m.Spec.Taints = append(m.Spec.Taints, taint("medik8s.io/remediation", "x"))
		},
		"a node that is not Ready": func(w *world, m *machine) { w.set(m, "Ready", corev1.ConditionUnknown, "") },
		"a soft quarantine": func(w *world, _ *machine) {
			for i := range w.policy.Rules {
				w.policy.Rules[i].Taint.Effect = corev1.TaintEffectPreferNoSchedule
			}
		},
		"an unreadable record": func(w *world, m *machine) { m.Annotations = map[string]string{conditions.AnnotationRepair: "{"} },
		"an earlier stop": func(w *world, m *machine) {
			w.engine(m)
			w.ask(m, visit.RequestStop)
		},
	}
	for name, prepare := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			m.run = w.cures(m)
			prepare(w, m)
			w.never("a visit", 2*time.Hour, func() bool {
				return m.record0() != nil && (m.record0().Current != nil || m.last().ID != "") || len(w.created) > 0
			})
			if name == "class Replace" && (m.record().Advice == nil || m.record().Advice.Do != visit.AdviseReplace) {
				t.Errorf("advice %+v", m.record().Advice)
			}
		})
	}
}

// record0 is the record if it can be read.
func (m *machine) record0() *visit.Record {
	r, err := visit.RecordOf(m.Node)
	if err != nil {
		return nil
	}
	return r
}

func taint(key, value string) corev1.Taint {
	return corev1.Taint{Key: key, Value: value, Effect: corev1.TaintEffectNoSchedule}
}

func TestWhatBeginsWhileNothingMayIsHeldAndGoesOnLater(t *testing.T) {
	tests := map[string]struct{ set, unset func(w *world, m *machine) }{
		"pause":   {func(w *world, _ *machine) { w.paused = "audit" }, func(w *world, _ *machine) { w.paused = "" }},
		"breaker": {func(w *world, _ *machine) { w.breaker = true }, func(w *world, _ *machine) { w.breaker = false }},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			m.run = w.cures(m)
			m.pods = []corev1.Pod{gpuPod("train", "Job")}
			w.untilPhase(m, visit.Emptying)
			test.set(w, m)
			m.pods = nil
			w.never("an action", 2*time.Hour, func() bool { return m.phase() != visit.Emptying })
			if name == "breaker" && !strings.Contains(m.waiting.Message, "until it closes") {
				t.Errorf("waits %+v", m.waiting)
			}
			if v := m.record().Current; v.Held == "" || m.waiting == nil || m.waiting.Reason != "held" {
				t.Errorf("held %q, waits %+v", v.Held, m.waiting)
			}
			test.unset(w, m)
			m.pods = []corev1.Pod{gpuPod("train", "Job")}
			w.never("no time for the node to become empty", 20*time.Minute, func() bool { return m.phase() != visit.Emptying })
			m.pods = nil
			w.untilClosed(m, visit.Repair, visit.Passed)
		})
	}
	t.Run("after a day it begins with what is reported then", func(t *testing.T) {
		for _, old := range []bool{false, true} {
			w, m := sick(t, ecc)
			m.run = w.cures(m)
			m.pods = []corev1.Pod{gpuPod("train", "Job")}
			w.untilPhase(m, visit.Emptying)
			w.paused = "audit"
			w.step(time.Minute)
			since := m.record().Current.ActionSince
			held := 24*time.Hour - 2*time.Minute
			if old {
				held += 2 * time.Minute
			}
			w.step(held)
			w.paused = ""
			w.step(time.Second)
			if ended := len(m.record().Last) > 0; ended != old {
				t.Errorf("after %s: ended %t, record %s", w.now.Sub(since), ended, m.record())
			}
			m.pods = nil
			w.untilClosed(m, visit.Repair, visit.Passed)
		}
	})
	t.Run("Working goes on to its end", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": nil})
		w.untilPhase(m, visit.Working)
		w.paused = "audit"
		w.step(time.Minute)
		m.run = w.cures(m)
		w.untilClosed(m, visit.Repair, visit.Passed)
		w.never("a validation during the pause", time.Hour, func() bool { return m.record().Current != nil })
	})
}

// without is the policy with a change.
func (w *world) without(change func(r *policy.Repair) *policy.Repair) *policy.Policy {
	p, r := *w.policy, *w.policy.Repair
	p.Repair = change(&r)
	return &p
}

func noRepair(*policy.Repair) *policy.Repair { return nil }

func TestARepairThatThePolicyHasNoMoreComesToItsEnd(t *testing.T) {
	failed := `{"result":"failed","message":"no"}`
	for phase, end := range map[visit.Phase]func(w *world, m *machine) func(*batchv1.Job){
		visit.Emptying: func(_ *world, m *machine) func(*batchv1.Job) {
			m.pods = []corev1.Pod{gpuPod("train", "Job")}
			return nil
		},
		visit.Working: func(*world, *machine) func(*batchv1.Job) { return nil },
		visit.Proving: func(w *world, m *machine) func(*batchv1.Job) { return w.exits(m, 0, done) },
	} {
		t.Run(string(phase), func(t *testing.T) {
			w, m := sick(t, ecc)
			w.program(m, map[string]func(*batchv1.Job){"reset-gpu": end(w, m)})
			w.untilPhase(m, phase)
			w.step(time.Minute)
			w.policy = w.without(noRepair)
			if AwaitsApproval(w.policy, m.Node, m.record(), m.quarantine(), w.now) {
				t.Error("it waits for an approval")
			}
			w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 1, failed)})
			w.until("closed", time.Hour, func() bool { return m.last().Kind == visit.Repair && m.record().Current == nil })
			if len(m.jobs) > 0 || slices.ContainsFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance }) {
				t.Errorf("%d Jobs, taints %v", len(m.jobs), m.Spec.Taints)
			}
		})
	}
}

func TestAnotherRepairerKeepsNoPlaceFromOtherNodes(t *testing.T) {
	for _, mode := range []string{"auto", "approve"} {
		t.Run(mode, func(t *testing.T) {
			w := newWorld(t, parse(t, "mode: auto", "mode: "+mode), "a", "b")
			a, b := w.nodes["a"], w.nodes["b"]
			a.run, b.run = w.cures(a), w.cures(b)
			begin := func(m *machine) {
				w.step(time.Minute)
				w.fault(m, "GPUXidError", ecc)
				if w.step(time.Minute); mode == "approve" {
					w.ask(m, visit.RequestRepair)
				}
			}
			a.pods = []corev1.Pod{gpuPod("train", "Job")}
			begin(a)
			w.untilPhase(a, visit.Emptying)
			a.Spec.Taints = append(a.Spec.Taints, taint("karpenter.sh/disrupted", ""))
			a.pods = nil
			begin(b)
			w.untilClosed(b, visit.Validation, visit.Passed)
			w.never("an action on the node of another repairer", time.Hour, func() bool { return a.record().Current != nil || a.done() != "" })
			if a.last().Phase != visit.Yielded || a.waiting == nil || a.waiting.Reason != "held" {
				t.Errorf("visit %+v, waits %+v", a.last(), a.waiting)
			}
			a.Spec.Taints = slices.DeleteFunc(a.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "karpenter.sh/disrupted" })
			w.untilClosed(a, visit.Repair, visit.Passed)
			w.untilClosed(a, visit.Validation, visit.Passed)
		})
	}
}

// Whoever changes the policy for a moment does not want all nodes under way to wait for a person.
func TestAVisitGoesOnAfterTheChangeOfThePolicyIsTakenBack(t *testing.T) {
	off := func(r *policy.Repair) *policy.Repair { r.Mode = policy.RepairOff; return r }
	noValidate := func(r *policy.Repair) *policy.Repair { r.Validate = nil; return r }
	tests := map[string]struct {
		kind   visit.Kind
		phase  visit.Phase
		change func(*policy.Repair) *policy.Repair
		end    string
	}{
		"repair, mode off":          {visit.Repair, visit.Emptying, off, ""},
		"repair, no spec.repair":    {visit.Repair, visit.Emptying, noRepair, ""},
		"repair, it fails":          {visit.Repair, visit.Working, noRepair, `{"result":"failed","message":"no"}`},
		"repair, it is refused":     {visit.Repair, visit.Working, noRepair, `{"result":"refused","message":"busy"}`},
		"validation, no validate":   {visit.Validation, visit.Emptying, noValidate, ""},
		"validation, no repair":     {visit.Validation, visit.Emptying, noRepair, ""},
		"validation, it is refused": {visit.Validation, visit.Working, noRepair, `{"result":"refused","message":"busy"}`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			if test.kind == visit.Validation {
				m.run = w.cures(m)
				w.untilClosed(m, visit.Repair, visit.Passed)
			}
			if m.run = nil; test.phase == visit.Emptying {
				m.pods = []corev1.Pod{gpuPod("train", "Job")}
			}
			w.until("under way", time.Hour, func() bool { v := m.record().Current; return v != nil && v.Kind == test.kind && v.Phase == test.phase })
			before := w.policy
			w.policy = w.without(test.change)
			if test.end != "" {
				exit := int32(1)
				if strings.Contains(test.end, "refused") {
					exit = 2
				}
				m.run = func(job *batchv1.Job) { w.end(m, job, exit, test.end) }
			}
			w.untilClosed(m, test.kind, visit.Yielded)
			w.policy, m.pods, m.run = before, nil, w.cures(m)
			w.untilClosed(m, visit.Validation, visit.Passed)
		})
	}
}

func TestANodeBecomesEmptyFirst(t *testing.T) {
	static := cpuPod("static", "")
	static.Annotations = map[string]string{corev1.MirrorPodAnnotationKey: "x"}
	ended := gpuPod("ended", "Job")
	ended.Status.Phase = corev1.PodSucceeded
	earlier := cpuPod("repair-0", "Job")
	earlier.Namespace = conditions.RepairNamespace
	tests := map[string]struct {
		message string
		pod     corev1.Pod
		blocks  bool
	}{
		"reset, a pod with a GPU":                {ecc, gpuPod("p", "Job"), true},
		"reset, a bare pod with a GPU":           {ecc, gpuPod("p", ""), true},
		"reset, a pod of a DaemonSet has it":     {ecc, gpuPod("p", "DaemonSet"), true},
		"reset, a pod without one":               {ecc, cpuPod("p", "Job"), false},
		"reset, a pod that has ended":            {ecc, ended, false},
		"reset, the pod of an earlier Job":       {ecc, earlier, true},
		"reboot, a pod without a GPU":            {lost, cpuPod("p", "ReplicaSet"), true},
		"reboot, a bare pod":                     {lost, cpuPod("p", ""), true},
		"reboot, a pod of a DaemonSet":           {lost, cpuPod("p", "DaemonSet"), false},
		"reboot, a pod of a DaemonSet has a GPU": {lost, gpuPod("p", "DaemonSet"), true},
		"reboot, a static pod":                   {lost, static, false},
		"reboot, a pod that has ended":           {lost, ended, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, test.message)
			m.run = w.cures(m)
			m.pods = []corev1.Pod{test.pod}
			if test.blocks {
				w.never("an action", 25*time.Minute, func() bool { return len(w.created) > 0 })
				if m.waiting == nil || m.waiting.Reason != "pods" || !strings.Contains(m.waiting.Message, test.pod.Name) {
					t.Errorf("waits %+v", m.waiting)
				}
				if v := m.record().Current; v == nil || !strings.Contains(v.Outcome, "pod "+test.pod.Namespace+"/p has not ended") && test.pod.Name == "p" {
					t.Errorf("visit %+v", v)
				}
				m.pods = nil
			}
			w.untilClosed(m, visit.Repair, visit.Passed)
		})
	}
}

func TestPodsAreEvictedOnlyIfTheyComeBackElsewhere(t *testing.T) {
	w, m := sick(t, lost, "lemon:", "drain: {mode: evict}\n    lemon:")
	m.run = w.cures(m)
	m.pods = []corev1.Pod{gpuPod("train", "Job"), cpuPod("web", "ReplicaSet"), cpuPod("exporter", "DaemonSet"), gpuPod("bare", "")}
	w.never("an action", 10*time.Minute, func() bool { return len(w.created) > 0 })
	var left []string
	for _, pod := range m.pods {
		left = append(left, pod.Name)
	}
	if !slices.Equal(left, []string{"exporter", "bare"}) {
		t.Errorf("left: %q", left)
	}
	if m.waiting == nil || !strings.Contains(m.waiting.Message, "ml/bare") {
		t.Errorf("waits %+v", m.waiting)
	}
	m.pods = nil
	w.untilClosed(m, visit.Repair, visit.Passed)
}

func TestANodeThatDoesNotBecomeEmptyIsGivenUpUntilAPersonAsks(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	m.pods = []corev1.Pod{gpuPod("train", "Job")}
	w.untilClosed(m, visit.Repair, visit.Failed)
	if took := m.last().EndedAt.Sub(m.last().StartedAt); took < 30*time.Minute || took > 31*time.Minute {
		t.Errorf("given up after %s", took)
	}
	if !w.happened("RepairFailed", "`kubectl pitcrew repair a --approve` begins it again") {
		t.Errorf("events %q", w.events)
	}
	m.pods = nil
	w.never("another visit", 2*time.Hour, func() bool { return m.record().Current != nil })
	w.ask(m, visit.RequestRepair)
	w.untilClosed(m, visit.Repair, visit.Passed)
}

func TestAPodThatComesAfterTheTaintStopsTheAction(t *testing.T) {
	for name, late := range map[string]struct {
		message string
		pod     corev1.Pod
	}{
		"reset":                         {ecc, gpuPod("late", "Job")},
		"reset, a DaemonSet's":          {ecc, gpuPod("late", "DaemonSet")},
		"reboot":                        {lost, gpuPod("late", "Job")},
		"reboot, without a GPU":         {lost, cpuPod("late", "Job")},
		"reboot, a DaemonSet's with it": {lost, gpuPod("late", "DaemonSet")},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, late.message)
			m.run = w.cures(m)
			m.stalled = true
			w.untilPhase(m, visit.Working)
			m.pods, m.stalled = []corev1.Pod{late.pod}, false
			w.step(time.Second)
			if m.phase() != visit.Emptying || len(w.created) > 0 || m.done() != "" || !strings.Contains(m.record().Current.Outcome, "pod ml/late has") {
				t.Errorf("%d Jobs, done %q, %s", len(w.created), m.done(), m.record())
			}
			m.pods = nil
			w.untilClosed(m, visit.Repair, visit.Passed)
		})
	}
}

// A Job that is gone before anybody has seen it may have run: that there is none proves nothing.
func TestAJobThatWasDeletedBeforeItWasSeenIsNotCreatedAnew(t *testing.T) {
	for created, want := range map[types.UID]bool{"": true, "uid-1": false} {
		w, m := sick(t, ecc)
		m.stalled = true
		w.untilPhase(m, visit.Working)
		f := w.facts(m)
		f.Created, f.Live = created, w.live(m, f)
		s := Next(w.policy, f, w.now)
		if v := s.Record.Current; (s.Create != nil) != want || strings.Contains(v.Outcome, "its Job was deleted by others") == want {
			t.Errorf("created %q: Job %v, record %s", created, s.Create != nil, s.Record)
		}
	}
}

func TestAVisitOfAnotherInstallationIsLeftAlone(t *testing.T) {
	for _, phase := range []visit.Phase{visit.Emptying, visit.Working, visit.Proving} {
		w, m := sick(t, ecc)
		switch phase {
		case visit.Emptying:
			m.pods = []corev1.Pod{gpuPod("p", "Job")}
		case visit.Proving:
			m.run = func(job *batchv1.Job) { w.end(m, job, 0, done) }
		}
		w.untilPhase(m, phase)
		for namespace, ours := range map[string]bool{conditions.RepairNamespace: true, "": true, "others": false} {
			f := w.facts(m)
			f.Record = f.Record.Clone(m.Node)
			f.Record.Current.Namespace = namespace
			after := m.DeepCopy()
			s := Next(w.policy, f, w.now.Add(24*time.Hour))
			s.Apply(after)
			isLeft := s.Waits != nil && s.Waits.Reason == "installation" && !quarantine.Differ(after, m.Node) && s.Create == nil
			if isLeft == ours {
				t.Errorf("%s, namespace %q: waits %+v", phase, namespace, s.Waits)
			}
		}
	}
}

func TestARefusedActionIsTriedAgain(t *testing.T) {
	refused := `{"result":"refused","message":"pod ml/train-0 holds a GPU"}`
	t.Run("and helps", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 2, refused)})
		w.until("refused twice", time.Hour, func() bool { return len(w.created) == 2 })
		if !w.happened("RepairRefused: reset-gpu was refused on the node: pod ml/train-0 holds a GPU") {
			t.Errorf("events %q", w.events)
		}
		m.run = w.cures(m)
		w.untilClosed(m, visit.Repair, visit.Passed)
		if m.done() != "reset-gpu" {
			t.Errorf("done %q", m.done())
		}
	})
	for action, message := range map[string]string{"reset-gpu": ecc, "reboot": lost} {
		t.Run("for as long as the node may take to become empty, then a person is asked: "+action, func(t *testing.T) {
			w, m := sick(t, message)
			w.program(m, map[string]func(*batchv1.Job){action: w.exits(m, 2, refused)})
			w.untilClosed(m, visit.Repair, visit.Failed)
			if v := m.last(); v.Attempt < 5 || v.Outcome != "refused: pod ml/train-0 holds a GPU" || m.done() != "" {
				t.Errorf("%d attempts, %q, done %q", v.Attempt, v.Outcome, m.done())
			}
			if !w.happened("RepairRefused: " + action + " was refused on the node: pod ml/train-0 holds a GPU") {
				t.Errorf("events %q", w.events)
			}
			w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
			m.run = w.cures(m)
			w.ask(m, visit.RequestRepair)
			if w.untilClosed(m, visit.Repair, visit.Passed); m.done() != action {
				t.Errorf("done %q", m.done())
			}
		})
	}
	t.Run("for as long as the node may take to become empty, then the next one is, if the policy says so", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 2, refused)})
		w.policy.Repair.NextIfRefused = true
		w.untilClosed(m, visit.Repair, visit.Passed)
		if took := m.last().EndedAt.Sub(m.last().StartedAt); m.last().Attempt < 5 || m.last().Attempt > 8 || took < 25*time.Minute || took > 35*time.Minute || m.done() != "reset-gpu reboot" {
			t.Errorf("%d attempts in %s, done %q", m.last().Attempt, took, m.done())
		}
		if !w.happened("RepairFailed: reset-gpu has not helped: refused: pod ml/train-0 holds a GPU; next is reboot") {
			t.Errorf("events %q", w.events)
		}
	})
	t.Run("and was not done if it was the last one", func(t *testing.T) {
		w, m := sick(t, ecc, "{template: reset-gpu, timeout: 10m}, {template: reboot, timeout: 20m}", "{template: reset-gpu, timeout: 10m}")
		w.program(m, map[string]func(*batchv1.Job){"reset-gpu": w.exits(m, 2, refused)})
		w.untilClosed(m, visit.Repair, visit.Failed)
		w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
		if a := m.record().Advice; a != nil || m.done() != "" {
			t.Errorf("done %q, advice %+v", m.done(), a)
		}
		m.run = w.cures(m)
		w.ask(m, visit.RequestRepair)
		w.untilClosed(m, visit.Repair, visit.Passed)
	})
	t.Run("and a validation fails", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"check": w.exits(m, 2, refused)})
		w.untilClosed(m, visit.Validation, visit.Failed)
		if v := m.last(); v.Attempt < 4 || !strings.Contains(v.Outcome, "refused: pod ml/train-0") {
			t.Errorf("visit %+v", v)
		}
		w.never("released, or another visit", 2*time.Hour, func() bool { return !m.isQuarantined() || m.record().Current != nil })
	})
}

func TestAJobThatDoesNotStartEndsTheVisitWithoutAHeavierAction(t *testing.T) {
	tests := map[string]struct {
		prepare func(w *world, m *machine)
		want    string
	}{
		"no template": {func(w *world, _ *machine) { delete(w.templates, "reset-gpu") }, "there is no PodTemplate reset-gpu in namespace pitcrew-repair"},
		"no image": {func(w *world, m *machine) {
			w.onCreate = func(m *machine, job *batchv1.Job) {
				job.Status.Ready = nil
				pod := m.ended[job.Name]
				pod.Status.Phase = corev1.PodPending
				pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "repair", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff"}}}}
				m.ended[job.Name] = pod
			}
		}, "ImagePullBackOff"},
		"a kubelet that refuses the pod": {func(w *world, m *machine) {
			w.onCreate = func(m *machine, job *batchv1.Job) { job.Status.Ready = nil }
			m.run = func(job *batchv1.Job) {
				w.end(m, job, 1, "")
				pod := m.ended[job.Name]
				pod.Status = corev1.PodStatus{Phase: corev1.PodFailed, Reason: "OutOfmemory", Message: "Node didn't have enough resource"}
				m.ended[job.Name] = pod
			}
		}, "the kubelet refused its pod: OutOfmemory"},
		"not created": {func(_ *world, m *machine) { m.stalled = true }, "the Job could not be created"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			test.prepare(w, m)
			w.untilClosed(m, visit.Repair, visit.Failed)
			if v := m.last(); !strings.Contains(v.Outcome, test.want) || v.EndedAt.Sub(v.StartedAt) > 6*time.Minute || m.done() != "" {
				t.Errorf("after %s: %s; done %q", v.EndedAt.Sub(v.StartedAt), v.Outcome, m.done())
			}
			if !w.happened("RepairFailed", test.want) {
				t.Errorf("events %q", w.events)
			}
			w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
		})
	}
}

// The controller of Jobs counts a pod some time after it has ended.
func TestAJobWhosePodHasEndedHasStarted(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = func(*batchv1.Job) {}
	w.onCreate = func(m *machine, job *batchv1.Job) {
		job.Status.Ready = nil
		pod := m.ended[job.Name]
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "repair", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		m.ended[job.Name] = pod
	}
	w.untilPhase(m, visit.Working)
	w.never("the Job is taken for one that has not started", 8*time.Minute, func() bool { return m.phase() != visit.Working })
	m.run = w.cures(m)
	w.untilClosed(m, visit.Repair, visit.Passed)
}

func TestAPersonTakesOver(t *testing.T) {
	removeTaint := func(w *world, m *machine) {
		m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
	}
	tests := map[string]func(w *world, m *machine){
		"by kubectl pitcrew repair --stop": func(w *world, m *machine) { w.ask(m, visit.RequestStop) },
		"by removing the taint":            removeTaint,
		"by label skip":                    func(w *world, m *machine) { m.Labels[conditions.LabelSkip] = "true" },
		"by releasing the node": func(w *world, m *machine) {
			var err error
			if m.Node, err = quarantine.ReleaseManually(m.Node, quarantine.Manual{}, nil, w.now); err != nil {
				w.Fatal(err)
			}
		},
	}
	for name, take := range tests {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			w.program(m, map[string]func(*batchv1.Job){"reset-gpu": nil})
			w.until("the Job runs", time.Hour, func() bool { return len(m.jobs) == 1 })
			take(w, m)
			w.step(time.Second)
			w.step(endPoll)
			if m.record().Current != nil || m.last().Phase != visit.Failed || len(m.jobs) > 0 {
				t.Errorf("%d Jobs, record %s", len(m.jobs), m.record())
			}
			if slices.ContainsFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance }) {
				t.Error("the taint stays")
			}
			if name == "by label skip" && !strings.Contains(m.last().Outcome, "label pitcrew.dev/skip") {
				t.Errorf("outcome %q", m.last().Outcome)
			}
			if name == "by releasing the node" {
				if w.step(time.Second); m.record().Request != nil {
					t.Errorf("request %+v for a quarantine that is over", m.record().Request)
				}
			}
			delete(m.Labels, conditions.LabelSkip)
			w.never("another visit", 2*time.Hour, func() bool { return m.record().Current != nil })
		})
	}
	t.Run("before anything has begun, and gives it back", func(t *testing.T) {
		w, m := sick(t, ecc)
		m.run = w.cures(m)
		m.pods = []corev1.Pod{gpuPod("train", "Job")}
		w.untilPhase(m, visit.Emptying)
		w.ask(m, visit.RequestStop)
		m.pods = nil
		w.never("another visit", time.Hour, func() bool { return len(w.created) > 0 })
		w.ask(m, visit.RequestRepair)
		w.untilClosed(m, visit.Repair, visit.Passed)
	})
}

func TestWhatAPersonHasStoppedStaysStopped(t *testing.T) {
	// sees: the remediator acts on the stop before the next request.
	for _, sees := range []bool{true, false} {
		for _, kind := range []string{visit.RequestRelease, visit.RequestCheck} {
			t.Run(fmt.Sprintf("%s, seen %t", kind, sees), func(t *testing.T) {
				w, m := sick(t, ecc)
				m.run = w.cures(m)
				m.pods = []corev1.Pod{gpuPod("train", "Job")}
				if sees { // and no visit has begun
					w.engine(m)
					w.ask(m, visit.RequestStop)
					w.step(time.Minute)
				} else {
					w.untilPhase(m, visit.Emptying)
					w.ask(m, visit.RequestStop)
				}
				w.ask(m, kind)
				m.pods = nil
				w.program(m, map[string]func(*batchv1.Job){"check": w.exits(m, 1, `{"result":"failed","message":"no"}`)})
				checks := func() (n int) {
					for _, v := range m.record().Last {
						if v.Kind == visit.Validation {
							n++
						}
					}
					return n
				}
				w.never("a repair", 3*time.Hour, func() bool { return m.done() != "" })
				if want := map[string]int{visit.RequestRelease: 1}[kind]; checks() != want {
					t.Errorf("%d validations, want %d", checks(), want)
				}
				if len(w.created) > 0 != (kind == visit.RequestRelease) {
					t.Errorf("%d Jobs", len(w.created))
				}
				if v := m.record().Last; kind == visit.RequestRelease && v[0].Kind == visit.Repair {
					t.Errorf("another repair: %+v", v[0])
				}
				if actions.GivenUp(w.policy, m.Node, m.record(), m.quarantine()) != nil {
					t.Error("it is reported to the person who has stopped it")
				}
				m.run = w.cures(m)
				w.ask(m, visit.RequestRepair)
				w.untilClosed(m, visit.Validation, visit.Passed)
			})
		}
	}
	t.Run("while the taint of the quarantine is missing", func(t *testing.T) {
		w, m := sick(t, ecc)
		m.run = w.cures(m)
		w.engine(m)
		w.ask(m, visit.RequestStop)
		taints := m.Spec.Taints
		m.Spec.Taints = nil
		w.visit(m)
		m.Spec.Taints = taints
		w.never("a repair", time.Hour, func() bool { return m.done() != "" })
	})
	t.Run("in another quarantine it is repaired", func(t *testing.T) {
		w, m := sick(t, ecc)
		m.run = w.cures(m)
		w.engine(m)
		w.ask(m, visit.RequestStop)
		var err error
		if m.Node, err = quarantine.ReleaseManually(m.Node, quarantine.Manual{}, nil, w.now); err != nil {
			t.Fatal(err)
		}
		w.step(time.Hour)
		w.fault(m, "GPUXidError", strings.ReplaceAll(ecc, "1b", "2b"))
		w.untilClosed(m, visit.Repair, visit.Passed)
		if m.record().Stopped != "" {
			t.Errorf("stopped: %q", m.record().Stopped)
		}
	})
}

func TestTheTaintIsRemovedIfAWriterBringsItBack(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	w.untilClosed(m, visit.Repair, visit.Passed)
	m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, "repair"))
	w.step(time.Second)
	if slices.ContainsFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance }) {
		t.Errorf("taints %v", m.Spec.Taints)
	}
}

func TestANodeThatDoesNotComeBackIsHandedOver(t *testing.T) {
	for name, message := range map[string]string{"reboot": lost, "reset": ecc} {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, message)
			gone := func(*batchv1.Job) { w.set(m, string(corev1.NodeReady), corev1.ConditionUnknown, "") }
			w.program(m, map[string]func(*batchv1.Job){"reboot": gone, "reset-gpu": gone})
			w.untilClosed(m, visit.Repair, visit.Failed)
			if !w.happened("RepairFailed", "only its provider or a person can help") {
				t.Errorf("events %q", w.events)
			}
			w.reboot(m)
			w.fault(m, "GPUXidError", message)
			w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
		})
	}
}

func TestAJobThatOthersDeleteIsNotCreatedAgain(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": nil})
	w.until("the Job is noted", time.Hour, func() bool { v := m.record().Current; return v != nil && v.JobUID != "" })
	clear(m.jobs)
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done %q", m.done())
	}
}

func TestAFaultThatClearsByItselfEndsTheVisit(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	m.pods = []corev1.Pod{gpuPod("train", "Job")}
	w.untilPhase(m, visit.Emptying)
	w.fault(m, "GPUXidError", "")
	w.until("the visit has yielded", time.Hour, func() bool { return m.last().Kind == visit.Repair && m.last().Phase == visit.Yielded })
	if m.done() != "" {
		t.Errorf("done %q", m.done())
	}
	m.pods = nil
	w.untilClosed(m, visit.Validation, visit.Passed)
}

// Every repair was proven, and the check under load finds the fault each time.
func TestAFaultThatComesBackUnderLoadAfterEveryRepairAsksForAReplacement(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"check": func(job *batchv1.Job) {
		w.end(m, job, 0, `{"result":"problem","message":"DCGM level 3: memory"}`)
		w.fault(m, "GPUXidError", ecc)
	}})
	w.until("the advice to replace it", 4*time.Hour, func() bool { a := m.record().Advice; return a != nil && a.Do == visit.AdviseReplace })
	if m.done() != "reset-gpu reboot" || !m.record().Repairs[1].Proven || !m.isQuarantined() {
		t.Errorf("done %s, record %s", m.done(), m.record())
	}
}

func TestAConditionFromBeforeTheBootAsksForNothing(t *testing.T) {
	w, m := sick(t, ecc)
	w.engine(m)
	m.silent = true
	m.Status.NodeInfo.BootID = "a-boot-9" // NPD has not reported since
	w.never("a visit", time.Hour, func() bool { return m.record().Current != nil })
	w.ask(m, visit.RequestRepair)
	if w.step(time.Minute); !w.happened("RepairRefused", "condition GPUXidError has no recent report of this boot") {
		t.Errorf("events %q", w.events)
	}
}

func TestValidationFails(t *testing.T) {
	t.Run("by its own report, and the repair goes on", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"check": func(job *batchv1.Job) {
			w.end(m, job, 0, `{"result":"problem","message":"DCGM level 3: memory"}`)
			w.fault(m, "GPUXidError", ecc)
			m.run = w.cures(m)
		}})
		w.untilClosed(m, visit.Validation, visit.Passed)
		if m.done() != "reset-gpu reboot" {
			t.Errorf("done %q", m.done())
		}
		if !w.happened("NodeChecked: validation has found a fault: DCGM level 3: memory") {
			t.Errorf("events %q", w.events)
		}
	})
	t.Run("by a condition", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"check": func(job *batchv1.Job) {
			w.end(m, job, 0, `{"result":"healthy","message":"passed"}`)
			w.fault(m, "GPUMemoryError", dead)
		}})
		w.untilClosed(m, visit.Validation, visit.Failed)
		w.never("released", 2*time.Hour, func() bool { return !m.isQuarantined() })
	})
	t.Run("without a report of the plugin", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.program(m, map[string]func(*batchv1.Job){"check": func(job *batchv1.Job) {
			w.end(m, job, 0, `{"result":"healthy","message":"passed"}`)
			m.silent = true
		}})
		w.untilClosed(m, visit.Validation, visit.Failed)
	})
	t.Run("without the condition of its verdict, which goes while it runs", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.templates["check"].Annotations[conditions.AnnotationVerdict] = "GPUXidError,DCGMDiagFailed"
		w.set(m, "DCGMDiagFailed", corev1.ConditionFalse, "no fault")
		cures := w.cures(m)
		m.run = func(job *batchv1.Job) {
			cures(job)
			if job.Labels[conditions.LabelTemplate] == "check" {
				m.Status.Conditions = slices.DeleteFunc(m.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == "DCGMDiagFailed" })
			}
		}
		w.untilClosed(m, visit.Validation, visit.Failed)
		if !strings.Contains(m.last().Outcome, "DCGMDiagFailed") {
			t.Error(m.last().Outcome)
		}
	})
	t.Run("to begin while nothing would report what it finds", func(t *testing.T) {
		w, m := sick(t, ecc)
		w.templates["check"].Annotations[conditions.AnnotationVerdict] = "DCGMDiagFailed"
		m.run = w.cures(m)
		w.until("the validation waits", time.Hour, func() bool { return m.waiting != nil && m.waiting.Reason == WaitsForProof })
		for _, want := range []string{"validation waits", "DCGMDiagFailed", "template check", "add DCGMDiagFailed to the checks of its pool"} {
			if !strings.Contains(m.waiting.Message, want) {
				t.Errorf("%q lacks %q", m.waiting.Message, want)
			}
		}
		w.never("released, or validated", 2*time.Hour, func() bool { return !m.isQuarantined() || len(w.created) > 1 })
		w.set(m, "DCGMDiagFailed", corev1.ConditionFalse, "no fault")
		w.untilClosed(m, visit.Validation, visit.Passed)
	})
	t.Run("when it cannot run twice, and is not tried again", func(t *testing.T) {
		for name, end := range map[string]func(w *world, m *machine) func(*batchv1.Job){
			"exit 1":    func(w *world, m *machine) func(*batchv1.Job) { return w.exits(m, 1, "boom") },
			"no result": func(w *world, m *machine) func(*batchv1.Job) { return w.exits(m, 0, "all fine") },
			"no end":    func(*world, *machine) func(*batchv1.Job) { return nil },
			"reboots":   func(w *world, m *machine) func(*batchv1.Job) { return func(*batchv1.Job) { w.reboot(m) } },
		} {
			t.Run(name, func(t *testing.T) {
				w, m := sick(t, ecc)
				w.program(m, map[string]func(*batchv1.Job){"check": end(w, m)})
				w.untilClosed(m, visit.Validation, visit.Failed)
				if n := len(w.created); n != 3 { // the reset and two checks
					t.Errorf("%d Jobs: %v", n, slices.Collect(maps.Keys(w.created)))
				}
				if !w.happened("NodeChecked", "`kubectl pitcrew release a --without-validation` returns the node") {
					t.Errorf("events %q", w.events)
				}
				w.never("another visit, or a release", 3*time.Hour, func() bool { return m.record().Current != nil || m.record().Checked != nil })
			})
		}
	})
}

// The gate does not count a validation from before the last fault of a cause, so the plan must not, either.
func TestAFaultAfterTheValidationIsValidatedAnew(t *testing.T) {
	w, m := sick(t, ecc, "mode: auto", "mode: off", "validate: true", "clearAfter: 3h\n      validate: true")
	m.run = w.cures(m)
	w.step(time.Minute)
	w.fault(m, "GPUXidError", "")
	w.untilClosed(m, visit.Validation, visit.Passed)
	first := m.last().ID
	w.step(time.Minute)
	if a := m.record().Advice; a == nil || a.Do != visit.AdviseReturn {
		t.Errorf("advice %+v", a)
	}
	w.fault(m, "GPUXidError", ecc)
	w.step(time.Minute)
	if a := m.record().Advice; a != nil && a.Do == visit.AdviseReturn {
		t.Errorf("advice %+v for a node with a fault", a)
	}
	w.fault(m, "GPUXidError", "")
	w.until("a second validation", time.Hour, func() bool { return m.last().ID != first && m.last().Phase == visit.Passed })
	w.until("the node is released", 4*time.Hour, func() bool { return !m.isQuarantined() })
}

// The engine releases the node without a validation then.
func TestARuleThatOnlyObservesValidatesNothing(t *testing.T) {
	w, m := sick(t, ecc, "mode: auto", "mode: off")
	m.run = w.cures(m)
	w.fault(m, "GPUMemoryError", ecc)
	w.step(time.Minute)
	for i := range w.policy.Rules {
		if r := &w.policy.Rules[i]; r.Condition == "GPUXidError" {
			r.Observe = true
		}
	}
	w.fault(m, "GPUXidError", "")
	w.fault(m, "GPUMemoryError", "")
	w.until("the node is released", 3*time.Hour, func() bool { return !m.isQuarantined() })
	if m.last().ID != "" {
		t.Errorf("visit %+v", m.last())
	}
}

func TestANewBootIsValidatedAnew(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"check": w.exits(m, 1, "")})
	w.untilClosed(m, visit.Validation, visit.Failed)
	w.reboot(m)
	m.run = w.cures(m)
	w.untilClosed(m, visit.Validation, visit.Passed)
}

func TestReleaseWithValidation(t *testing.T) {
	t.Run("passes", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: off")
		m.run = w.cures(m)
		w.step(time.Minute)
		var err error
		if m.Node, err = quarantine.QuarantineManually(m.Node, quarantine.Manual{Reason: "mine"}, w.now); err != nil {
			t.Fatal(err)
		}
		w.fault(m, "GPUXidError", "")
		w.never("a validation of a node that only a person releases", time.Hour, func() bool { return m.record().Current != nil })
		w.ask(m, visit.RequestRelease)
		w.untilClosed(m, visit.Validation, visit.Passed)
		w.until("the node is released", time.Minute, func() bool { return !m.isQuarantined() })
		if q := m.quarantine(); q.ReleasedBy != causes.ByPerson || q.ReleaseUser != "eve" || q.ReleaseReason != "because" {
			t.Errorf("released by %q: %q, %q", q.ReleasedBy, q.ReleaseUser, q.ReleaseReason)
		}
		w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
	})
	t.Run("a node whose fault came too often", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: off")
		m.run = w.cures(m)
		w.step(time.Minute)
		q := m.quarantine()
		q.ManualReleaseOnly = true
		m.Annotations[conditions.AnnotationQuarantine] = q.String()
		w.fault(m, "GPUXidError", "")
		w.never("a validation of a node that only a person releases", time.Hour, func() bool { return m.record().Current != nil })
		w.ask(m, visit.RequestRelease)
		w.untilClosed(m, visit.Validation, visit.Passed)
	})
	t.Run("fails", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: off")
		m.run = w.cures(m)
		w.step(time.Minute)
		w.ask(m, visit.RequestRelease) // the fault is there
		w.untilClosed(m, visit.Validation, visit.Failed)
		if m.record().Request != nil {
			t.Errorf("request %+v", m.record().Request)
		}
		w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
	})
	t.Run("is not tried again if the node does not become empty", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: off")
		m.run = w.cures(m)
		w.step(time.Minute)
		m.pods = []corev1.Pod{gpuPod("train", "Job")}
		w.ask(m, visit.RequestRelease)
		w.untilClosed(m, visit.Validation, visit.Failed)
		m.pods = nil
		w.never("another visit", time.Hour, func() bool { return m.record().Current != nil })
	})
	t.Run("keeps no repair from beginning", func(t *testing.T) {
		for name, tt := range map[string]struct {
			change  []string
			checked func(m *machine) *visit.Checked
			why     string
		}{
			"no rule validates": {[]string{"      validate: true\n", ""}, func(*machine) *visit.Checked { return nil }, "no rule of the quarantine has validate: true"},
			"no rule validates, and a validation has passed": {[]string{"      validate: true\n", ""}, func(m *machine) *visit.Checked {
				return &visit.Checked{At: start.Add(time.Hour), BootID: "a-boot-0", Quarantine: m.quarantine().ID}
			}, "no rule of the quarantine has validate: true"},
			"a forged validation has passed": {nil, func(m *machine) *visit.Checked {
				return &visit.Checked{At: start.Add(time.Hour), BootID: "a-boot-0", Quarantine: m.quarantine().ID}
			}, "the validation has passed, but GPUXidError has not cleared"},
		} {
			t.Run(name, func(t *testing.T) {
				w, m := sick(t, ecc, "mode: auto", "mode: off")
				m.run = w.cures(m)
				w.step(2 * time.Hour)
				r := m.record()
				r.V, r.NodeUID, r.Checked = 1, m.UID, tt.checked(m)
				r.Put(m.Node)
				w.ask(m, visit.RequestRelease)
				w.policy = parse(t, tt.change...)
				w.untilClosed(m, visit.Repair, visit.Passed)
				if !w.happened("RepairRefused", "not released: "+tt.why, "release a --without-validation") {
					t.Errorf("events %q", w.events)
				}
			})
		}
	})
	t.Run("needs a check", func(t *testing.T) {
		w, m := sick(t, ecc, "mode: auto", "mode: off")
		w.policy.Repair.Validate = nil
		w.step(time.Minute)
		w.ask(m, visit.RequestRelease)
		w.step(time.Minute)
		if m.record().Request != nil || !w.happened("RepairRefused", "repair.validate", "release a --without-validation") {
			t.Errorf("events %q", w.events)
		}
	})
}

func TestLimits(t *testing.T) {
	many := func(t *testing.T, change ...string) *world {
		w := newWorld(t, parse(t, change...), "a", "b", "c")
		for name, m := range w.nodes {
			m.run = w.cures(m)
			m.Labels = map[string]string{"rack": map[string]string{"a": "1", "b": "2", "c": "2"}[name]}
		}
		w.step(time.Minute)
		for _, m := range w.nodes {
			w.fault(m, "GPUXidError", ecc)
		}
		return w
	}
	active := func(w *world) (n int) {
		for _, m := range w.nodes {
			if m.record().Current != nil {
				n++
			}
		}
		return n
	}
	begun := func(w *world) (n int) {
		for _, m := range w.nodes {
			n += m.record().RepairsWithin(day, w.now)
		}
		return n
	}
	t.Run("maxConcurrent", func(t *testing.T) {
		w := many(t)
		w.never("two at a time", 4*time.Hour, func() bool { return active(w) > 1 })
		if begun(w) != 3 {
			t.Errorf("%d repairs", begun(w))
		}
	})
	t.Run("maxConcurrent of a scope", func(t *testing.T) {
		w := many(t, "maxPerDay: 10", "scope: rack")
		most := 0
		w.never("two in one rack", 4*time.Hour, func() bool {
			most = max(most, active(w))
			return w.nodes["b"].record().Current != nil && w.nodes["c"].record().Current != nil
		})
		if most != 2 {
			t.Errorf("at most %d at a time, want 2", most)
		}
	})
	t.Run("maxPerDay", func(t *testing.T) {
		w := many(t, "maxPerDay: 10", "maxPerDay: 2")
		w.never("three a day", 23*time.Hour, func() bool { return begun(w) > 2 })
		w.until("the third on the next day", 4*time.Hour, func() bool {
			return w.nodes["a"].done() != "" && w.nodes["b"].done() != "" && w.nodes["c"].done() != ""
		})
	})
	t.Run("a forged visit takes no place", func(t *testing.T) {
		w := many(t)
		b := w.nodes["b"]
		w.fault(b, "GPUXidError", "")
		w.fault(w.nodes["c"], "GPUXidError", "")
		b.Annotations = map[string]string{conditions.AnnotationRepair: (&visit.Record{V: 1, NodeUID: b.UID, Current: &visit.Visit{
			ID: "x", Kind: visit.Repair, Phase: visit.Emptying, StartedAt: w.now, PhaseSince: w.now, ActionSince: w.now,
		}}).String()}
		w.paused = "so that only a acts"
		p := peers.Of(w.policy, b.Node, w.now)
		if p.Active {
			t.Error("it counts")
		}
		// S11: nor with a quarantine that is claimed of a taint of others.
		for _, taint := range []corev1.Taint{
			{Key: "nvidia.com/gpu", Effect: corev1.TaintEffectNoSchedule}, {Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule},
		} {
			b.Spec.Taints = []corev1.Taint{taint}
			b.Annotations[conditions.AnnotationQuarantine] = (&causes.Record{V: 1, NodeUID: b.UID, Quarantine: causes.Quarantine{
				ID: "q", Phase: causes.Quarantined, Causes: []causes.Cause{{Condition: "GPUXidError", Rule: "gpu", Due: true, Repair: conditions.Reboot}},
				Taint: &causes.Taint{Key: taint.Key, Effect: taint.Effect, Rule: "gpu", Repair: conditions.Reboot},
			}}).String()
			if got, want := peers.Of(w.policy, b.Node, w.now).Active, taint.Key == conditions.TaintUnhealthy; got != want {
				t.Errorf("with taint %s it counts: %v", taint.Key, got)
			}
		}
	})
}

func TestALemonIsNotRepairedAgain(t *testing.T) {
	w, m := sick(t, ecc, "lemon: {repairs: 4, window: 720h}", "lemon: {repairs: 2, window: 720h}")
	m.run = w.cures(m)
	for range 2 {
		w.until("repaired and released", 5*time.Hour, func() bool { return m.last().Kind == visit.Validation && !m.isQuarantined() })
		w.step(time.Hour)
		w.fault(m, "GPUXidError", strings.ReplaceAll(ecc, "1b", "2b")) // another GPU each time, else the engine asks for its replacement
		w.step(time.Minute)
	}
	w.never("a third repair", 6*time.Hour, func() bool { return len(m.record().Repairs) > 2 })
	if a := m.record().Advice; a == nil || a.Do != visit.AdviseReplace || !strings.Contains(a.Why, "lemon") {
		t.Errorf("advice %+v", a)
	}
	w.ask(m, visit.RequestRepair)
	w.step(time.Minute)
	if !w.happened("repair.lemon reached: 2 repairs in 30 days") {
		t.Errorf("events %q", w.events)
	}
}

func TestARecordOfAnotherNodeIsIgnored(t *testing.T) {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	w.untilClosed(m, visit.Validation, visit.Passed)
	m.UID = "uid-new"
	if r, err := visit.RecordOf(m.Node); err != nil || r != nil {
		t.Errorf("record %v, %v", r, err)
	}
}

func TestNothingIsWrittenInVain(t *testing.T) {
	w, m := sick(t, ecc)
	m.pods = []corev1.Pod{gpuPod("train", "Job")}
	w.untilPhase(m, visit.Emptying)
	w.step(time.Minute)
	before := m.Annotations[conditions.AnnotationRepair]
	w.never("a write", 20*time.Minute, func() bool { return m.Annotations[conditions.AnnotationRepair] != before })
}

// Where no admission policy protects the record, whoever may write it must not choose what runs as root.
func TestAJobHasOnlyArgumentsThatThePolicyAsksFor(t *testing.T) {
	for name, change := range map[string]func(*world, *visit.Visit){
		"other arguments": func(_ *world, v *visit.Visit) {
			v.Template, v.Args = "check", []string{"check", "-command", "--", "/bin/sh"}
		},
		"one more":    func(_ *world, v *visit.Visit) { v.Args = append(v.Args, "-force") },
		"one less":    func(_ *world, v *visit.Visit) { v.Args = v.Args[:1] },
		"no GPUs":     func(_ *world, v *visit.Visit) { v.Args = []string{"reset-gpu", "-gpu=0000:1b:00 -force"} },
		"a line more": func(_ *world, v *visit.Visit) { v.Args = []string{"reset-gpu", "-gpu=0000:1b:00\n-force"} },
		"a reboot that does not say so": func(_ *world, v *visit.Visit) {
			v.Template, v.Args = "reboot", []string{"reboot", "-boot-id=a-boot-0"}
		},
		"the policy has changed": func(w *world, _ *visit.Visit) {
			w.policy = parse(w, "ResetGPU: [{template: reset-gpu, timeout: 10m}, ", "ResetGPU: [")
		},
		"the template has changed": func(w *world, _ *visit.Visit) { w.templates["reset-gpu"] = template("reset-gpu", "reset-gpu", "-all") },
	} {
		t.Run(name, func(t *testing.T) {
			w, m := sick(t, ecc)
			m.stalled = true
			w.untilPhase(m, visit.Working)
			r := m.record()
			change(w, r.Current)
			r.Put(m.Node)
			m.stalled = false
			w.step(time.Second)
			if len(w.created) > 0 || !w.happened("RepairFailed", "has not started: the policy and the template do not ask for arguments") {
				t.Errorf("Jobs %v, record %s; events:\n%s", w.created, m.record(), strings.Join(w.events, "\n"))
			}
			w.until("the visit is closed", time.Minute, func() bool { return m.last().Phase == visit.Failed })
		})
	}
}

func TestAJobIsCreatedAlthoughOtherGPUsHaveAFaultByNow(t *testing.T) {
	w, m := sick(t, ecc)
	m.stalled = true
	w.untilPhase(m, visit.Working)
	w.fault(m, "GPUXidError", lost)
	m.stalled = false
	w.step(time.Second)
	if len(w.created) != 1 {
		t.Errorf("Jobs %v; events:\n%s", w.created, strings.Join(w.events, "\n"))
	}
}
