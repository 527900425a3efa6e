package quarantine

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// The rules of these fleets, beside gpu and disk: soft leaves nodes in service, bad has a budget of one.
const attackRules = `
    slow: {match: {condition: SlowNode, repair: [Inspect]}, taint: {effect: PreferNoSchedule}, clearAfter: 1m}
    fan: {match: {condition: FanFailing, repair: [Replace]}, taint: {effect: PreferNoSchedule}, budget: {maxNodes: 1}}
    bad: {match: {condition: BadlyFailing, repair: [Replace]}, taint: {effect: NoExecute}, budget: {maxNodes: 1}}`

var (
	isSlow  = says("SlowNode", "True", "Inspect node: suspected slow in 1 run")
	notSlow = says("SlowNode", "False", "")
	isBad   = says("BadlyFailing", "True", "x")
)

func newAttackedFleet(t *testing.T, n int, spec string) *fleet {
	t.Helper()
	return newFleet(t, n, spec, "for: 0s"+attackRules)
}

// effects are the effects of our taints, by node: N for NoSchedule, P for PreferNoSchedule, E for NoExecute.
func (f *fleet) effects() string {
	var b strings.Builder
	for _, w := range f.worlds {
		effect := "-"
		for _, taint := range w.node.Spec.Taints {
			if taint.Key == conditions.TaintUnhealthy {
				effect = map[corev1.TaintEffect]string{"NoSchedule": "N", "PreferNoSchedule": "P", "NoExecute": "E"}[taint.Effect]
			}
		}
		b.WriteString(effect)
	}
	return b.String()
}

func (f *fleet) want(effects, blocked string) {
	f.Helper()
	got := ""
	for _, w := range f.worlds {
		if w.last.Blocked != nil && got == "" {
			got = w.last.Blocked.Message
		}
	}
	if f.effects() != effects || !strings.Contains(got, blocked) || blocked == "" && got != "" {
		f.Fatalf("taints %s, first blocked %q; want %s, %q", f.effects(), got, effects, blocked)
	}
}

// Attack 4.
func TestSoftQuarantinesHaveABudgetOfTheirOwn(t *testing.T) {
	f := newAttackedFleet(t, 8, "budget: {maxNodes: 3}")
	for i := range 4 {
		isSlow(f.worlds[i])
		f.decide(i)
	}
	f.want("PPP-----", "3 nodes are to be avoided and the budget of nodes to be avoided is 3: n0 (quarantined), n1 (quarantined), n2 (quarantined)")
	for i := 4; i < 8; i++ {
		gpu(lost)(f.worlds[i])
		f.decide(i)
	}
	if f.effects() != "PPP-NNN-" {
		t.Errorf("taints %s", f.effects())
	}
}

func TestARulesBudgetReplacesThatOfSoftQuarantines(t *testing.T) {
	f := newAttackedFleet(t, 6, "budget: {maxNodes: 3}")
	for i := range 2 {
		says("FanFailing", "True", "x")(f.worlds[i])
		f.decide(i)
	}
	f.want("P-----", "1 nodes are to be avoided and the budget of rule fan is 1: n0 (quarantined)")
	for i := 2; i < 6; i++ {
		isSlow(f.worlds[i])
		f.decide(i)
	}
	if f.effects() != "P-PP--" { // n0 has a place among the three
		t.Errorf("taints %s", f.effects())
	}
}

func TestAlternatingVerdictsDoNotOpenTheBreaker(t *testing.T) {
	f := newAttackedFleet(t, 6, "budget: {maxNodes: 6}\nbreaker: {maxNodes: 2, window: 1h, coolDown: 1h, pace: 30m}")
	for range 5 {
		f.each(isSlow)
		f.each(passes(10*time.Second), notSlow)
		f.each(passes(time.Minute), beats)
	}
	f.each(isSlow)
	gpu(lost)(f.worlds[5])
	f.decide(5)
	f.want("PPPPPN", "")
	if f.broken != nil {
		t.Errorf("the breaker is %s", f.broken)
	}
}

