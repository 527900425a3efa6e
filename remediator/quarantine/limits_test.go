package quarantine

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/peers"
)

// fleet is a cluster of worlds that see one another.
type fleet struct {
	*testing.T
	worlds []*world
	broken *limits.BreakerState
	// memory holds the starts of quarantines if it is not nil.
	memory limits.Memory
}

// newFleet makes n nodes, four to a rack. The text is a policy's spec but for its mode and rules.
func newFleet(t *testing.T, n int, spec, rule string) *fleet {
	t.Helper()
	p, err := policy.Parse([]byte(`
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  ` + strings.ReplaceAll(spec, "\n", "\n  ") + `
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      clearAfter: 1m
      ` + rule + `
    disk: {match: {condition: DiskFailing, repair: [Replace]}}
`))
	if err != nil {
		t.Fatal(err)
	}
	f := &fleet{T: t}
	for i := range n {
		w := newWorld(t)
		w.policy = p
		w.node.Name, w.node.UID = fmt.Sprintf("n%d", i), types.UID(fmt.Sprintf("uid-%d", i))
		w.node.Labels = map[string]string{"rack": fmt.Sprintf("r%d", i/4)}
		gpuFine(w) // the checks run on every node
		f.worlds = append(f.worlds, w)
	}
	return f
}

// decide has a node decided with what all others show, and the breaker set as the decision says.
func (f *fleet) decide(i int) *world {
	f.Helper()
	w := f.meets(i)
	w.decide()
	f.setBreaker(w.last)
	if start := w.last.Started; start != nil && f.memory != nil {
		f.memory, _ = f.memory.With(start.EntryOf(w.policy, w.node), limits.RememberFor(w.policy), w.now)
	}
	if b := w.last.Blocked; b != nil && (b.Reason == causes.BlockedByBudget || b.Reason == causes.BlockedByBreaker) && !w.last.Limited {
		f.Errorf("node %s is not limited, and blocked by %s", w.node.Name, b.Reason)
	}
	return w
}

// meets shows a node what all others are.
func (f *fleet) meets(i int) *world {
	w := f.worlds[i]
	w.peers, w.broken = nil, f.broken
	for j, other := range f.worlds {
		if j != i && !node.Excluded(other.node) {
			w.peers = append(w.peers, peers.With(other.policy, other.node, f.memory[other.node.Name], limits.Domain{}))
		}
	}
	return w
}

func (f *fleet) setBreaker(d Decision) {
	if s := d.SetBreaker; s != nil {
		f.broken = s
		if s.OpenedAt.IsZero() {
			f.broken = nil
		}
	}
}

// each does the same to several nodes.
func (f *fleet) each(steps ...step) {
	f.Helper()
	for i, w := range f.worlds {
		for _, s := range steps {
			s(w)
		}
		f.decide(i)
	}
}

// phases counts nodes by status, in the order of their names: q, s or - for neither.
func (f *fleet) phases() string {
	var b strings.Builder
	for _, w := range f.worlds {
		switch r := w.record(); {
		case r != nil && r.Phase == causes.Quarantined:
			b.WriteByte('q')
		case r != nil && r.Phase == causes.Suspect:
			b.WriteByte('s')
		default:
			b.WriteByte('-')
		}
	}
	return b.String()
}

func cordoned(w *world) { w.node.Spec.Unschedulable = true }

