package repair

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// kept is a node during a visit, as the API server has it.
type kept struct {
	Now    time.Time
	Policy string
	Node   *corev1.Node
	Jobs   map[string]*batchv1.Job `json:",omitempty"`
	// Ended are the pods of the Jobs.
	Ended map[string]corev1.Pod `json:",omitempty"`
	Pods  []corev1.Pod          `json:",omitempty"`
}

func (w *world) keep(m *machine) kept {
	return kept{Now: w.now, Policy: testPolicy, Node: m.DeepCopy(), Jobs: maps.Clone(m.jobs), Ended: maps.Clone(m.ended)}
}

// answered is what a new process does about a node, and what becomes of it.
type answered struct {
	Kind    visit.Kind
	Phase   visit.Phase
	Events  []string
	Waits   string
	Taints  []string
	KeepJob string
	After   string
	// Creates, Visits, Repairs and the rest are of the end.
	Creates    []string
	Visits     []string
	Repairs    string
	AllEvents  []string
	Quarantine causes.Phase
	ReleasedBy string
	LastTaints []string
}

// goldens are moments of visits: how each is made.
var goldens = map[string]func(*testing.T) kept{
	"repair-emptying":   func(t *testing.T) kept { return during(t, ecc, visit.Repair, visit.Emptying, "") },
	"reset-working":     func(t *testing.T) kept { return during(t, ecc, visit.Repair, visit.Working, "reset-gpu") },
	"reset-proving":     func(t *testing.T) kept { return during(t, ecc, visit.Repair, visit.Proving, "reset-gpu") },
	"reboot-working":    func(t *testing.T) kept { return during(t, lost, visit.Repair, visit.Working, "reboot") },
	"reboot-ending":     endingReboot,
	"reboot-proving":    func(t *testing.T) kept { return during(t, lost, visit.Repair, visit.Proving, "reboot") },
	"validation-begins": func(t *testing.T) kept { return during(t, ecc, visit.Validation, visit.Emptying, "") },
	"validation-works":  func(t *testing.T) kept { return during(t, ecc, visit.Validation, visit.Working, "check") },
	"sweep-begins":      func(t *testing.T) kept { return sweeping(t, false) },
	"sweep-works":       func(t *testing.T) kept { return sweeping(t, true) },
	"closed":            closed,
	"given-up":          givenUp,
	"requested":         requested,
}

// during is a node at the first moment of a phase, between two patches.
func during(t *testing.T, message string, kind visit.Kind, phase visit.Phase, template string) kept {
	w, m := sick(t, message)
	m.run = w.cures(m)
	return w.stopAt(m, func(v *visit.Visit) bool {
		return v.Kind == kind && v.Phase == phase && (template == "" || v.Template == template) && (phase != visit.Working || v.JobUID != "")
	})
}

// stopAt lets time pass until the visit is as asked for.
func (w *world) stopAt(m *machine, is func(*visit.Visit) bool) kept {
	for range 1000 {
		w.now = w.now.Add(10 * time.Second)
		w.kubelet(m)
		w.engine(m)
		for more := true; more; {
			more = w.visitOnce(m)
			if v := m.record().Current; v != nil && is(v) {
				return w.keep(m)
			}
		}
	}
	w.Fatalf("no such visit; events:\n%s", strings.Join(w.events, "\n"))
	return kept{}
}

func endingReboot(t *testing.T) kept {
	w, m := releasedMidway(t, lost)
	k := w.keep(m)
	k.Pods = m.pods
	return k
}

const withSweep = "sweeps:\n    weekly: {every: 168h, template: check, args: [-level, \"2\"]}\n  repair:"

func sweeping(t *testing.T, hasJob bool) kept {
	w := newWorld(t, parse(t, "repair:", withSweep), "a")
	m := w.nodes["a"]
	m.Status.Allocatable = requests("cpu", "nvidia.com/gpu")
	w.step(time.Minute)
	m.selected = &Selection{Sweep: "weekly", At: w.now}
	k := w.stopAt(m, func(v *visit.Visit) bool {
		return v.Kind == visit.Sweep && (v.JobUID != "") == hasJob
	})
	k.Policy = strings.Replace(testPolicy, "repair:", withSweep, 1)
	return k
}

