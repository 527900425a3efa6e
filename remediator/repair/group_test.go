package repair

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const pairsSweep = `  sweeps:
    pairs: {every: 24h, template: preflight, args: [-unit=1], timeout: 30m, pairwise: {rounds: 4}}
  rules:`

// groupOf is a world in which three idle nodes are selected for a group, and one is not.
func groupOf(t testing.TB) *world {
	t.Helper()
	w := newWorld(t, parse(t, "  rules:", pairsSweep), "a", "b", "c", "d")
	w.templates["preflight"] = template("preflight", "-rank=$(RANK)", "-size=$(SIZE)", "-leader=$(LEADER)", "-rounds=$(ROUNDS)", "-node=$(NODE)")
	for _, m := range w.nodes {
		m.Status.Allocatable = requests("cpu", "nvidia.com/gpu")
	}
	w.choose("g", "a", "b", "c")
	return w
}

// choose selects nodes for a group, as the sweeper does.
func (w *world) choose(id string, nodes ...string) {
	for rank, name := range nodes {
		w.nodes[name].selected = &Selection{Sweep: "pairs", At: w.now, Group: Group{ID: id, Rank: rank, Size: len(nodes), Leader: "10.0.0.1"}}
	}
}

func (w *world) all(phase Phase, nodes ...string) func() bool {
	return func() bool {
		return !slices.ContainsFunc(nodes, func(name string) bool {
			m := w.nodes[name]
			if phase.Closed() {
				return m.phase() != "" || m.last().Phase != phase
			}
			return m.phase() != phase
		})
	}
}

// ends has the Jobs of the nodes end with a result.
func (w *world) ends(result repairresult.Kind, nodes ...string) {
	for _, name := range nodes {
		m := w.nodes[name]
		m.run = func(job *batchv1.Job) {
			w.end(m, job, int32(result.ExitCode()), fmt.Sprintf(`{"result":%q,"message":"rank of %s"}`, result, m.Name))
		}
	}
}

func TestAGroupIsCheckedTogether(t *testing.T) {
	w := groupOf(t)
	w.nodes["c"].selected = nil
	w.step(10 * time.Second)
	for range 3 {
		w.step(10 * time.Second)
		if len(w.created) > 0 || hasTaint(w.nodes["a"].Node, conditions.TaintMaintenance) {
			t.Fatal("it begins before the visits of all have begun")
		}
	}
	w.choose("g", "a", "b", "c")
	w.until("all work", time.Minute, func() bool { return len(w.created) == 3 })
	for _, m := range w.nodes {
		m.selected = nil
	}
	for rank, name := range []string{"a", "b", "c"} {
		m := w.nodes[name]
		for _, job := range m.jobs {
			want := fmt.Sprintf("-rank=%d -size=3 -leader=10.0.0.1 -rounds=4 -node=%s -unit=1", rank, name)
			if got := strings.Join(job.Spec.Template.Spec.Containers[0].Args, " "); got != want || job.Labels[conditions.LabelGroup] != "g" {
				t.Errorf("%s: args %s, labels %v", name, got, job.Labels)
			}
			if job.Spec.Template.Labels[conditions.LabelGroup] != "" {
				t.Error("the pod has what the template has not")
			}
		}
		if !hasTaint(m.Node, conditions.TaintMaintenance) {
			t.Errorf("%s has no taint", name)
		}
	}
	w.ends(repairresult.Healthy, "a", "b")
	w.until("two have run", time.Minute, w.all(Proving, "a", "b"))
	for range 10 {
		w.step(30 * time.Second)
	}
	if !w.all(Proving, "a", "b")() || len(w.nodes["a"].jobs) == 0 {
		t.Fatal("a node passes before its partners have run, or its Job is deleted with the report that it owns")
	}
	w.ends(repairresult.Problem, "c")
	w.until("all have run", time.Minute, w.all(Proving, "a", "b", "c"))
	ran := w.now
	w.fault(w.nodes["c"], conditions.SlowNode, "Inspect node: confirmed slow by run r/1, drop 0.50, seen by 2 partners")
	w.until("the others pass", 2*time.Minute, w.all(Passed, "a", "b"))
	if w.now.Sub(ran) < verdictTime {
		t.Errorf("they pass after %s: the verdict may not be out", w.now.Sub(ran))
	}
	for _, name := range []string{"a", "b", "c"} {
		m := w.nodes[name]
		if m.record().Swept["pairs"].IsZero() || hasTaint(m.Node, conditions.TaintMaintenance) || len(m.jobs) > 0 {
			t.Errorf("%s: %s, taints %v, %d Jobs", name, m.record(), m.Spec.Taints, len(m.jobs))
		}
	}
	if v := w.nodes["c"].last(); v.Phase != Failed || !w.happened("c NodeChecked", "SlowNode is a fault") {
		t.Errorf("%+v; %q", v, w.events)
	}
}