func TestBudgets(t *testing.T) {
	faulty := func(f *fleet) { f.each(gpu(ecc)) }
	tests := map[string]struct {
		spec, rule string
		nodes      int
		happens    func(*fleet)
		want       string
	}{
		"by number":                    {"budget: {maxNodes: 2}", "", 8, faulty, "qqssssss"},
		"by percent":                   {"budget: {maxPercent: 50}", "", 8, faulty, "qqqqssss"},
		"the smaller of both":          {"budget: {maxNodes: 3, maxPercent: 50}", "", 8, faulty, "qqqsssss"},
		"percents are rounded down":    {"budget: {maxPercent: 49}", "", 4, faulty, "qsss"},
		"one at least in a small pool": {"budget: {maxPercent: 10}", "", 3, faulty, "qss"},
		"none when none is meant":      {"budget: {maxNodes: 0}", "", 3, faulty, "sss"},
		"off":                          {"budget: {maxPercent: 100}", "", 4, faulty, "qqqq"},
		"by rack":                      {"budget: {maxPercent: 50, scope: rack}", "", 8, faulty, "qqssqqss"},
		"of a rule":                    {"budget: {maxNodes: 8}", "budget: {maxNodes: 1}", 4, faulty, "qsss"},
		"of a rule, by rack":           {"budget: {maxNodes: 8}", "budget: {maxNodes: 1, scope: rack}", 8, faulty, "qsssqsss"},
		"what another rule did is not its": {"budget: {maxNodes: 8}", "budget: {maxNodes: 1}", 4, func(f *fleet) {
			says("DiskFailing", "True", "x")(f.worlds[0])
			f.decide(0)
			faulty(f)
		}, "qqss"},
		"cordoned nodes count": {"budget: {maxNodes: 2}", "", 4, func(f *fleet) {
			cordoned(f.worlds[3]) // whose own place is taken anyway
			faulty(f)
		}, "qssq"},
		"a node's own cordon takes nobody's place": {"budget: {maxNodes: 1}", "", 2, func(f *fleet) {
			cordoned(f.worlds[0])
			faulty(f)
		}, "qs"},
		"nodes that are not Ready count": {"budget: {maxNodes: 2}", "", 4, func(f *fleet) {
			says("Ready", "Unknown", "")(f.worlds[3])
			says("Ready", "True", "")(f.worlds[2])
			faulty(f)
		}, "qssq"},
		"nodes that are nobody's business do not": {"budget: {maxPercent: 50}", "", 4, func(f *fleet) {
			for _, w := range f.worlds[2:] {
				labels("node-role.kubernetes.io/control-plane", "true")(w)
				cordoned(w)
			}
			f.worlds = f.worlds[:4]
			for _, i := range []int{0, 1} {
				gpu(ecc)(f.worlds[i])
				f.decide(i)
			}
		}, "qs--"},
		"a record that does not parse proves nothing": {"budget: {maxNodes: 1}", "", 2, func(f *fleet) {
			f.worlds[1].node.Annotations = map[string]string{conditions.AnnotationQuarantine: "{"}
			gpu(ecc)(f.worlds[0])
			f.decide(0)
			f.worlds = f.worlds[:1]
		}, "q"},
		"with our taint it is a quarantine": {"budget: {maxNodes: 1}", "", 2, func(f *fleet) {
			f.worlds[1].node.Annotations = map[string]string{conditions.AnnotationQuarantine: "{"}
			taints(oldTaint)(f.worlds[1])
			gpu(ecc)(f.worlds[0])
			f.decide(0)
			f.worlds = f.worlds[:1]
		}, "s"},
		"within a window those released count": {"budget: {maxNodes: 1, window: 1h}", "", 2, func(f *fleet) {
			gpu(ecc)(f.worlds[0])
			f.decide(0)
			f.each(passes(time.Minute), beats)
			gpuFine(f.worlds[0])
			f.decide(0)
			f.each(passes(time.Minute), beats)
			if f.phases() != "--" {
				f.Fatalf("not released: %s", f.phases())
			}
			gpu(ecc)(f.worlds[1])
			f.decide(1)
		}, "-s"},
		"and no longer after it": {"budget: {maxNodes: 1, window: 3m}", "", 2, func(f *fleet) {
			gpu(ecc)(f.worlds[0])
			f.decide(0)
			f.each(passes(time.Minute), beats)
			gpuFine(f.worlds[0])
			f.decide(0)
			f.each(passes(time.Minute), beats)
			f.each(passes(time.Minute), beats)
			gpu(ecc)(f.worlds[1])
			f.decide(1)
		}, "-q"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, test.nodes, test.spec, test.rule)
			test.happens(f)
			if got := f.phases(); got != test.want {
				t.Errorf("nodes are %s, want %s", got, test.want)
			}
		})
	}
}

