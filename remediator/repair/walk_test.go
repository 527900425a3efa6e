package repair

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Random worlds: hardware that mends or not, Jobs that hang or are refused, pods that come and go, people and other repairers who step
// in, and processes that die after a patch. Whatever happens: one Job for each attempt, no action on a node with a pod in the way, never
// more than the limits, the taint exactly while a visit works, and every visit ends.
func TestRandomWorlds(t *testing.T) {
	worlds := 24
	if testing.Short() {
		worlds = 10
	}
	seen := map[string]int{}
	for seed := range worlds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { walk(t, rand.New(rand.NewPCG(uint64(seed), 17)), seen) })
	}
	// A walk that meets none of these proves nothing.
	for _, want := range []string{
		"repair Passed", "repair Failed", "repair Yielded", "validation Passed", "validation Failed", "reset-gpu", "reboot", "check", "attempt 3", "held", "stopped", "evicted",
	} {
		if seen[want] == 0 {
			t.Errorf("no world had %q: %v", want, seen)
		}
	}
}

func walk(t *testing.T, r *rand.Rand, seen map[string]int) {
	p := parse(t)
	p.Repair.MaxConcurrent, p.Repair.MaxPerDay = 1+r.IntN(2), []int{0, 3, 10}[r.IntN(3)]
	if r.IntN(3) == 0 {
		p.Repair.Drain.Mode = policy.DrainEvict
	}
	if r.IntN(4) == 0 {
		p.Repair.Mode = policy.RepairApprove
	}
	w := newWorld(t, p, "a", "b", "c")
	chance := func(percent float64) bool { return r.Float64()*100 < percent }
	w.onCreate = func(m *machine, job *batchv1.Job) {
		what := job.Labels[conditions.LabelTemplate]
		seen[what]++
		seen[fmt.Sprintf("attempt %d", m.record().Current.Attempt)]++
		for _, pod := range m.pods {
			if what == "reboot" && !sweep.StaysOnNode(&pod) || sweep.HoldsAccelerator(&pod) {
				t.Fatalf("%s begins on node %s while pod %s is there", what, m.Name, pod.Name)
			}
		}
		w.behave(m, job, r.IntN(9))
	}
	opened := map[string]time.Time{}
	for i := range 500 {
		if w.policy == p && chance(0.3) {
			w.policy = w.without(noRepair)
		} else if chance(40) || i >= 400 {
			w.policy = p
		}
		for _, name := range slices.Sorted(maps.Keys(w.nodes)) {
			w.meddle(w.nodes[name], r, chance, i < 400)
		}
		phases := map[string]visit.Phase{}
		for name, m := range w.nodes {
			phases[name] = m.phase()
		}
		w.step(time.Duration(10+r.IntN(110)) * time.Second)
		active := 0
		for name, m := range w.nodes {
			rec := m.record()
			if v := rec.Current; v != nil {
				if m.isQuarantined() {
					active++
				}
				if opened[v.ID].IsZero() {
					opened[v.ID] = w.now
				}
				if v.Held != "" {
					seen["held"]++
					opened[v.ID] = w.now
				}
				if took := w.now.Sub(opened[v.ID]); took > 8*time.Hour {
					t.Fatalf("visit %+v does not end", v)
				}
				if v.Phase == visit.Working && phases[name] != visit.Working && (w.paused != "" || w.breaker || sweep.OtherRepairer(withoutOurs(m.Node), rec, w.now) != "") {
					t.Fatalf("an action begins on node %s while nothing may", name)
				}
			}
			tainted := slices.ContainsFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance && t.Value != "firmware" })
			if phase := m.phase(); tainted != (phase == visit.Working) && phase != visit.Ending {
				t.Fatalf("node %s has taints %v in phase %q", name, m.Spec.Taints, m.phase())
			}
			if len(m.jobs) > 0 && m.phase() != visit.Working && m.phase() != visit.Ending && !m.stalled {
				t.Fatalf("node %s has a Job in phase %q", name, m.phase())
			}
			for _, v := range rec.Last {
				seen[string(v.Kind)+" "+string(v.Phase)]++
			}
		}
		if active > p.Repair.MaxConcurrent {
			t.Fatalf("%d nodes are visited, at most %d may be", active, p.Repair.MaxConcurrent)
		}
		begun := 0
		for _, m := range w.nodes {
			begun += m.record().RepairsWithin(day, w.now)
		}
		if most := p.Repair.MaxPerDay; most > 0 && begun > most {
			t.Fatalf("%d repairs within a day, at most %d may begin", begun, most)
		}
	}
	for _, e := range w.events {
		if strings.Contains(e, "stopped") {
			seen["stopped"]++
		}
	}
	seen["evicted"] += w.evicted
}