// What begins must be a record that can be read: else nothing would ever end it.
func TestAGroupWithoutAnAddressDoesNotBegin(t *testing.T) {
	for _, leader := range []string{"", "node-a.example", "fe80::1%eth0"} {
		w := groupOf(t)
		for _, m := range w.nodes {
			if m.selected != nil {
				m.selected.Group.Leader = leader
			}
		}
		w.step(10 * time.Second)
		for name, m := range w.nodes {
			if m.phase() != "" || m.selected != nil && (m.waiting == nil || !strings.Contains(m.waiting.Message, "which is no IP address")) {
				t.Errorf("leader %q: %s: %s, waits %+v", leader, name, m.record(), m.waiting)
			}
		}
	}
}

func hasTaint(n *corev1.Node, key string) bool {
	return slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

func TestAMemberHasLeftOnceItEnds(t *testing.T) {
	for want, members := range map[bool][]Member{
		true:  {{Phase: Ending}, {Phase: Yielded}, {Phase: Refused}, {Phase: Failed}, {Phase: Failed, Result: repairresult.Healthy}},
		false: {{Phase: Emptying}, {Phase: Working}, {Phase: Proving}, {Phase: Passed}, {Phase: Failed, Result: repairresult.Problem}},
	} {
		for _, m := range members {
			if m.hasLeft() != want {
				t.Errorf("%+v: %t", m, !want)
			}
		}
	}
}

// A problem that no verdict confirms is no check of the node.
func TestAProblemWithoutAVerdictIsNoCheck(t *testing.T) {
	w := groupOf(t)
	w.ends(repairresult.Healthy, "a", "b")
	w.ends(repairresult.Problem, "c")
	w.until("two pass", 5*time.Minute, w.all(Passed, "a", "b"))
	w.until("one could not run", time.Minute, w.all(Failed, "c"))
	if r := w.nodes["c"].record(); !r.Swept["pairs"].IsZero() || !strings.Contains(r.Last[0].Outcome, "there is no verdict") {
		t.Error(r)
	}
}

// Whatever takes one node out of a group ends the visits of the others, and nothing of them has failed.
func TestAGroupEndsAsAWhole(t *testing.T) {
	for name, leave := range map[string]func(w *world, m *machine){
		"a pod waits":    func(_ *world, m *machine) { m.awaited = "ml/train" },
		"a pod has come": func(_ *world, m *machine) { m.pods = append(m.pods, gpuPod("train", "Job")) },
		"a person stops it": func(w *world, m *machine) {
			r := m.record()
			r.Request = &Request{Kind: RequestStop, At: w.now}
			m.Annotations[conditions.AnnotationRepair] = r.String()
		},
		"the node is skipped":   func(_ *world, m *machine) { m.Labels = map[string]string{conditions.LabelSkip: "true"} },
		"the node is cordoned":  func(_ *world, m *machine) { m.Spec.Unschedulable = true },
		"its Job cannot run":    func(w *world, m *machine) { w.ends(repairresult.Failed, m.Name) },
		"its Job is refused":    func(w *world, m *machine) { w.ends(repairresult.Refused, m.Name) },
		"the node is deleted":   func(w *world, m *machine) { delete(w.nodes, m.Name) },
		"the node is replaced":  func(_ *world, m *machine) { m.UID = "another"; m.Annotations = nil },
		"it becomes unhealthy":  func(w *world, m *machine) { w.fault(m, "GPUXidError", lost) },
		"its record is removed": func(_ *world, m *machine) { m.Annotations = nil },
	} {
		for phase, arrive := range map[Phase]func(w *world){
			Emptying: func(w *world) {
				w.nodes["c"].selected = nil
				w.until("the visits have begun", time.Minute, w.all(Emptying, "a", "b"))
			},
			Working: func(w *world) {
				w.until("the Jobs run", time.Minute, func() bool { return len(w.created) == 3 })
			},
			Proving: func(w *world) {
				w.ends(repairresult.Healthy, "a", "c")
				w.until("the others have run", time.Minute, w.all(Proving, "a", "c"))
			},
		} {
			noJob := phase == Emptying && strings.HasPrefix(name, "its Job")
			if noJob || phase != Emptying && name == "it becomes unhealthy" { // the engine ignores conditions while the taint stands
				continue
			}
			t.Run(name+" while "+string(phase), func(t *testing.T) {
				w := groupOf(t)
				arrive(w)
				m := w.nodes["b"]
				m.selected = nil
				leave(w, m)
				others := []string{"a"}
				if phase != Emptying {
					others = append(others, "c")
				}
				most := time.Minute
				if m.Annotations == nil || w.nodes["b"] == nil {
					most = 3 * time.Minute // it may only be late
				}
				if phase == Emptying && name == "a pod has come" {
					w.choose("g", "a", "b", "c")
				}
				w.until("the others have ended", most, func() bool {
					if phase == Emptying && (len(w.nodes["a"].jobs) > 0 || name == "a pod has come" && hasTaint(m.Node, conditions.TaintMaintenance)) {
						t.Fatal("a Job has begun")
					}
					return w.all(Yielded, others...)()
				})
				for _, name := range others {
					m := w.nodes[name]
					if r := m.record(); !r.Swept["pairs"].IsZero() || r.Checked != nil || hasTaint(m.Node, conditions.TaintMaintenance) || len(m.jobs) > 0 {
						t.Errorf("%s: %s, taints %v", name, r, m.Spec.Taints)
					}
				}
				if !w.happened("a SweepYielded", "the group has ended") {
					t.Errorf("events %q", w.events)
				}
			})
		}
	}
}

// A remediator that dies while a group begins leaves nothing that hangs: the visits end after two minutes, and before that no node has the taint.
func TestAGroupThatDoesNotComeTogetherEnds(t *testing.T) {
	for begun := 1; begun < 3; begun++ {
		w := groupOf(t)
		names := []string{"a", "b", "c"}
		for _, name := range names[begun:] {
			w.nodes[name].selected = nil
		}
		began := w.now
		w.until("they begin", time.Minute, w.all(Emptying, names[:begun]...))
		for _, m := range w.nodes {
			m.selected = nil
		}
		w.until("they end", 3*time.Minute, func() bool {
			for _, m := range w.nodes {
				if hasTaint(m.Node, conditions.TaintMaintenance) {
					t.Fatalf("%s has the taint", m.Name)
				}
			}
			return w.all(Yielded, names[:begun]...)()
		})
		if w.now.Sub(began) < groupTimeout {
			t.Errorf("they ended after %s", w.now.Sub(began))
		}
	}
}

// What may be in the way for long begins no visit: a group would end, and the next one begin, again and again.
func TestAGroupIsNotOpenedInVain(t *testing.T) {
	t.Run("there is no template", func(t *testing.T) {
		w := groupOf(t)
		delete(w.templates, "preflight")
		w.never("a visit begins", time.Minute, func() bool { return w.nodes["a"].record().Current != nil })
		if got := w.nodes["a"].waiting; got == nil || !strings.Contains(got.Message, "no PodTemplate preflight") {
			t.Errorf("it waits for %+v", got)
		}
	})
	t.Run("a pod of an earlier visit hangs", func(t *testing.T) {
		w := groupOf(t)
		m := w.nodes["b"]
		hung := cpuPod("hung", "Job")
		hung.Namespace = conditions.RepairNamespace
		m.pods = append(m.pods, hung)
		w.until("the others have begun", time.Minute, w.all(Emptying, "a", "c"))
		if r := m.record(); r.Current != nil || len(r.Last) > 0 || m.waiting == nil || !strings.Contains(m.waiting.Message, "/hung has not ended") {
			t.Errorf("%s, waits for %+v", r, m.waiting)
		}
		m.pods = nil
		w.until("all work", time.Minute, func() bool { return len(w.created) == 3 })
	})
}

// Jobs lose their partner before the remediator knows that it has left.
func TestAJobThatEndsWithItsPartnerHasNotFailed(t *testing.T) {
	w := groupOf(t)
	w.until("the Jobs run", time.Minute, func() bool { return len(w.created) == 3 })
	w.ends(repairresult.Failed, "a", "b")
	r := w.nodes["c"].record() // it is looked at after the others
	r.Request = &Request{Kind: RequestStop, At: w.now}
	w.nodes["c"].Annotations[conditions.AnnotationRepair] = r.String()
	w.until("the others have ended", time.Minute, w.all(Yielded, "a", "b"))
	if w.happened("could not run") {
		t.Errorf("%q", w.events)
	}

	w = groupOf(t)
	w.until("the Jobs run", time.Minute, func() bool { return len(w.created) == 3 })
	w.ends(repairresult.Failed, "a")
	w.until("it has failed by itself", time.Minute, w.all(Failed, "a"))
}

// The verdict is about the node that has it; its partners pass, also when their visits are looked at later.
func TestAVerdictEndsNoGroup(t *testing.T) {
	w := groupOf(t)
	w.ends(repairresult.Healthy, "a", "b", "c")
	w.until("all have run", time.Minute, w.all(Proving, "a", "b", "c"))
	w.fault(w.nodes["a"], conditions.SlowNode, "Inspect node: confirmed slow by run r/1, drop 0.50, seen by 2 partners")
	w.until("it has failed", 2*time.Minute, w.all(Failed, "a"))
	w.until("the others pass", time.Minute, w.all(Passed, "b", "c"))
	if w.nodes["b"].record().Swept["pairs"].IsZero() {
		t.Error("the check does not count")
	}
}

// What a person asks for is done once the Job has begun.
func TestARequestOutlastsAGroupThatDoesNotBegin(t *testing.T) {
	w := groupOf(t)
	m := w.nodes["a"]
	r := m.record()
	r.V, r.NodeUID, r.Request = recordVersion, m.UID, &Request{Kind: RequestCheck, At: w.now}
	m.Annotations = map[string]string{conditions.AnnotationRepair: r.String()}
	w.nodes["c"].selected = nil
	w.until("it has begun", time.Minute, w.all(Emptying, "a", "b"))
	w.until("it has ended", 5*time.Minute, w.all(Yielded, "a", "b"))
	if m.record().Request == nil {
		t.Fatal("the request is dropped")
	}
	w.step(time.Minute)
	w.choose("h", "a", "b", "c")
	w.until("all work", time.Minute, w.all(Working, "a", "b", "c"))
	if m.record().Request != nil {
		t.Error("the request stays")
	}
}

// The records of the other nodes are input: no visit waits longer than their Jobs may take.
func TestAVisitDoesNotWaitForeverForItsGroup(t *testing.T) {
	w := groupOf(t)
	w.ends(repairresult.Healthy, "a", "b")
	w.until("two have run", time.Minute, w.all(Proving, "a", "b"))
	for name, c := range map[string]Member{
		"a Job that does not end":  {Node: "c", Phase: Working, Since: w.now},
		"a time that is far ahead": {Node: "c", Phase: Proving, Since: w.now.Add(240 * time.Hour), Result: repairresult.Healthy},
	} {
		f := w.facts(w.nodes["a"])
		f.Members = append(slices.DeleteFunc(f.Members, func(m Member) bool { return m.Node == "c" }), c)
		limit := f.Record.Current.PhaseSince.Add(StartTimeout + 30*time.Minute + groupTimeout)
		if r := Next(w.policy, f, limit.Add(-time.Second)).Record; r.Current == nil {
			t.Errorf("%s: it ends before the Jobs must have ended: %s", name, r)
		}
		if r := Next(w.policy, f, limit).Record; r.Current != nil || r.Last[0].Phase != Yielded {
			t.Errorf("%s: it waits on: %s", name, r)
		}
	}
}

// Random groups: processes die after patches, nodes leave, Jobs fail. Nothing hangs, and no taint stays.
func TestRandomGroupsEnd(t *testing.T) {
	seen := map[Phase]int{}
	for seed := range 60 {
		r := rand.New(rand.NewPCG(uint64(seed), 5))
		w := groupOf(t)
		for _, name := range []string{"a", "b", "c"} {
			m := w.nodes[name]
			if r.IntN(8) == 0 {
				m.selected = nil
			}
			w.ends([]repairresult.Kind{repairresult.Healthy, repairresult.Healthy, repairresult.Healthy, repairresult.Healthy, repairresult.Problem, repairresult.Failed}[r.IntN(6)], name)
		}
		for i := range 60 {
			for _, m := range w.nodes {
				m.stalled = i < 40 && r.IntN(4) == 0
				if m.awaited = ""; i < 40 && r.IntN(150) == 0 {
					m.awaited = "ml/train"
				}
			}
			w.step(time.Duration(5+r.IntN(25)) * time.Second)
			if i == 3 {
				for _, m := range w.nodes {
					m.selected = nil
				}
			}
		}
		passed, left := 0, 0
		for _, m := range w.nodes {
			if m.phase() != "" || hasTaint(m.Node, conditions.TaintMaintenance) || len(m.jobs) > 0 {
				t.Fatalf("seed %d: %s: %s, taints %v", seed, m.Name, m.record(), m.Spec.Taints)
			}
			if v := m.last(); v.ID != "" {
				seen[v.Phase]++
				switch v.Phase {
				case Passed:
					passed++
				case Yielded:
					left++
				}
			}
		}
		if passed > 0 && left > 0 {
			t.Fatalf("seed %d: %d nodes have passed, and %d have left: %q", seed, passed, left, w.events)
		}
	}
	if seen[Passed] < 20 || seen[Yielded] < 20 || seen[Failed] < 10 {
		t.Errorf("%v", seen)
	}
}

func pairs(change ...func(*policy.Sweep)) policy.Sweep {
	s := weekly(func(s *policy.Sweep) {
		s.Name, s.Pairwise = "pairs", &policy.Pairwise{Rounds: 5, MinNodes: 3, MaxNodes: 6}
	})
	for _, f := range change {
		f(&s)
	}
	return s
}

func TestPlanGroups(t *testing.T) {
	const due, soon, fresh = 8 * day, 5 * day, day
	busy := looked(time.Hour, 0)
	tests := map[string]struct {
		nodes   []SweepNode
		awaited map[string]time.Duration
		want    string
		look    string
	}{
		"nothing is due": {nodes: []SweepNode{unchecked("a", soon), unchecked("b", soon), unchecked("c", soon)}},
		"the longest unchecked leads": {
			nodes: []SweepNode{unchecked("a", due), unchecked("b", due+2*day), unchecked("c", due+day)}, want: "b c a",
		},
		"those that are due soon join": {
			nodes: []SweepNode{unchecked("a", soon), unchecked("b", due), unchecked("c", soon+1), unchecked("d", soon-1), unchecked("e", fresh)}, want: "b c a d",
		},
		"others only fill it up": {
			nodes: []SweepNode{unchecked("a", due), unchecked("b", fresh), unchecked("c", fresh+1), unchecked("d", fresh+2)}, want: "a d c",
		},
		"too few are idle": {
			nodes: []SweepNode{unchecked("a", due), unchecked("b", due), unchecked("c", due, busy)}, look: "c",
		},
		"no more than maxNodes": {
			nodes: []SweepNode{unchecked("a", due+7), unchecked("b", due+6), unchecked("c", due+5), unchecked("d", due+4), unchecked("e", due+3), unchecked("f", due+2), unchecked("g", due+1)},
			want:  "a b c d e f",
		},
		"one that is not idle yet is waited for": {
			nodes: []SweepNode{unchecked("a", due), unchecked("b", due), unchecked("c", due), unchecked("d", due, looked(0, time.Minute))},
			// an hour of idle nodes is long enough
			want: "a b c",
		},
		"and not long": {
			nodes: []SweepNode{unchecked("a", due, looked(0, 11*time.Minute)), unchecked("b", due, looked(0, 11*time.Minute)), unchecked("c", due, looked(0, 11*time.Minute)), unchecked("d", due, looked(0, time.Minute))},
		},
		"a look of long ago does not count": {
			nodes: []SweepNode{unchecked("a", due, looked(6*time.Minute, time.Hour)), unchecked("b", due), unchecked("c", due)}, look: "a",
		},
		"nor one of before its last visit": {
			nodes: []SweepNode{unchecked("a", due, func(n *SweepNode) {
				n.Record.Last = []Visit{{Kind: Sweep, Sweep: "pairs", Phase: Yielded, EndedAt: noon}}
			}), unchecked("b", due), unchecked("c", due)},
		},
		"a group is under way": {
			nodes: []SweepNode{unchecked("a", due), unchecked("b", due), unchecked("c", due), unchecked("d", due, func(n *SweepNode) {
				n.Record.Current = &Visit{Kind: Sweep, Sweep: "pairs", Phase: Working}
			})},
		},
		"a person asks": {
			nodes: []SweepNode{unchecked("a", soon), unchecked("b", fresh, func(n *SweepNode) { n.Record.Request = &Request{Kind: RequestCheck} }), unchecked("c", fresh)},
			want:  "b a c",
		},
		"a pod waits for a node": {
			nodes:   []SweepNode{unchecked("a", due), unchecked("b", soon), unchecked("c", soon), unchecked("d", soon)},
			awaited: map[string]time.Duration{"b": 2 * time.Hour}, want: "a c d",
		},
		"a pod that does not come keeps no late node": {
			nodes:   []SweepNode{unchecked("a", due), unchecked("b", due), unchecked("c", due)},
			awaited: map[string]time.Duration{"a": 2 * time.Hour, "b": time.Hour, "c": time.Hour}, want: "a b c",
		},
		"no node is looked at while the due ones are busy": {
			nodes: []SweepNode{unchecked("a", due, looked(time.Minute, 0)), unchecked("b", soon, looked(time.Minute, time.Hour)), unchecked("c", soon, looked(time.Minute, time.Hour))},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			plan := PlanSweeps([]policy.Sweep{pairs()}, tt.nodes, func(node string) time.Time {
				if i := slices.IndexFunc(tt.nodes, func(n SweepNode) bool { return n.Name == node }); (queued{SweepNode: tt.nodes[i]}).wasBusy() {
					t.Errorf("%s is busy and compared with every pod that waits", node)
				}
				if ago, ok := tt.awaited[node]; ok {
					return noon.Add(-ago)
				}
				return time.Time{}
			}, noon)
			got := ""
			if len(plan.Groups) > 0 {
				got = strings.Join(plan.Groups[0].Nodes, " ")
			}
			if got != tt.want || len(plan.Start) > 0 {
				t.Errorf("group %q, want %q; start %v", got, tt.want, plan.Start)
			}
			if look := strings.Join(plan.Look, " "); look != tt.look {
				t.Errorf("looks at %q, want %q", look, tt.look)
			}
		})
	}
}

