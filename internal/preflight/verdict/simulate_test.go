package verdict_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

// counts of nodes over a number of simulated runs.
type counts struct{ hit, wrong, missed int }

func simulated(s simulate.Scenario, runs int) (estimate, intersect counts) {
	s.Threshold = 0.9 * simulate.Nominal
	for seed := range runs {
		w := simulate.New(s, uint64(seed))
		reports := w.Reports(5)
		asserted := map[string]bool{}
		for _, slow := range verdict.Judge("", reports, verdict.Options{}).Slow {
			asserted[slow.Node] = true
		}
		g := verdict.NewGraph(reports)
		intersected := map[string]bool{}
		for i, slow := range verdict.Intersect(g, s.Nodes) {
			intersected[g.Nodes[i]] = slow
		}
		for i, slow := range w.IsSlow {
			estimate.count(slow, asserted[simulate.Name(i)])
			intersect.count(slow, intersected[simulate.Name(i)])
		}
	}
	return estimate, intersect
}

func (f *counts) count(slow, named bool) {
	switch {
	case slow && named:
		f.hit++
	case slow:
		f.missed++
	case named:
		f.wrong++
	}
}

func (f counts) recall() float64 { return float64(f.hit) / float64(f.hit+f.missed) }

// The seeds are fixed, so these are exact; bench/slownode measures more cells.
func TestSimulatedRuns(t *testing.T) {
	mixed := simulate.Scenario{Nodes: 256, Slow: 5, Drop: 0.15, Spread: 1, Noise: 0.03, Missing: 0.05, BadLinks: 0.02, Intermittent: 0.9}
	tests := map[string]struct {
		scenario simulate.Scenario
		runs     int
		// recall of the estimate at least, nodes wrongly named by it at most, recall of the intersection at most
		recall    float64
		wrong     int
		intersect float64
	}{
		"severe and clean: both find all":      {simulate.Scenario{Nodes: 64, Slow: 2, Drop: 0.4, Noise: 0.03}, 50, 1, 0, 1},
		"mild: the threshold misses them":      {simulate.Scenario{Nodes: 64, Slow: 2, Drop: 0.12, Noise: 0.03}, 50, 0.95, 0, 0.4},
		"slow now and then":                    {simulate.Scenario{Nodes: 64, Slow: 2, Drop: 0.2, Noise: 0.03, Intermittent: 0.8}, 50, 0.85, 0, 0.5},
		"mixed faults":                         {mixed, 20, 0.95, 1, 0.75},
		"half of eight":                        {simulate.Scenario{Nodes: 8, Slow: 4, Drop: 0.2, Noise: 0.03}, 50, 0.99, 0, 1},
		"many bad links and no slow node":      {simulate.Scenario{Nodes: 64, Noise: 0.03, BadLinks: 0.1}, 50, -1, 1, 1},
		"noise with heavy tails, no slow node": {simulate.Scenario{Nodes: 64, Noise: 0.05, HeavyTail: true}, 50, -1, 0, 1},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			estimate, intersect := simulated(tt.scenario, tt.runs)
			t.Logf("estimate %+v, intersect %+v", estimate, intersect)
			if estimate.wrong > tt.wrong {
				t.Errorf("%d nodes wrongly named, want at most %d", estimate.wrong, tt.wrong)
			}
			if tt.scenario.Slow == 0 {
				return
			}
			if estimate.recall() < tt.recall {
				t.Errorf("recall %.3f, want %.3f", estimate.recall(), tt.recall)
			}
			if intersect.recall() > tt.intersect {
				t.Errorf("the intersection's recall is %.3f: the scenario does not tell the two apart", intersect.recall())
			}
		})
	}
}

// The nodes of a rack test each other in two of five rounds, and every tenth link is bad, so the tests of a single node are
// not enough.
func TestTheSwitchOfASlowRackIsReported(t *testing.T) {
	const runs = 20
	reported, wrong := 0, 0
	for seed := range uint64(runs) {
		w := simulate.New(simulate.Scenario{Nodes: 256, Slow: 8, Rack: true, Topology: true, Drop: 0.2, Noise: 0.05, BadLinks: 0.1}, seed)
		leaf, slow := map[string]string{}, ""
		for i, isSlow := range w.IsSlow {
			leaf[simulate.Name(i)] = simulate.Leaf(i)
			if isSlow {
				slow = "switch " + simulate.Leaf(i) + ":"
			}
		}
		v := verdict.Judge("", w.Reports(5), verdict.Options{Leaf: leaf})
		for _, why := range v.Fabric {
			if strings.HasPrefix(why, slow) {
				reported++
			} else {
				wrong++
			}
		}
	}
	if reported < 19 || wrong > 0 {
		t.Errorf("the switch was reported in %d of %d runs, others %d times", reported, runs, wrong)
	}
}

// The target is 1 s on one core of the reference machine; a test machine may be slow, busy or both.
func TestTheLargestRunIsJudgedInSeconds(t *testing.T) {
	reports := simulate.New(simulate.Scenario{Nodes: report.MaxRanks, Slow: 50, Drop: 0.3, Noise: 0.03}, 1).Reports(5)
	start := time.Now()
	v := verdict.Judge("", reports, verdict.Options{})
	if took := time.Since(start); took > 2*time.Minute {
		t.Errorf("took %s", took)
	}
	if len(v.Slow) != 50 {
		t.Errorf("%d of 50 slow nodes named", len(v.Slow))
	}
}

func TestAdaptiveRoundsTestTheSuspects(t *testing.T) {
	w := simulate.New(simulate.Scenario{Nodes: 64, Slow: 1, Drop: 0.3, Noise: 0.02}, 3)
	reports := w.Reports(3)
	pairs := verdict.Next(reports)
	if len(pairs) == 0 || len(pairs) > 8 {
		t.Fatalf("%d pairs for one slow node of 64", len(pairs))
	}
	for i, slow := range w.IsSlow {
		if slow && pairs[0][0] != simulate.Name(i) {
			t.Errorf("%s is tested first, not the slow %s", pairs[0][0], simulate.Name(i))
		}
	}
	if pairs := verdict.Next(simulate.New(simulate.Scenario{Nodes: 64, Noise: 0.01}, 3).Reports(3)); len(pairs) != 0 {
		t.Errorf("%v without a suspect", pairs)
	}
}
