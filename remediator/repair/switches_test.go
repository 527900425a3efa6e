package repair

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
	"github.com/pitcrew-dev/pitcrew/remediator/switchtest"
)

// flip puts a switch on, and returns what puts it off again. The limit of this test is the place of another node.
func (w *world) flip(m *machine, by string, change []string) (off func()) {
	before := w.policy
	parsed := func(more ...string) func() {
		w.policy = parse(w, append(slices.Clone(change), more...)...)
		return func() { w.policy = before }
	}
	switch by {
	case switchtest.Observe:
		return parsed("mode: enforce", "mode: observe")
	case switchtest.RuleObserve:
		return parsed("    xid:\n", "    xid:\n      mode: observe\n")
	case switchtest.RuleGone:
		return parsed("    xid:\n      match: {condition: GPUXidError,", "    other:\n      match: {condition: DCGMDiagFailed,")
	case switchtest.Approve:
		return parsed("mode: auto", "mode: approve")
	case switchtest.Off:
		return parsed("mode: auto", `mode: "off"`)
	case switchtest.Pause:
		w.paused = "a person"
		return func() { w.paused = "" }
	case switchtest.Breaker:
		w.breaker = true
		return func() { w.breaker = false }
	case switchtest.Limit:
		other := w.nodes["b"]
		return func() { other.run = w.cures(other) }
	case switchtest.Skip:
		m.Labels[conditions.LabelSkip] = "true"
		return func() { delete(m.Labels, conditions.LabelSkip) }
	case switchtest.Others:
		m.Spec.Taints = append(m.Spec.Taints, corev1.Taint{Key: "karpenter.sh/disrupted", Effect: corev1.TaintEffectNoSchedule})
		return func() {
			m.Spec.Taints = slices.DeleteFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "karpenter.sh/disrupted" })
		}
	}
	w.Fatalf("no switch %q", by)
	return nil
}

// visitAction is what a visit does to node a.
type visitAction struct {
	// change is that of the policy.
	change []string
	// prepare makes a node one on which the action begins as soon as it is Ready.
	prepare func(w *world, m *machine)
	// turn is done before each step.
	turn func(w *world)
	// template is that of its Job; empty: it is an eviction, unless done reports whether it has begun.
	template string
	done     func(m *machine) bool
}

func (a visitAction) world(t *testing.T, limited bool) (*world, *machine) {
	w := newWorld(t, parse(t, a.change...), "a", "b")
	w.policy.Breaker.MaxNodes = 50
	for _, m := range w.nodes {
		m.Labels = map[string]string{}
		m.Status.Allocatable = requests("nvidia.com/gpu")
		w.set(m, string(corev1.NodeReady), corev1.ConditionFalse, "")
	}
	w.step(time.Minute)
	if limited {
		other := w.nodes["b"]
		a.prepare(w, other)
		w.set(other, string(corev1.NodeReady), corev1.ConditionTrue, "")
		w.until("the other node has its Job, or its pod is evicted", 3*time.Hour, a.doneOn(w, other))
		w.until("it has its place for long", time.Hour, func() bool { return len(other.jobs) > 0 && other.phase() == visit.Working })
		r := other.record().Clone(other.Node)
		r.Current.Deadline = w.now.Add(24 * time.Hour)
		r.Put(other.Node)
		w.evicted = 0
	}
	m := w.nodes["a"]
	a.prepare(w, m)
	return w, m
}

// doneOn returns a test of whether the action has begun on a node.
func (a visitAction) doneOn(w *world, m *machine) func() bool {
	return func() bool {
		if a.turn != nil {
			a.turn(w)
		}
		switch {
		case a.done != nil:
			return a.done(m)
		case a.template == "":
			return w.evicted > 0
		}
		for _, job := range m.jobs {
			if job.Labels[conditions.LabelTemplate] == a.template {
				return true
			}
		}
		return false
	}
}

// happens reports whether the action begins within some hours.
func (a visitAction) happens(w *world, m *machine) bool {
	done := a.doneOn(w, m)
	for end := w.now.Add(3 * time.Hour); w.now.Before(end); w.step(30 * time.Second) {
		if done() {
			return true
		}
	}
	return done()
}

func (a visitAction) effect(t *testing.T, by string) (e switchtest.Effect) {
	w, m := a.world(t, by == switchtest.Limit)
	off := w.flip(m, by, a.change)
	w.set(m, string(corev1.NodeReady), corev1.ConditionTrue, "")
	if e.Next = switchtest.Begins; !a.happens(w, m) {
		e.Next = switchtest.Waits
		off()
		switch q := m.quarantine(); {
		case a.happens(w, m):
		case q != nil && q.Phase == causes.Released:
			e.Next = switchtest.LeftOut
		default:
			t.Errorf("it does not begin once the switch is off: %+v\n%s", m.waiting, strings.Join(w.events, "\n"))
		}
	}
	if a.template == "" && a.done == nil {
		return e
	}
	w, m = a.world(t, false)
	w.set(m, string(corev1.NodeReady), corev1.ConditionTrue, "")
	if !a.happens(w, m) {
		t.Fatalf("it does not begin without the switch: %+v\n%s", m.waiting, strings.Join(w.events, "\n"))
	}
	if by != switchtest.Limit { // where it has its place
		w.flip(m, by, a.change)
	}
	for range 8 {
		w.step(30 * time.Second)
	}
	if e.UnderWay = switchtest.GoesOn; !a.doneOn(w, m)() {
		e.UnderWay = switchtest.Ends
	}
	return e
}