func TestAGroupIsUrgentIfOneOfItsNodesIs(t *testing.T) {
	for want, first := range map[bool]time.Duration{true: week + 1, false: week - 1} {
		plan := PlanSweeps([]policy.Sweep{pairs()}, []SweepNode{unchecked("a", first), unchecked("b", day), unchecked("c", day)}, notAwaited, noon)
		if len(plan.Groups) != 1 || plan.Groups[0].Urgent != want {
			t.Errorf("first unchecked for %s: %+v", first, plan.Groups)
		}
	}
}

// It costs a look at all pods that wait to know whether one could run on a node.
func TestABusyNodeIsNotComparedWithPodsThatWait(t *testing.T) {
	nodes := []SweepNode{unchecked("a", 8*day, looked(time.Hour, 0)), unchecked("b", 8*day), unchecked("c", 8*day), unchecked("d", 8*day)}
	asked := map[string]bool{}
	plan := PlanSweeps([]policy.Sweep{pairs()}, nodes, func(name string) time.Time {
		asked[name] = true
		return time.Time{}
	}, noon)
	if asked["a"] || len(asked) != 3 || len(plan.Groups) != 1 || !slices.Equal(plan.Look, []string{"a"}) {
		t.Errorf("asked for %v: %+v", asked, plan)
	}
}