func closed(t *testing.T) kept {
	w, m := sick(t, ecc)
	m.run = w.cures(m)
	w.untilClosed(m, visit.Validation, visit.Passed)
	return w.keep(m)
}

func givenUp(t *testing.T) kept {
	w, m := sick(t, ecc)
	m.run = w.exits(m, 1, `{"result":"failed","message":"no"}`)
	w.until("it is given up", 6*time.Hour, func() bool { return m.record().Current == nil && len(m.record().Last) > 0 })
	return w.keep(m)
}

func requested(t *testing.T) kept {
	w := newWorld(t, parse(t, "mode: auto", "mode: approve"), "a")
	m := w.nodes["a"]
	w.step(time.Minute)
	w.fault(m, "GPUXidError", ecc)
	w.step(time.Minute)
	w.ask(m, visit.RequestRepair)
	k := w.keep(m)
	k.Policy = strings.Replace(testPolicy, "mode: auto", "mode: approve", 1)
	return k
}

func TestGoldenVisits(t *testing.T) {
	for name, made := range goldens {
		t.Run(name, func(t *testing.T) {
			k := goldentest.Read(t, "visits/"+name, made)
			r, err := visit.RecordOf(k.Node)
			if err != nil {
				t.Fatal(err)
			}
			if r.String() != k.Node.Annotations[conditions.AnnotationRepair] {
				t.Errorf("reads %s\nand writes %s", k.Node.Annotations[conditions.AnnotationRepair], r)
			}
			goldentest.Answer(t, "visits/"+name, k.goesOn(t))
		})
	}
}

func (k kept) goesOn(t *testing.T) (a answered) {
	p, err := policy.Parse([]byte(k.Policy))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, p, k.Node.Name)
	m := w.nodes[k.Node.Name]
	m.Node, m.pods, w.now = k.Node, k.Pods, k.Now
	m.jobs, m.ended = orEmpty(k.Jobs), orEmpty(k.Ended)
	w.onCreate = func(_ *machine, job *batchv1.Job) {
		a.Creates = append(a.Creates, job.Labels[conditions.LabelTemplate])
	}
	f := w.facts(m)
	if v := m.record().Current; v != nil && v.Kind != visit.Sweep && v.MayHaveJob() {
		f.Live = w.live(m, f) // 19f658c decided these steps without, and had none yet where it had to read first
	}
	a.After = Next(p, f, w.now).After.String()
	w.visit(m)
	a.KeepJob = strings.Join(slices.Sorted(maps.Keys(m.jobs)), " ")
	if v := m.record().Current; v != nil {
		a.Kind, a.Phase = v.Kind, v.Phase
	}
	if m.waiting != nil {
		a.Waits = m.waiting.Reason
	}
	a.Events, a.Taints = reasons(w.events), taintsOf(m.Node)
	m.run = w.cures(m)
	for end := w.now.Add(2 * time.Hour); w.now.Before(end); {
		if m.phase() != "" {
			w.step(10 * time.Second)
		} else {
			w.step(2 * time.Minute)
		}
	}
	for _, v := range slices.Backward(m.record().Last) {
		a.Visits = append(a.Visits, string(v.Kind)+" "+string(v.Phase))
	}
	if v := m.record().Current; v != nil {
		t.Errorf("%s has not ended: %s", v.Kind, v.Phase)
	}
	a.Repairs, a.AllEvents, a.LastTaints = m.done(), reasons(w.events), taintsOf(m.Node)
	if q := m.quarantine(); q != nil {
		a.Quarantine, a.ReleasedBy = q.Phase, q.ReleasedBy
	}
	return a
}

func orEmpty[V any](m map[string]V) map[string]V {
	if m == nil {
		return map[string]V{}
	}
	return m
}

func reasons(events []string) (list []string) {
	for _, e := range events {
		head, _, _ := strings.Cut(e, ": ")
		list = append(list, head)
	}
	return list
}

func taintsOf(n *corev1.Node) (list []string) {
	for _, taint := range n.Spec.Taints {
		list = append(list, taint.ToString())
	}
	return list
}