func TestTheBreaker(t *testing.T) {
	f := newFleet(t, 12, "budget: {maxPercent: 100}\nbreaker: {maxNodes: 3, window: 10m, coolDown: 30m, pace: 5m}", "")
	want := func(phases string, open bool) {
		t.Helper()
		if got := f.phases(); got != phases || (f.broken != nil) != open {
			t.Fatalf("nodes are %s, breaker %v; want %s, open %v", got, f.broken, phases, open)
		}
	}
	f.each(gpu(ecc))
	want("qqqsssssssss", true)
	opened := f.broken.OpenedAt
	f.each(passes(11*time.Minute), beats) // the window alone closes nothing
	want("qqqsssssssss", true)
	// Releases go on, and give nobody a place.
	gpuFine(f.worlds[0])
	f.decide(0)
	f.each(passes(time.Minute), beats)
	want("-qqsssssssss", true)
	f.each(passes(18*time.Minute-time.Second), beats)
	want("-qqsssssssss", true)
	// Half-open: one every pace, by what a node is like then.
	for i := 3; i < 8; i++ {
		gpuFine(f.worlds[i])
	}
	f.each(passes(time.Second), beats)
	want("-qq-----qsss", true)
	f.each(passes(5*time.Minute-time.Second), beats)
	want("-qq-----qsss", true)
	f.each(passes(time.Second), beats)
	want("-qq-----qqss", true)
	if !f.broken.OpenedAt.Equal(opened) {
		t.Errorf("half-open, it opened again at %s", f.broken.OpenedAt)
	}
	f.each(passes(5*time.Minute), beats)
	f.each(passes(5*time.Minute), beats)
	// The last one got through; its neighbours of the last ten minutes are no more than the breaker allows.
	f.each(beats)
	want("-qq-----qqqq", false)
}

func TestTheBreakerDoesNotWaitForWhatIsOnlyObserved(t *testing.T) {
	f := newFleet(t, 4, "budget: {maxPercent: 100}\nbreaker: {maxNodes: 1, window: 1m, coolDown: 5m, pace: 1m}", "")
	gpu(ecc)(f.worlds[0])
	f.decide(0)
	gpu(ecc)(f.worlds[1])
	f.decide(1)
	if f.phases() != "qs--" || f.broken == nil {
		t.Fatalf("nodes are %s, breaker %v", f.phases(), f.broken)
	}
	gpuFine(f.worlds[1])
	f.decide(1)
	p := f.worlds[0].policy
	p.Rules[slices.IndexFunc(p.Rules, func(r policy.Rule) bool { return r.Name == "disk" })].Observe = true
	for _, i := range []int{2, 3} {
		says("DiskFailing", "True", "x")(f.worlds[i])
		f.decide(i)
	}
	for _, w := range f.worlds {
		passes(5 * time.Minute)(w)
		beats(w)
	}
	f.decide(2)
	if f.phases() != "q-ss" || f.broken != nil {
		t.Errorf("nodes are %s, breaker %v", f.phases(), f.broken)
	}
}

func TestTheBreakerDoesNotWaitForWhatSaysNothingAnyMore(t *testing.T) {
	f := newFleet(t, 3, "budget: {maxPercent: 100}\nbreaker: {maxNodes: 1, window: 1m, coolDown: 5m, pace: 1m}", "")
	f.each(gpu(ecc))
	f.each(passes(time.Minute), says("GPUXidError", "Unknown", ""))
	if f.phases() != "qss" || f.broken == nil {
		t.Fatalf("nodes are %s, breaker %v", f.phases(), f.broken)
	}
	f.each(passes(5*time.Minute), beats)
	if f.phases() != "qss" || f.broken != nil {
		t.Errorf("nodes are %s, breaker %v", f.phases(), f.broken)
	}
}