// The largest group comes together although few nodes are looked at at a time, and as one.
func TestTheLargestGroupComesTogether(t *testing.T) {
	sweeps := []policy.Sweep{pairs(func(s *policy.Sweep) { s.Pairwise.MaxNodes = policy.MaxGroup }), weekly()}
	var nodes []SweepNode
	for i := range 200 {
		nodes = append(nodes, unchecked(fmt.Sprint("n", 100+i), 8*day, func(n *SweepNode) { n.Idle = Idle{} }))
	}
	for now := noon; ; now = now.Add(LookEvery) {
		if now.Sub(noon) > time.Hour {
			t.Fatal("there is no group within an hour")
		}
		for range 2 {
			plan := PlanSweeps(sweeps, nodes, notAwaited, now)
			if len(plan.Look) > 2*maxLooks {
				t.Fatalf("%d looks", len(plan.Look))
			}
			for i := range nodes {
				if slices.Contains(plan.Look, nodes[i].Name) {
					nodes[i].Idle = nodes[i].Idle.Seen(false, now)
				}
			}
			if len(plan.Groups) == 0 {
				continue
			}
			if n := len(plan.Groups[0].Nodes); n < policy.MaxGroup-2 { // the other sweep has taken two
				t.Errorf("%d nodes after %s", n, now.Sub(noon))
			}
			return
		}
	}
}