func TestAWorseFaultTakesOverFromASoftQuarantineWithinTheLimits(t *testing.T) {
	for name, test := range map[string]struct {
		spec    string
		before  func(f *fleet)
		effects string
		blocked string
	}{
		"with room": {"budget: {maxNodes: 2}", func(*fleet) {}, "NNPP",
			"2 nodes are out of service and the budget is 2: n0 (quarantined), n1 (quarantined); the node keeps taint pitcrew.dev/unhealthy=SlowNode:PreferNoSchedule"},
		"beside a cordoned node": {"budget: {maxNodes: 2}", func(f *fleet) { cordoned(f.worlds[3]) }, "NPPN", "2 nodes are out of service"},
		"through the breaker":    {"budget: {maxNodes: 9}\nbreaker: {maxNodes: 1, window: 1h, coolDown: 1h, pace: 1m}", func(*fleet) {}, "NPPP", "1 quarantines began within 1h0m0s: the breaker opens; the node keeps taint"},
		"guarded":                {"budget: {maxNodes: 9}\ncorrelated: {maxPercent: 50, minNodes: 3, window: 2m}", func(*fleet) {}, "PPPP", "the detector, or what they share, is suspect; the node keeps taint"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newAttackedFleet(t, 4, "budget: {maxNodes: 9}")
			f.each(isSlow)
			f.each(passes(10 * time.Minute))
			if f.effects() != "PPPP" {
				t.Fatalf("taints %s", f.effects())
			}
			limited := newAttackedFleet(t, 4, test.spec)
			for i, w := range f.worlds {
				w.policy = limited.worlds[0].policy
				gpu(lost)(w)
				if i == len(f.worlds)-1 {
					test.before(f)
				}
			}
			f.each(beats)
			f.want(test.effects, test.blocked)
		})
	}
}

// A node that waits to be upgraded keeps the breaker from closing, as one that waits for a quarantine does.
func TestTheBreakerWaitsForUpgrades(t *testing.T) {
	f := newAttackedFleet(t, 3, "budget: {maxNodes: 9}\nbreaker: {maxNodes: 1, window: 1m, coolDown: 2m, pace: 5m}")
	isSlow(f.worlds[1])
	isSlow(f.worlds[2])
	f.each()
	for i := range 3 {
		gpu(lost)(f.worlds[i])
		f.decide(i)
	}
	if f.effects() != "NPP" || f.broken == nil {
		t.Fatalf("taints %s, breaker %v", f.effects(), f.broken)
	}
	for _, w := range f.worlds {
		passes(6 * time.Minute)(w)
		beats(w)
	}
	f.decide(1)
	if f.effects() != "NNP" || f.broken == nil {
		t.Errorf("taints %s, breaker %v", f.effects(), f.broken)
	}
}

// Attack 11: 40 nodes turn worse under a rule's budget of one.
func TestUpgradesAskTheBudgetOfTheNewRule(t *testing.T) {
	f := newAttackedFleet(t, 40, "budget: {maxPercent: 100}")
	f.each(gpu(ecc))
	for range 3 {
		f.each(passes(time.Minute), beats, isBad)
	}
	f.want("E"+strings.Repeat("N", 39), "1 nodes are out of service and the budget of rule bad is 1: n0 (quarantined); the node keeps taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule")
}

// A worse class under the same rule needs no place that the node does not have.
func TestAnUpgradeBySameRuleKeepsItsPlace(t *testing.T) {
	f := newFleet(t, 2, "budget: {maxNodes: 1}", "budget: {maxNodes: 1}")
	gpu(ecc)(f.worlds[0])
	f.decide(0)
	gpu(lost)(f.worlds[0])
	w := f.decide(0)
	if w.record().Taint.Repair != conditions.Reboot || w.last.Blocked != nil {
		t.Errorf("%s, %+v", w.record(), w.last.Blocked)
	}
}

func TestASoftTaintNeverTakesTheDecisionFromAHardOne(t *testing.T) {
	f := newAttackedFleet(t, 1, "budget: {maxNodes: 1}")
	w := f.worlds[0]
	for _, s := range []step{says("FanFailing", "True", "x"), gpu(ecc), decide} { // Replace, but soft
		s(w)
	}
	if f.effects() != "N" || w.record().Worst() != conditions.Replace {
		t.Errorf("taint %s of %s", f.effects(), w.record())
	}
}

// replace puts a new node with the same name, or another one, in the place of a node.
func (f *fleet) replace(i int, name string) {
	f.Helper()
	old := f.worlds[i]
	w := newWorld(f.T)
	w.policy, w.now = old.policy, old.now
	w.node.Name, w.node.UID, w.node.Labels = name, types.UID(fmt.Sprintf("%s-%s", name, old.now)), old.node.Labels
	gpuFine(w)
	f.worlds[i] = w
}