func TestTheBreakerWaitsOnlyForNodesThatCanBeDecided(t *testing.T) {
	tests := map[string]struct {
		happens []step // to two suspects that the open breaker holds back
		waits   bool
	}{
		"the fault is current":                {[]step{passes(31 * time.Minute), beats}, true},
		"the detector is dead":                {[]step{passes(31 * time.Minute)}, false},
		"the heartbeat is from the future":    {[]step{passes(time.Hour), beats, passes(-29 * time.Minute)}, false},
		"the node is maintained":              {[]step{passes(31 * time.Minute), beats, taints(maintenance)}, false},
		"its driver is upgraded":              {[]step{passes(31 * time.Minute), beats, upgrades("drain-required", time.Hour)}, false},
		"its driver's upgrade was given up":   {[]step{passes(31 * time.Minute), beats, upgrades("drain-required", 3*time.Hour)}, true},
		"the heartbeat is from before a boot": {[]step{passes(31 * time.Minute), beats, passes(time.Second), reboots, decide}, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 3, "budget: {maxNodes: 100}\nbreaker: {maxNodes: 2, window: 10m, coolDown: 30m, pace: 5m}", "for: 0s")
			f.broken = &limits.BreakerState{OpenedAt: f.worlds[0].now}
			for _, i := range []int{0, 1} {
				gpu(lost)(f.worlds[i])
				f.decide(i)
			}
			if f.phases() != "ss-" {
				t.Fatalf("nodes are %s", f.phases())
			}
			for _, s := range tt.happens {
				s(f.worlds[0])
				s(f.worlds[1])
			}
			f.worlds[2].now = f.worlds[0].now
			gpuFine(f.worlds[2])
			f.decide(2)
			if got := f.broken != nil; got != tt.waits {
				t.Errorf("the breaker waits: %t, want %t", got, tt.waits)
			}
		})
	}
}

func TestFaultsThatComeTogetherAreTheDetectors(t *testing.T) {
	const guard = "budget: {maxPercent: 100}\ncorrelated: {maxPercent: 50, minNodes: 3, window: 2m, scopes: [rack]}"
	turn := func(f *fleet, nodes ...int) {
		for _, i := range nodes {
			gpu(ecc)(f.worlds[i])
		}
	}
	tests := map[string]struct {
		happens func(*fleet)
		want    string
	}{
		"two of a rack are two faults":  {func(f *fleet) { turn(f, 0, 1); f.each() }, "qq----------"},
		"three of a rack are one":       {func(f *fleet) { turn(f, 0, 1, 2); f.each() }, "sss---------"},
		"elsewhere life goes on":        {func(f *fleet) { turn(f, 0, 1, 2, 7); f.each() }, "sss----q----"},
		"half of the cluster":           {func(f *fleet) { turn(f, 0, 1, 4, 5, 8, 9); f.each() }, "qq--qq--qq--"},
		"more than half of the cluster": {func(f *fleet) { turn(f, 0, 1, 2, 4, 5, 8, 9); f.each() }, "sss-ss--ss--"},
		"slowly, one after the other": {func(f *fleet) {
			for i := range 4 {
				turn(f, i)
				f.each(passes(3*time.Minute), beats)
			}
		}, "qqqq--------"},
		"for as long as it lasts":         {func(f *fleet) { turn(f, 0, 1, 2); f.each(passes(time.Hour), beats) }, "sss---------"},
		"and for one that joins later":    {func(f *fleet) { turn(f, 0, 1, 2); f.each(passes(time.Hour), beats); turn(f, 3); f.each() }, "sssq--------"},
		"until enough are fine again":     {func(f *fleet) { turn(f, 0, 1, 2); f.each(); gpuFine(f.worlds[2]); f.each() }, "qq----------"},
		"another condition is not frozen": {func(f *fleet) { turn(f, 0, 1, 2); says("DiskFailing", "True", "x")(f.worlds[3]); f.each() }, "sssq--------"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFleet(t, 12, guard, "")
			test.happens(f)
			if got := f.phases(); got != test.want {
				t.Errorf("nodes are %s, want %s", got, test.want)
			}
		})
	}
	t.Run("nodes without the label are no rack", func(t *testing.T) {
		f := newFleet(t, 12, guard, "")
		for _, w := range f.worlds {
			w.node.Labels = nil
		}
		turn(f, 0, 1, 2)
		f.each()
		if got := f.phases(); got != "qqq---------" {
			t.Errorf("nodes are %s", got)
		}
	})
}

