// Package simulate makes the reports of runs whose slow nodes are known. The tests of the verdict use it, and
// bench/slownode, which publishes how accurate the verdict is.
package simulate

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
)

// Nominal is the bandwidth of a healthy pair, GiB/s.
const Nominal = 100

// NodesPerLeaf is the number of nodes of a rack and of its leaf switch.
const NodesPerLeaf = 8

// Scenario describes the faults of a run. Shares and probabilities are from 0 to 1.
type Scenario struct {
	// Nodes is the number of nodes of the run, of which Slow are slow. Rack puts the slow ones into one rack, and those for
	// which it has no room into the next.
	Nodes, Slow int
	Rack        bool
	// Drop is the share of bandwidth that a slow node loses. Spread increases it at random by up to this share of itself.
	Drop, Spread float64
	// Noise is the standard deviation of a test, in natural logarithms.
	Noise float64
	// Missing is the share of tests that are not reported. BadLinks is the share of tests that a link slows by 10 to 50 %.
	// Intermittent is the probability that a slow node is slow in a test; 0 means always.
	Missing, BadLinks, Intermittent float64
	// HeavyTail draws the noise from Student's t with 3 degrees of freedom, scaled to the same standard deviation.
	HeavyTail bool
	// Congestion is the probability that the uplink of a leaf is congested in a round. Its tests with other leaves then lose
	// 20 %.
	Congestion float64
	// Topology makes the schedule use the leaves.
	Topology bool
	// Threshold of the reports is in GiB/s; 0: none.
	Threshold float64
}

// World is one run of a scenario. Its slow nodes are fixed, and it can run tests.
type World struct {
	Scenario
	// IsSlow marks the slow nodes, by index.
	IsSlow []bool
	random *rand.Rand
	// drop of each node, in natural logarithms.
	drop []float64
	// congestedIn is whether a leaf's uplink is congested in a round, as far as it was drawn.
	congestedIn map[[2]int]bool
}

// New draws a run. The same scenario and seed always make the same run.
func New(s Scenario, seed uint64) *World {
	random := rand.New(rand.NewPCG(seed, 0))
	w := &World{Scenario: s, IsSlow: make([]bool, s.Nodes), drop: make([]float64, s.Nodes), random: random, congestedIn: map[[2]int]bool{}}
	slow := random.Perm(s.Nodes)[:s.Slow]
	if s.Rack {
		start := random.IntN(max(s.Nodes/NodesPerLeaf, 1)) * NodesPerLeaf
		for i := range slow {
			slow[i] = (start + i) % s.Nodes
		}
	}
	for _, i := range slow {
		w.IsSlow[i] = true
		w.drop[i] = -math.Log(1 - s.Drop*(1+s.Spread*random.Float64()))
	}
	return w
}

// Name is the name of node i.
func Name(i int) string { return fmt.Sprintf("node-%05d", i) }

// Leaf is the leaf switch of node i.
func Leaf(i int) string { return fmt.Sprintf("leaf-%04d", i/NodesPerLeaf) }

func address(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, byte(i >> 8), byte(i)}) }

// Test measures a pair in a round, in GiB/s. It is not ok when the result is lost.
func (w *World) Test(a, b, round int) (gibps float64, ok bool) {
	x := -max(w.currentDrop(a), w.currentDrop(b)) + w.noise()
	if w.random.Float64() < w.BadLinks {
		x += math.Log(1 - 0.1 - 0.4*w.random.Float64())
	}
	if a/NodesPerLeaf != b/NodesPerLeaf && (w.congested(a/NodesPerLeaf, round) || w.congested(b/NodesPerLeaf, round)) {
		x += math.Log(0.8)
	}
	return Nominal * math.Exp(x), w.random.Float64() >= w.Missing
}

func (w *World) currentDrop(i int) float64 {
	if w.Intermittent > 0 && w.drop[i] > 0 && w.random.Float64() > w.Intermittent {
		return 0
	}
	return w.drop[i]
}

func (w *World) noise() float64 {
	z := w.random.NormFloat64()
	if w.HeavyTail {
		chi := 0.0
		for range 3 {
			n := w.random.NormFloat64()
			chi += n * n
		}
		z /= math.Sqrt(chi) // t3 over its standard deviation √3
	}
	return w.Noise * z
}

func (w *World) congested(leaf, round int) bool {
	if w.Congestion == 0 {
		return false
	}
	key := [2]int{leaf, round}
	if _, ok := w.congestedIn[key]; !ok {
		w.congestedIn[key] = w.random.Float64() < w.Congestion
	}
	return w.congestedIn[key]
}

// Reports runs the rounds of the shuffled schedule and returns the reports that the nodes would write.
func (w *World) Reports(rounds int) []report.Report {
	reports := make([]report.Report, w.Nodes)
	for i := range reports {
		reports[i] = report.Report{RunID: "simulated", Size: w.Nodes, Rank: i, Node: Name(i), IP: address(i),
			GPU: report.Passed, Storage: report.Passed, Threshold: w.Threshold}
	}
	var leaf []string
	if w.Topology {
		for i := range w.Nodes {
			leaf = append(leaf, Leaf(i))
		}
	}
	for round, pairs := range schedule.Rounds(w.Nodes, rounds, w.random.Uint64(), leaf) {
		for _, p := range pairs {
			w.Add(reports, p[0], p[1], round)
		}
	}
	return reports
}

// Add tests one more pair and adds the result to the reports of both ends.
func (w *World) Add(reports []report.Report, a, b, round int) {
	gibps, ok := w.Test(a, b, round)
	if !ok {
		return
	}
	pair := [2]netip.Addr{address(min(a, b)), address(max(a, b))}
	for _, i := range [2]int{a, b} {
		reports[i].Batches = append(reports[i].Batches, report.Batch{Index: round, Pair: pair, Self: address(i), Bandwidth: gibps})
	}
}
