package tally

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// world is one node, and the real decisions about it.
type world struct {
	*testing.T
	*Quarantines
	policy *policy.Policy
	node   *corev1.Node
	now    time.Time
}

func newWorld(t *testing.T) *world {
	t.Helper()
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 9}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Replace]}
      clearAfter: 1m
`))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{T: t, Quarantines: New(), policy: p, now: time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC), node: &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "n"}, Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{BootID: "b"}},
	}}
	w.shows(corev1.ConditionFalse, "no fault")
	return w
}

// shows has the condition say something now.
func (w *world) shows(status corev1.ConditionStatus, message string) {
	at := metav1.NewTime(w.now)
	w.node.Status.Conditions = []corev1.NodeCondition{{
		Type: "GPUXidError", Status: status, Message: message, LastHeartbeatTime: at, LastTransitionTime: at,
	}}
	w.look(0)
}

// look decides after a time, as often as the decision changes something, and shows each state to the tally.
func (w *world) look(after time.Duration) {
	w.Helper()
	w.now = w.now.Add(after)
	w.node.Status.Conditions[0].LastHeartbeatTime = metav1.NewTime(w.now)
	for range 4 {
		w.See(w.policy, w.node)
		r, err := causes.RecordOf(w.node)
		if err != nil {
			w.Fatal(err)
		}
		if d := quarantine.Decide(w.policy, quarantine.Observation{Node: w.node, Record: r}, w.now); d.State != nil {
			w.node = w.node.DeepCopy()
			d.State.Apply(w.node)
		}
	}
}

func (w *world) quarantines() {
	w.Helper()
	w.shows(corev1.ConditionTrue, "ResetGPU gpu 0000:1b:00: Xid 95 uncontained ECC error")
}

func (w *world) clears() {
	w.Helper()
	w.shows(corev1.ConditionFalse, "no fault")
	w.look(2 * time.Minute)
}

func (w *world) releases(reason string) {
	w.Helper()
	n, err := quarantine.ReleaseManually(w.node, quarantine.Manual{User: "ann", Reason: reason}, nil, w.now)
	if err != nil {
		w.Fatal(err)
	}
	w.node = n
	w.look(0)
	w.clears() // a fault that was released does not quarantine before it has cleared
}

// counts compares all counters that are not zero.
func (w *world) counts(want string) {
	w.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(w.Collectors()...)
	families, err := registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	var got []string
	for _, f := range families {
		for _, m := range f.Metric {
			if m.Counter == nil || m.Counter.GetValue() == 0 {
				continue
			}
			text := strings.TrimPrefix(f.GetName(), "pitcrew_")
			for _, l := range m.Label {
				text += " " + l.GetValue()
			}
			got = append(got, fmt.Sprint(text, " ", m.Counter.GetValue()))
		}
	}
	if text := strings.Join(got, "\n"); text != want {
		w.Errorf("got\n%s\nwant\n%s", text, want)
	}
}

func TestQuarantinesAreCountedOnce(t *testing.T) {
	w := newWorld(t)
	w.counts("")
	w.quarantines()
	w.look(time.Minute)
	w.counts("quarantines_total GPUXidError ResetGPU 1")
	w.clears()
	w.look(time.Hour)
	w.counts("quarantines_ended_total GPUXidError cleared ResetGPU 1\nquarantines_total GPUXidError ResetGPU 1")
}

func TestThePersonsWordIsCounted(t *testing.T) {
	for reason, ended := range map[string]string{
		"wrong": "wrong", "wrong: it was a drill": "wrong", "repaired: new riser": "repaired", " other : moved": "other",
		"": "unstated", "wrongly cabled": "unstated", "Wrong": "unstated", "cleared": "unstated", "the GPU: wrong": "unstated",
	} {
		w := newWorld(t)
		w.quarantines()
		w.releases(reason)
		w.counts("quarantines_ended_total GPUXidError " + ended + " ResetGPU 1\nquarantines_total GPUXidError ResetGPU 1")
	}
}

func TestARelapseIsTheSameConditionWithinSevenDaysOfARepair(t *testing.T) {
	for _, test := range []struct {
		name  string
		end   func(*world)
		after time.Duration
		want  bool
	}{
		{"cleared", (*world).clears, Held - time.Hour, true},
		{"cleared, and held", (*world).clears, Held, false},
		{"a person has repaired it", func(w *world) { w.releases("repaired") }, time.Hour, true},
		{"it was wrong", func(w *world) { w.releases("wrong") }, time.Hour, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			w := newWorld(t)
			w.quarantines()
			test.end(w)
			w.look(test.after)
			w.quarantines()
			if got := value(t, w.relapsed) == 1; got != test.want {
				t.Errorf("relapsed: %t", got)
			}
			if n := value(t, w.started); n != 2 {
				t.Errorf("%v quarantines", n)
			}
		})
	}
}

// A remediator that begins to lead, a node that was made anew, and a record that cannot be read count nothing.
func TestWhatWasNotSeenIsNotCounted(t *testing.T) {
	w := newWorld(t)
	w.quarantines()
	w.Quarantines = New()
	w.look(0)
	w.counts("")
	w.node.UID = types.UID("another")
	w.See(w.policy, w.node)
	w.Forget("n")
	w.node.UID = "n"
	w.look(0)
	w.counts("")

	w = newWorld(t)
	w.quarantines()
	good := w.node
	w.node = good.DeepCopy()
	w.node.Annotations[conditions.AnnotationQuarantine] = "{"
	w.See(w.policy, w.node)
	w.node = good
	w.look(0)
	w.counts("quarantines_total GPUXidError ResetGPU 1")
}

// Whoever may annotate a Node makes up no label.
func TestForgedRecordsMakeNoLabels(t *testing.T) {
	w := newWorld(t)
	r := causes.OpenNext(nil, w.node, w.now, w.now)
	r.Phase, r.QuarantinedAt = causes.Quarantined, w.now
	r.Taint = &causes.Taint{Key: conditions.TaintUnhealthy, Effect: corev1.TaintEffectNoSchedule, Rule: "made-up", Repair: conditions.Reboot, Since: w.now}
	r.Causes = []causes.Cause{{Condition: "MadeUp", Rule: "made-up", Repair: conditions.Reboot, Message: "m", Due: true, BootID: "b", FirstSeen: w.now.Add(time.Hour)}}
	w.node = w.node.DeepCopy()
	w.node.Annotations = map[string]string{conditions.AnnotationQuarantine: r.String()}
	w.See(w.policy, w.node)
	w.counts("quarantines_total other Reboot 1")
}

// The costs that docs/metrics.md states.
func TestTheShippedPolicyMakesSoManySeries(t *testing.T) {
	text, err := os.ReadFile("../../../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	p, err := policy.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	q := New()
	q.See(p, &corev1.Node{})
	registry := prometheus.NewRegistry()
	registry.MustRegister(q.started, q.ended, q.relapsed)
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	series := 0
	for _, f := range families {
		series += len(f.Metric)
	}
	if series != 308 {
		t.Errorf("%d series", series)
	}
}

// value is that of the counter for GPUXidError and ResetGPU.
func value(t *testing.T, c *prometheus.CounterVec) float64 {
	t.Helper()
	var m dto.Metric
	if err := c.WithLabelValues("GPUXidError", "ResetGPU").Write(&m); err != nil {
		t.Fatal(err)
	}
	return m.GetCounter().GetValue()
}