// decideAndRemember is decide with a memory, as the controller keeps one.
func (f *fleet) decideAndRemember(i int, memory limits.Memory) (*world, limits.Memory) {
	f.Helper()
	w := f.worlds[i]
	names := map[string]bool{w.node.Name: true}
	w.peers, w.broken = nil, f.broken
	for j, other := range f.worlds {
		if j != i && !node.Excluded(other.node) {
			names[other.node.Name] = true
			w.peers = append(w.peers, peers.With(other.policy, other.node, memory[other.node.Name], limits.Domain{}))
		}
	}
	w.peers = append(w.peers, memory.GonePeers(func(name string) bool { return names[name] })...)
	w.decide()
	if s := w.last.SetBreaker; s != nil {
		f.broken = s.OrClosed()
	}
	if s := w.last.Started; s != nil {
		e := limits.Entry{Node: w.node.Name, UID: w.node.UID, Rule: s.Rule, At: s.At, Soft: s.Soft, Scopes: limits.ScopesOf(w.policy, w.node.Labels)}
		memory, _ = memory.With(e, limits.RememberFor(w.policy), w.now)
	}
	return w, memory
}

// Attack 6: 180 nodes fail within an hour and are replaced at once.
func TestReplacedNodesUseUpTheLimits(t *testing.T) {
	for name, test := range map[string]struct {
		spec      string
		sameNames bool
		// most is how many names may be quarantined.
		most int
	}{
		"the budget":                   {"budget: {maxNodes: 3}", false, 3},
		"the budget, under same names": {"budget: {maxNodes: 3}", true, 3},
		"the budget of a rack":         {"budget: {maxNodes: 1, scope: rack}", false, 3},
		"the breaker":                  {"budget: {maxPercent: 100}\nbreaker: {maxNodes: 10, window: 10m, coolDown: 30m, pace: 5m}", false, 20}, // it opens, cools down and opens again
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 12, test.spec, "")
			var memory limits.Memory
			quarantined := map[string]bool{}
			for i := range 180 {
				at := i % len(f.worlds)
				for _, w := range f.worlds {
					passes(20 * time.Second)(w)
					beats(w)
				}
				gpu(lost)(f.worlds[at])
				var w *world
				w, memory = f.decideAndRemember(at, memory)
				if r := w.record(); r.Phase == causes.Quarantined {
					quarantined[w.node.Name] = true
				}
				replacement := fmt.Sprintf("replacement-%d", i)
				if test.sameNames {
					replacement = w.node.Name
				}
				f.replace(at, replacement)
				// A new leader reads what the last one has written.
				var err error
				if memory, err = limits.ParseMemory(memory.String(), w.now); err != nil {
					t.Fatal(err)
				}
			}
			if got := len(quarantined); got > test.most || got == 0 {
				t.Errorf("%d of 180 nodes were quarantined within an hour, at most %d may be", got, test.most)
			}
		})
	}
}

// A node that is repaired and released frees its place as before: its record has the start.
func TestAReleasedNodeIsNotGone(t *testing.T) {
	f := newFleet(t, 2, "budget: {maxNodes: 1}", "")
	gpu(ecc)(f.worlds[0])
	_, memory := f.decideAndRemember(0, nil)
	f.each(passes(time.Minute), beats)
	gpuFine(f.worlds[0])
	_, memory = f.decideAndRemember(0, memory)
	f.each(passes(time.Minute), beats)
	gpu(ecc)(f.worlds[1])
	w, _ := f.decideAndRemember(1, memory)
	if f.phases() != "-q" {
		t.Errorf("nodes are %s, blocked %+v", f.phases(), w.last.Blocked)
	}
	delete(f.worlds[1].node.Annotations, conditions.AnnotationQuarantine)
	f.worlds[1].node.Spec.Taints = nil
	delete(f.worlds[0].node.Annotations, conditions.AnnotationQuarantine) // a forger removes the record, or an admin
	gpu(ecc)(f.worlds[1])
	if w, _ := f.decideAndRemember(1, memory); w.last.Blocked == nil || !strings.Contains(w.last.Blocked.Message, "n0 (gone)") {
		t.Errorf("a removed record frees the place: %+v", w.last.Blocked)
	}
}