// withoutOurs is the node without the taint that an action has just put there.
func withoutOurs(n *corev1.Node) *corev1.Node {
	n = n.DeepCopy()
	n.Spec.Taints = slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance && t.Value != "firmware" })
	return n
}

// behave decides what becomes of a Job.
func (w *world) behave(m *machine, job *batchv1.Job, how int) {
	cures := w.cures(m)
	m.run = cures
	switch how {
	case 0: // it does not help
		m.run = func(job *batchv1.Job) {
			if job.Labels[conditions.LabelTemplate] == "reboot" {
				message := conditionMessage(m)
				w.reboot(m)
				w.fault(m, "GPUXidError", message)
			}
			w.end(m, job, 0, done)
		}
	case 1:
		m.run = func(job *batchv1.Job) { w.end(m, job, 1, `{"result":"failed","message":"no"}`) }
	case 2:
		m.run = func(job *batchv1.Job) { w.end(m, job, 2, `{"result":"refused","message":"busy"}`) }
	case 3: // it hangs
		m.run = func(*batchv1.Job) {}
	case 4: // it never starts
		job.Status.Ready = nil
		m.run = func(*batchv1.Job) {}
		pod := m.ended[job.Name]
		pod.Status.Phase = corev1.PodPending
		m.ended[job.Name] = pod
	case 5: // the node dies
		m.run = func(*batchv1.Job) { w.set(m, string(corev1.NodeReady), corev1.ConditionUnknown, "") }
	case 6:
		m.run = func(job *batchv1.Job) { w.end(m, job, 0, `{"result":"problem","message":"bad"}`) }
	}
}

func conditionMessage(m *machine) string {
	c, _ := node.ConditionOf(m.Node, "GPUXidError")
	return c.Message
}

// meddle lets the rest of the world act on a node.
func (w *world) meddle(m *machine, r *rand.Rand, chance func(float64) bool, holds bool) {
	if chance(3) {
		w.fault(m, "GPUXidError", []string{ecc, lost, "", ""}[r.IntN(4)])
	}
	if chance(0.2) {
		w.fault(m, "GPUMemoryError", []string{ecc, dead, "", ""}[r.IntN(4)])
	}
	if chance(4) {
		pod := []corev1.Pod{gpuPod("p", "Job"), gpuPod("p", ""), cpuPod("p", "ReplicaSet"), cpuPod("p", "DaemonSet")}[r.IntN(4)]
		pod.Name = fmt.Sprintf("pod-%d", r.IntN(1000))
		m.pods = append(m.pods, pod)
	}
	if chance(10) && len(m.pods) > 0 {
		m.pods = m.pods[1:]
	}
	if chance(1) {
		m.silent = !m.silent
	}
	if chance(30) {
		m.silent = false
	}
	if !node.IsReady(m.Node) && chance(5) {
		w.reboot(m)
	}
	m.stalled = chance(10)
	if m.isQuarantined() && chance(1) {
		w.ask(m, []string{visit.RequestRepair, visit.RequestRepair, visit.RequestStop, visit.RequestRelease}[r.IntN(4)])
	}
	if m.isQuarantined() && chance(1) {
		if n, err := quarantine.ReleaseManually(m.Node, quarantine.Manual{}, nil, w.now); err == nil {
			m.Node = n
		}
	}
	if chance(0.3) {
		m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
		w.visit(m) // a person does it, not the moment in which the next step begins
	}
	if !holds {
		w.paused, w.breaker = "", false
		m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Value == "firmware" })
		return
	}
	if chance(0.5) {
		w.paused = []string{"", "audit"}[r.IntN(2)]
	}
	if chance(0.5) {
		w.breaker = r.IntN(2) == 0
	}
	if chance(0.5) && m.phase() != visit.Working {
		m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Value == "firmware" })
		if r.IntN(2) == 0 {
			m.Spec.Taints = append(m.Spec.Taints, taint(conditions.TaintMaintenance, "firmware"))
		}
	}
}