// However faults come and go, no budget is ever exceeded by what we do, and the breaker stays shut after it opened.
func TestNoFleetEverExceedsItsBudgets(t *testing.T) {
	const spec = "budget: {maxNodes: 5, maxPercent: 40, scope: rack, window: 10m}\nbreaker: {maxNodes: 3, window: 1h, coolDown: 30m, pace: 5m}"
	back := func(w *world) { w.node.Spec.Unschedulable = false }
	events := []step{gpu(lost), gpu(ecc), gpu(ecc), gpu(ecc), gpuFine, gpuFine, says("GPUXidError", "Unknown", ""), says("Ready", "Unknown", ""), says("Ready", "True", ""),
		says("Ready", "True", ""), reboots, cordoned, back, back, untaints, says("DiskFailing", "True", "x")}
	quarantines, opened := 0, 0
	for seed := range uint64(40) {
		random := rand.New(rand.NewPCG(seed, 1))
		f := newFleet(t, 24, spec, "budget: {maxNodes: 4}")
		for range 150 {
			pass := time.Duration(random.IntN(120)) * time.Second
			for _, w := range f.worlds {
				w.now = w.now.Add(pass)
				beats(w)
			}
			i := random.IntN(len(f.worlds))
			events[random.IntN(len(events))](f.worlds[i])
			before := f.broken
			w := f.decide(i)
			if f.broken != nil && before == nil {
				opened++
			}
			for _, e := range w.last.Events {
				if e.Reason != causes.NodeQuarantined {
					continue
				}
				quarantines++
				rack, byRule := 0, 0
				for j, other := range f.worlds {
					r := other.record()
					ours := r != nil && r.Phase == causes.Quarantined
					ready := true
					for _, c := range other.node.Status.Conditions {
						ready = ready && (c.Type != corev1.NodeReady || c.Status == corev1.ConditionTrue)
					}
					if (ours || other.node.Spec.Unschedulable || !ready) && other.node.Labels["rack"] == w.node.Labels["rack"] {
						rack++
					}
					if ours && r.Taint.Rule == "gpu" && j != i {
						byRule++
					}
				}
				if rack > 1 { // 40 percent of a rack of four
					t.Fatalf("seed %d: %d nodes of a rack are out of service", seed, rack)
				}
				if w.record().Taint.Rule == "gpu" && byRule >= 4 {
					t.Fatalf("seed %d: the rule took a place too many", seed)
				}
				if before != nil && w.now.Before(before.OpenedAt.Add(30*time.Minute)) {
					t.Fatalf("seed %d: quarantined while the breaker was open", seed)
				}
			}
		}
	}
	if quarantines < 100 || opened < 5 {
		t.Errorf("only %d quarantines, the breaker opened %d times: the walks prove little", quarantines, opened)
	}
}

func TestAWorseFaultNeverDoesLess(t *testing.T) {
	weight := func(w *world) int {
		r := w.record()
		if r == nil || r.Phase != causes.Quarantined {
			return 0
		}
		weight := 1 + int(r.Taint.Repair)*2
		if w.last.RestartJobs {
			weight++
		}
		return weight
	}
	// From mild to severe, as the default policy orders them.
	ladder := []string{inspect, drain, ecc, lost, replace}
	for seed := range uint64(200) {
		random := rand.New(rand.NewPCG(seed, 2))
		var before []step
		for range random.IntN(6) {
			before = append(before, []step{gpu(ladder[random.IntN(len(ladder))]), gpuFine, decide, reboots, lasts(time.Minute), lasts(11 * time.Minute), others(0), others(1)}[random.IntN(8)])
		}
		last := -1
		for _, message := range ladder {
			w := newWorld(t)
			for _, s := range append(before, gpu(message), decide) {
				s(w)
			}
			if got := weight(w); got < last {
				t.Fatalf("seed %d: %q does %d, a milder fault %d", seed, message, got, last)
			} else {
				last = got
			}
		}
	}
}