// Attack 25.
func TestOnlyCheckedNodesThatLeftServiceLatelyUseUpTheBudget(t *testing.T) {
	longAgo, lately := 8*24*time.Hour, 6*24*time.Hour
	since := func(condition string, ago time.Duration) step {
		return func(w *world) {
			for i := range w.node.Status.Conditions {
				if c := &w.node.Status.Conditions[i]; c.Type == corev1.NodeConditionType(condition) {
					c.LastTransitionTime = metav1.NewTime(w.now.Add(-ago))
				}
			}
		}
	}
	notReady := func(ago time.Duration) step {
		return func(w *world) { says("Ready", "False", "")(w); since("Ready", ago)(w) }
	}
	cordonedFor := func(ago time.Duration) step {
		return func(w *world) {
			cordoned(w)
			at := metav1.NewTime(w.now.Add(-ago))
			w.node.Spec.Taints = append(w.node.Spec.Taints, corev1.Taint{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule, TimeAdded: &at})
		}
	}
	managed := func(ago time.Duration, fields string) step {
		return func(w *world) {
			cordoned(w)
			at := metav1.NewTime(w.now.Add(-ago))
			w.node.ManagedFields = append(w.node.ManagedFields, metav1.ManagedFieldsEntry{Time: &at, FieldsV1: metav1.NewFieldsV1(fields)})
		}
	}
	const unschedulable = `{"f:spec":{"f:unschedulable":{}}}`
	quarantinedBefore := step(func(w *world) {
		now := w.now
		w.now = now.Add(-longAgo)
		gpu(lost)(w)
		w.peers = nil
		w.decide()
		w.now = now
		w.node.Status.Conditions = nil // whoever forges the status hides the hardware
	})
	for name, test := range map[string]struct {
		spec   string
		is     []step
		counts bool
	}{
		"a healthy node":                       {"", nil, false},
		"cordoned lately":                      {"", []step{cordonedFor(lately)}, true},
		"cordoned long ago":                    {"", []step{cordonedFor(longAgo)}, false},
		"cordoned at a time that is not known": {"", []step{cordoned}, true},
		"cordoned lately, by managed fields":   {"", []step{managed(longAgo, `{"f:spec":{"f:taints":{}}}`), managed(lately, unschedulable)}, true},
		"cordoned long ago, by managed fields": {"", []step{managed(time.Minute, `{"f:spec":{"f:taints":{}}}`), managed(longAgo, unschedulable)}, false},
		"the taint is better evidence":         {"", []step{managed(time.Minute, unschedulable), cordonedFor(longAgo)}, false},
		"cordoned in the future":               {"", []step{cordonedFor(-40 * 24 * time.Hour)}, true},
		"not Ready lately":                     {"", []step{notReady(lately)}, true},
		"not Ready long ago":                   {"", []step{notReady(longAgo)}, false},
		"parked, and switched off later":       {"", []step{cordonedFor(longAgo), notReady(time.Minute)}, false},
		"not Ready, and cordoned later":        {"", []step{notReady(longAgo), cordonedFor(time.Minute)}, false},
		"a longer parkedAfter":                 {", parkedAfter: 200h", []step{cordonedFor(longAgo)}, true},
		"never parked":                         {", parkedAfter: never", []step{cordonedFor(10000 * time.Hour)}, true},
		"without checked hardware":             {"", []step{cordoned, noConditions, says("Ready", "False", "")}, false},
		"quarantined long ago":                 {"", []step{quarantinedBefore}, true},
		"quarantined, and cordoned long ago":   {"", []step{quarantinedBefore, cordonedFor(longAgo)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 2, "budget: {maxNodes: 1"+test.spec+"}", "")
			for _, s := range test.is {
				s(f.worlds[0])
			}
			gpu(lost)(f.worlds[1])
			w := f.decide(1)
			if counts := w.record().Phase == causes.Suspect; counts != test.counts {
				t.Errorf("counts: %v, blocked %+v", counts, w.last.Blocked)
			}
		})
	}
}

func TestPercentsAreOfTheCheckedNodes(t *testing.T) {
	f := newFleet(t, 40, "budget: {maxPercent: 10}", "")
	for _, w := range f.worlds[20:] {
		noConditions(w)
	}
	for i := range 20 {
		gpu(lost)(f.worlds[i])
		f.decide(i)
	}
	if got := strings.Count(f.phases(), "q"); got != 2 {
		t.Errorf("%d of 20 checked nodes are quarantined: %s", got, f.phases())
	}
}