func TestAForgedGroupIsRefused(t *testing.T) {
	good := func() Visit {
		return Visit{ID: "v", Kind: Sweep, Phase: Emptying, Sweep: "pairs", Group: Group{ID: "g", Size: 3, Leader: "10.0.0.1"}}
	}
	parses := func(v Visit) error {
		_, err := ParseRecord((&Record{V: recordVersion, Current: &v}).String())
		return err
	}
	if err := parses(good()); err != nil {
		t.Fatal(err)
	}
	for want, forge := range map[string]func(*Visit){
		"has rank 3 of 3":  func(v *Visit) { v.Group.Rank = 3 },
		"has rank -1":      func(v *Visit) { v.Group.Rank = -1 },
		"of 65":            func(v *Visit) { v.Group.Size = 65 },
		"of 2":             func(v *Visit) { v.Group.Size = 2 },
		"the group \"\"":   func(v *Visit) { v.Group.ID = "" },
		"the group \"a b":  func(v *Visit) { v.Group.ID = "a b" },
		"no IP address":    func(v *Visit) { v.Group.Leader = "10.0.0.1; reboot" },
		"the result":       func(v *Visit) { v.Group.Result = "done" },
		"validation \"v\"": func(v *Visit) { v.Kind = Validation },
	} {
		v := good()
		forge(&v)
		if err := parses(v); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}