// The node that opens the breaker waits as the others do. A person who closes it before is noticed by the controller.
func TestTheNodeThatOpensTheBreakerWaitsNoLongerThanOthers(t *testing.T) {
	f := newFleet(t, 4, "budget: {maxPercent: 100}\nbreaker: {maxNodes: 2, window: 1m, coolDown: 30s, pace: 5m}", "")
	f.each(gpu(ecc))
	if f.phases() != "qqss" || f.broken == nil {
		t.Fatalf("nodes are %s, breaker %v", f.phases(), f.broken)
	}
	for i := 2; i < 4; i++ {
		if after := f.worlds[i].last.RequeueAfter; after <= 0 || after > causes.Recheck {
			t.Errorf("node %d is decided again after %s", i, after)
		}
	}
}

// Whoever frees a place under the budget finds the breaker open next.
func TestEveryLimitThatHoldsANodeBackIsNamed(t *testing.T) {
	w := newWorld(t)
	w.policy.Breaker = &policy.Breaker{MaxNodes: 1, Window: time.Hour, CoolDown: time.Hour}
	w.broken = &limits.BreakerState{OpenedAt: w.now}
	for _, s := range []step{others(1), gpu(lost), decide} {
		s(w)
	}
	if b, too := w.last.Blocked, w.last.BlockedToo; b.Reason != causes.BlockedByBudget || len(too) != 1 || too[0].Reason != causes.BlockedByBreaker || too[0].Message != "the breaker is open" {
		t.Errorf("%+v, also %+v", b, too)
	}
	w.paused = "network work"
	if too := w.look().BlockedToo; len(too) != 2 || too[1].Reason != causes.BlockedByPause {
		t.Errorf("paused: also %+v", too)
	}
}

// A limit that holds back an upgrade is not reported when the restart of jobs is held back, too.
func TestALimitCountsThatIsNotReported(t *testing.T) {
	f := newFleet(t, 4, "budget: {maxPercent: 100}\ncorrelated: {maxPercent: 50, minNodes: 3, window: 2m}", "for: 0s\n      restartJobs: true"+attackRules)
	isBad(f.worlds[0]) // it takes the place of the rule
	says("DiskFailing", "True", "x")(f.worlds[1])
	f.each()
	f.each(passes(10*time.Minute), beats)
	for _, w := range f.worlds[1:] {
		gpu(lost)(w)
	}
	isBad(f.worlds[1])
	d := f.decide(1).last
	if d.Blocked == nil || d.Blocked.Reason != causes.BlockedByDetectorSuspect || !d.Limited {
		t.Errorf("limited: %v, blocked: %+v, the effects are %s", d.Limited, d.Blocked, f.effects())
	}
}

func TestWhoActedIsCleanedAndBounded(t *testing.T) {
	w := newWorld(t)
	long := Manual{User: strings.Repeat("u", 10000) + "\n", Reason: "a\x00b\x1b" + strings.Repeat("ü", 10000)}
	n, err := QuarantineManually(w.node, long, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if n, err = ReleaseManually(n, long, nil, w.now); err != nil {
		t.Fatal(err)
	}
	r, err := causes.RecordOf(n)
	if err != nil {
		t.Fatal(err)
	}
	c := r.Causes[0]
	for _, text := range []string{c.User, c.Message, r.ReleaseUser, r.ReleaseReason, long.Note("released")} {
		if text == "" || len(text) > 1024 || strings.ContainsFunc(text, unicode.IsControl) || !utf8.ValidString(text) {
			t.Errorf("%d bytes: %.80q", len(text), text)
		}
	}
	if got := (Manual{}).Note("released"); got != "released by unknown user: no reason given" {
		t.Error(got)
	}
}