// A random walk with forged records, deletions and verdicts: no budget is ever exceeded by what we do. A place of a node that we
// quarantined is only free once we have released that node.
func TestForgersNeverMakeUsExceedABudget(t *testing.T) {
	const most, mostSoft = 3, 3
	quarantines, replaced := 0, 0
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 3))
		f := newAttackedFleet(t, 16, fmt.Sprintf("budget: {maxNodes: %d}\nbreaker: {maxNodes: 6, window: 10m, coolDown: 20m, pace: 1m}", most))
		var memory limits.Memory
		starts := map[bool][]time.Time{} // of quarantines by us whose node was replaced
		for step := range 200 {
			now := f.worlds[0].now.Add(time.Duration(random.IntN(60)) * time.Second)
			for _, w := range f.worlds {
				w.now = now
				beats(w)
			}
			i := random.IntN(len(f.worlds))
			w := f.worlds[i]
			switch random.IntN(8) {
			case 0, 1:
				gpu(lost)(w)
			case 2, 3:
				isSlow(w)
			case 4:
				notSlow(w)
			case 5:
				isBad(w)
			case 6: // a record that claims many quarantines, of now and of the future
				r := w.record()
				if r == nil || r.Taint == nil || r.Phase == causes.Quarantined {
					continue
				}
				for range 20 {
					forged := r.Quarantine
					forged.QuarantinedAt = now.Add(time.Duration(random.IntN(100)-50) * time.Hour)
					r.Last = append(r.Last, forged)
				}
				w.node.Annotations[conditions.AnnotationQuarantine] = r.String()
			case 7:
				if r := w.record(); r != nil && r.Phase == causes.Quarantined {
					soft := limits.IsSoft(r.Taint.Effect)
					starts[soft] = append(starts[soft], r.QuarantinedAt)
					replaced++
					f.replace(i, fmt.Sprintf("new-%d", step))
				}
			}
			before := f.effects()
			w, memory = f.decideAndRemember(i, memory)
			if f.effects() == before {
				continue
			}
			quarantines++
			out := map[bool]int{}
			for _, e := range f.effects() {
				if e != '-' {
					out[e == 'P']++
				}
			}
			for _, soft := range []bool{false, true} {
				for _, at := range starts[soft] {
					if w.now.Sub(at) < limits.GoneFor {
						out[soft]++
					}
				}
			}
			if out[false] > most && w.last.Started != nil && !w.last.Started.Soft || out[true] > mostSoft && w.last.Started != nil && w.last.Started.Soft {
				t.Fatalf("seed %d, step %d: %v are out of service, those that are gone included; taints %s", seed, step, out, f.effects())
			}
			if strings.Count(f.effects(), "E") > 1 {
				t.Fatalf("seed %d, step %d: the budget of rule bad is exceeded: %s", seed, step, f.effects())
			}
		}
	}
	if quarantines < 100 || replaced < 50 {
		t.Errorf("only %d quarantines and %d replaced nodes: the walks prove little", quarantines, replaced)
	}
}

func TestSlimManagedFieldsKeepTheTimeOfACordon(t *testing.T) {
	at := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC))
	later := metav1.NewTime(at.Add(time.Hour))
	n := &corev1.Node{Spec: corev1.NodeSpec{Unschedulable: true}}
	n.ManagedFields = []metav1.ManagedFieldsEntry{
		{Manager: "kubelet", Time: &later, FieldsV1: metav1.NewFieldsV1(`{"f:status":{}}`)},
		{Manager: "kubectl", Time: &at, FieldsV1: metav1.NewFieldsV1(`{"f:spec":{"f:taints":{},"f:unschedulable":{}}}`)},
	}
	slim := n.DeepCopy()
	slim.ManagedFields = node.SlimManagedFields(n)
	again := slim.DeepCopy()
	again.ManagedFields = node.SlimManagedFields(slim)
	for _, got := range []*corev1.Node{n, slim, again} {
		if _, since := units.OutOfService(got); !since.Equal(at.Time) {
			t.Errorf("cordoned at %s, want %s: %v", since, at, got.ManagedFields)
		}
	}
	n.Spec.Unschedulable = false
	if got := node.SlimManagedFields(n); got != nil {
		t.Errorf("kept of a node that is not cordoned: %v", got)
	}
}