func reports(message string) func(*world, *machine) {
	return func(w *world, m *machine) { w.fault(m, "GPUXidError", message) }
}

func TestWhatASwitchDoesToARepair(t *testing.T) {
	for name, action := range map[string]visitAction{
		"reset":  {nil, reports(ecc), nil, "reset-gpu", nil},
		"reboot": {nil, reports(lost), nil, "reboot", nil},
		// The labels of a node whose exporter does not leave it, so that there is no Job yet.
		"labels of the GPU operator": {nil, func(w *world, m *machine) {
			w.templates["reset-gpu"].Annotations = map[string]string{conditions.AnnotationPauses: conditions.PausesGPUOperator}
			m.Labels[exporter] = "true"
			if m.Name == "a" {
				pod := cpuPod("exporter", "DaemonSet")
				pod.Spec.NodeSelector = map[string]string{exporter: "true"}
				m.pods = []corev1.Pod{pod}
			}
			w.fault(m, "GPUXidError", ecc)
		}, nil, "", func(m *machine) bool { return m.Labels[exporter] == operator.Paused }},
		"eviction": {[]string{"lemon:", "drain: {mode: evict, timeout: 2h}\n    lemon:"}, func(w *world, m *machine) {
			m.pods = append(m.pods, gpuPod("train", "ReplicaSet"))
			w.fault(m, "GPUXidError", ecc)
		}, nil, "", nil},
	} {
		t.Run(name, func(t *testing.T) { switchtest.Check(t, name, action.effect) })
	}
}

func TestWhatASwitchDoesToAValidation(t *testing.T) {
	switchtest.Check(t, "validation", visitAction{nil, func(w *world, m *machine) {
		w.fault(m, "GPUXidError", ecc)
		w.until("quarantined", time.Hour, m.isQuarantined)
		w.fault(m, "GPUXidError", "")
	}, nil, "check", nil}.effect)
}

// The Job that collects is created where that of the first action would be. It has no label of a visit, so none deletes it.
func TestWhatASwitchDoesToTheEvidenceBeforeARepair(t *testing.T) {
	collected := map[string]bool{}
	change := []string{"actions:", "collect: {template: collect}\n    actions:"}
	switchtest.Check(t, "evidence before a repair", visitAction{change, func(w *world, m *machine) {
		clear(collected)
		w.onCreate = func(m *machine, _ *batchv1.Job) {
			name := bundle.ForVisit(w.policy, m.Node, m.record().Current, w.now)
			job := bundle.NewJob(&corev1.PodTemplate{}, m.Name, name, time.Hour)
			collected[m.Name] = collected[m.Name] || name != "" && job.Labels[conditions.LabelVisit] == ""
		}
		w.fault(m, "GPUXidError", ecc)
	}, nil, "", func(m *machine) bool { return collected[m.Name] }}.effect)
}

func TestWhatASwitchDoesToASweep(t *testing.T) {
	idle := map[string]sweep.Idle{}
	plan := func(w *world) {
		var nodes []sweep.Node
		for _, name := range []string{"a", "b"} {
			m := w.nodes[name]
			idle[name] = idle[name].Seen(false, w.now)
			r, err := visit.RecordOf(m.Node)
			nodes = append(nodes, sweep.NodeOf(w.policy, m.Node, r, err, idle[name], w.now))
			m.selected = nil
		}
		for _, s := range sweep.Plan(w.policy.Sweeps, nodes, func(string) time.Time { return time.Time{} }, w.now).Start {
			w.nodes[s.Node].selected = &Selection{s.Sweep.Name, w.now}
		}
	}
	change := []string{"  rules:\n", "  sweeps: {often: {every: 1h, idleFor: 1m, maxNodes: 1, template: check}}\n  rules:\n"}
	switchtest.Check(t, "sweep", visitAction{change, func(*world, *machine) {}, plan, "check", nil}.effect)
}

func TestWhatASwitchDoesToAFirstCheck(t *testing.T) {
	change := []string{"  repair:\n", "  firstCheck: {conditions: [GPUXidError], template: check, maxNodes: 1}\n  repair:\n"}
	switchtest.Check(t, "first check", visitAction{change, func(_ *world, m *machine) {
		m.Spec.Taints = append(m.Spec.Taints, corev1.Taint{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule})
	}, nil, "check", nil}.effect)
}
