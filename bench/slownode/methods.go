package main

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

const rounds = 5

// tolerance of the fixed threshold that the seed rule, the intersection and the two-round rule get: 10 % below the nominal
// bandwidth, which the estimate does not get.
const tolerance = 0.10

// The methods compared, as indices of scores.
const (
	seedRule = iota
	intersect
	twoRoundMedian
	estimate
	methods
)

var methodNames = [methods]string{"seed rule", "intersect", "two-round median", "estimate"}

// score counts nodes and runs.
type score struct{ hit, wrong, missed, exact, tests int }

func (s *score) add(isSlow, got []bool, tests int) {
	before := *s
	for i, slow := range isSlow {
		switch {
		case slow && got[i]:
			s.hit++
		case slow:
			s.missed++
		case got[i]:
			s.wrong++
		}
	}
	if s.missed == before.missed && s.wrong == before.wrong {
		s.exact++
	}
	s.tests += tests
}

func (s score) precision() float64 { return share(s.hit, s.hit+s.wrong) }
func (s score) recall() float64    { return share(s.hit, s.hit+s.missed) }

// share is 1 if there is nothing to count: no node was wrongly named or missed.
func share(n, of int) float64 {
	if of == 0 {
		return 1
	}
	return float64(n) / float64(of)
}

// measure runs a scenario with the seeds 0 to runs-1, the same for each method.
func measure(s simulate.Scenario, runs int) [methods]score {
	var scores [methods]score
	for seed := range uint64(runs) {
		w := simulate.New(s, seed)
		reports := w.Reports(rounds)
		count := tests(reports)
		scores[seedRule].add(w.IsSlow, seedNames(w, reports), count)
		scores[estimate].add(w.IsSlow, judged(w, reports), count)
		for i := range reports {
			reports[i].Threshold = (1 - tolerance) * simulate.Nominal
		}
		g := verdict.NewGraph(reports)
		scores[intersect].add(w.IsSlow, named(w, g.Nodes, verdict.Intersect(g, w.Nodes)), count)

		w = simulate.New(s, seed)
		scores[twoRoundMedian].add(w.IsSlow, twoRounds(w), w.Nodes/2*2)
	}
	return scores
}

// measureAdaptive is the estimate after three rounds and two in which only suspects are tested.
func measureAdaptive(s simulate.Scenario, runs int) score {
	var sum score
	for seed := range uint64(runs) {
		w := simulate.New(s, seed)
		reports := w.Reports(rounds - 2)
		for round := rounds - 2; round < rounds; round++ {
			for _, pair := range verdict.Next(reports) {
				w.Add(reports, index(pair[0]), index(pair[1]), round)
			}
		}
		sum.add(w.IsSlow, judged(w, reports), tests(reports))
	}
	return sum
}

// judged are the nodes that the verdict asserts to be slow. A slow rack is judged with the topology, because it is scheduled
// with it. A verdict about a switch names all of its nodes.
func judged(w *simulate.World, reports []report.Report) []bool {
	var o verdict.Options
	if w.Rack {
		o.Leaf = map[string]string{}
		for i := range w.Nodes {
			o.Leaf[simulate.Name(i)] = simulate.Leaf(i)
		}
	}
	v := verdict.Judge("", reports, o)
	got := make([]bool, w.Nodes)
	for _, slow := range v.Slow {
		got[index(slow.Node)] = true
	}
	for i := range got {
		got[i] = got[i] || slices.ContainsFunc(v.Fabric, func(why string) bool { return strings.HasPrefix(why, "switch "+simulate.Leaf(i)+":") })
	}
	return got
}

func named(w *simulate.World, names []string, slow []bool) []bool {
	got := make([]bool, w.Nodes)
	for i, name := range names {
		got[index(name)] = slow[i]
	}
	return got
}

// index is the inverse of [simulate.Name].
func index(name string) int {
	i, err := strconv.Atoi(strings.TrimPrefix(name, "node-"))
	if err != nil {
		panic(err)
	}
	return i
}

func tests(reports []report.Report) int {
	n := 0
	for _, r := range reports {
		n += len(r.Batches)
	}
	return n / 2
}

// seedNames is kcover's original rule: a node is slow if it was in a bad pair in every batch, so one lost report clears it.
func seedNames(w *simulate.World, reports []report.Report) []bool {
	got := make([]bool, w.Nodes)
	for i, r := range reports {
		bad := 0
		for _, b := range r.Batches {
			if b.Bandwidth < (1-tolerance)*simulate.Nominal {
				bad++
			}
		}
		got[i] = bad == min(w.Nodes-1, rounds)
	}
	return got
}

// twoRounds is like DLRover's node check: neighbours first, then the fastest with the slowest; slow is who was below
// the median's tolerance in both. A lost test counts as slow.
func twoRounds(w *simulate.World) []bool {
	order := make([]int, w.Nodes)
	for i := range order {
		order[i] = i
	}
	round := func(pairs [][2]int, number int) []float64 {
		speeds := make([]float64, w.Nodes)
		for _, p := range pairs {
			gibps, ok := w.Test(p[0], p[1], number)
			if !ok {
				gibps = 0
			}
			speeds[p[0]], speeds[p[1]] = gibps, gibps
		}
		return speeds
	}
	var neighbours, extremes [][2]int
	for i := 0; i+1 < w.Nodes; i += 2 {
		neighbours = append(neighbours, [2]int{i, i + 1})
	}
	first := round(neighbours, 0)
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(first[a], first[b]) })
	for i := range w.Nodes / 2 {
		extremes = append(extremes, [2]int{order[i], order[w.Nodes-1-i]})
	}
	second := round(extremes, 1)
	typical := slices.Sorted(slices.Values(first))[w.Nodes/2]
	got := make([]bool, w.Nodes)
	for i := range got {
		got[i] = max(first[i], second[i]) < (1-tolerance)*typical
	}
	return got
}
