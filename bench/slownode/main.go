// Command slownode measures how well the verdicts name the slow nodes, on simulated runs whose slow nodes are known: the
// estimate, kcover's intersection and a two-round median rule like DLRover's, over size, number of slow nodes, drop,
// noise and faults. It prints Markdown tables; -update writes them to testdata/table.md, which a test holds.
//
// It is a simulation: the noise of half the tables is the noise that the estimate assumes. The others break it.
package main

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/remediator/preflight/verdict/simulate"
)

const rounds = 5

// published is how many runs of each cell testdata/table.md counts.
const published = 48

// tolerance of the fixed threshold that the intersection and the two-round rule are given: 10 % below nominal, which
// they are told and the estimate is not.
const tolerance = 0.10

func main() {
	trials := flag.Int("trials", published, "runs of each cell; a quarter of it from 256 nodes, a twelfth from 1024")
	update := flag.Bool("update", false, "write bench/slownode/testdata/table.md")
	full := flag.Bool("full", false, "the whole grid, one line for each cell (hours)")
	flag.Parse()
	var out bytes.Buffer
	if *full {
		grid(&out, *trials)
	} else {
		tables(&out, *trials)
		speed()
	}
	fmt.Print(out.String())
	if *update {
		if err := os.WriteFile("bench/slownode/testdata/table.md", out.Bytes(), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "slownode:", err)
			os.Exit(1)
		}
	}
}

// cell is a scenario with its name.
type cell struct {
	name string
	simulate.Scenario
}

// tables are the published cells: one fault at a time, then all together, then noise that nobody assumes.
func tables(out *bytes.Buffer, trials int) {
	base := simulate.Scenario{Nodes: 64, Slow: 2, Drop: 0.2, Noise: 0.03}
	with := func(name string, change func(*simulate.Scenario)) cell {
		s := base
		change(&s)
		return cell{name, s}
	}
	mixed := simulate.Scenario{Nodes: 1024, Slow: 20, Drop: 0.15, Spread: 1, Noise: 0.03, Missing: 0.05, BadLinks: 0.02, Intermittent: 0.9}
	var size, faults, none, other []cell
	for _, n := range []int{8, 16, 64, 256, 1024} {
		for _, k := range slices.Compact([]int{1, n / 8}) {
			size = append(size, with(fmt.Sprintf("%d of %d", k, n), func(s *simulate.Scenario) { s.Nodes, s.Slow = n, k }))
		}
	}
	for _, drop := range []float64{0.08, 0.12, 0.4} {
		faults = append(faults, with(fmt.Sprintf("drop %.0f %%", drop*100), func(s *simulate.Scenario) { s.Drop = drop }))
	}
	faults = append(faults,
		with("noise 1 %", func(s *simulate.Scenario) { s.Noise = 0.01 }),
		with("noise 5 %", func(s *simulate.Scenario) { s.Noise = 0.05 }),
		with("5 % missing", func(s *simulate.Scenario) { s.Missing = 0.05 }),
		with("15 % missing", func(s *simulate.Scenario) { s.Missing = 0.15 }),
		with("2 % bad links", func(s *simulate.Scenario) { s.BadLinks = 0.02 }),
		with("10 % bad links", func(s *simulate.Scenario) { s.BadLinks = 0.10 }),
		with("slow in 80 % of tests", func(s *simulate.Scenario) { s.Intermittent = 0.8 }),
		with("half of 8 slow", func(s *simulate.Scenario) { s.Nodes, s.Slow = 8, 4 }),
		with("a rack of 8 slow", func(s *simulate.Scenario) { s.Slow, s.Rack = 8, true }),
		cell{"1024 nodes, all mixed", mixed},
	)
	for _, n := range []int{8, 64, 1024} {
		for _, noise := range []float64{0.01, 0.05} {
			for _, links := range []float64{0, 0.10} {
				none = append(none, with(fmt.Sprintf("%d nodes, noise %.0f %%, %.0f %% bad links", n, noise*100, links*100), func(s *simulate.Scenario) {
					s.Nodes, s.Slow, s.Noise, s.BadLinks = n, 0, noise, links
				}))
			}
		}
	}
	heavy := mixed
	heavy.HeavyTail = true
	other = append(other,
		with("heavy tails, none slow", func(s *simulate.Scenario) { s.Slow, s.HeavyTail = 0, true }),
		with("heavy tails", func(s *simulate.Scenario) { s.HeavyTail = true }),
		with("congested leaves 10 %, none slow", func(s *simulate.Scenario) { s.Slow, s.Congestion = 0, 0.1 }),
		with("congested leaves 10 %", func(s *simulate.Scenario) { s.Congestion = 0.1 }),
		with("the same, schedule by leaf, none slow", func(s *simulate.Scenario) { s.Slow, s.Congestion, s.Topology = 0, 0.1, true }),
		with("the same, schedule by leaf", func(s *simulate.Scenario) { s.Congestion, s.Topology = 0.1, true }),
		cell{"1024 nodes, all mixed, heavy tails", heavy},
	)
	for _, t := range []struct {
		title string
		cells []cell
	}{
		{"Size (drop 20 %, noise 3 %)", size},
		{"One fault (2 of 64 slow, drop 20 %, noise 3 %, unless said)", faults},
		{"Nobody is slow", none},
		{"Noise that the estimate does not assume", other},
	} {
		fmt.Fprintf(out, "## %s\n\n| scenario | runs | method | precision | recall | exact set | false positives per run | tests |\n|---|---|---|---|---|---|---|---|\n", t.title)
		for _, c := range t.cells {
			c.print(out, trials)
		}
		fmt.Fprintln(out)
	}
}

// grid is every cell of the comparison.
func grid(out *bytes.Buffer, trials int) {
	fmt.Fprintln(out, "| scenario | runs | method | precision | recall | exact set | false positives per run | tests |\n|---|---|---|---|---|---|---|---|")
	for _, n := range []int{8, 16, 64, 256, 1024, 10000} {
		for _, k := range slices.Compact(slices.Sorted(slices.Values([]int{0, 1, 2, 4, n / 8, -min(8, n/2)}))) {
			for _, drop := range []float64{0.08, 0.12, 0.20, 0.40} {
				for _, noise := range []float64{0.01, 0.03, 0.05} {
					for _, missing := range []float64{0, 0.05, 0.15} {
						for _, links := range []float64{0, 0.02, 0.10} {
							for _, often := range []float64{1, 0.8} {
								cell{
									fmt.Sprintf("n=%d slow=%d drop=%g noise=%g missing=%g links=%g often=%g", n, k, drop, noise, missing, links, often),
									simulate.Scenario{Nodes: n, Slow: max(k, -k), Rack: k < 0, Drop: drop, Noise: noise, Missing: missing, BadLinks: links, Intermittent: often},
								}.print(out, trials)
								fmt.Print(out.String())
								out.Reset()
							}
						}
					}
				}
			}
		}
	}
}

func (c cell) print(out *bytes.Buffer, trials int) {
	if c.Nodes >= 256 {
		trials = max(trials/4, 1)
	}
	if c.Nodes >= 1024 {
		trials = max(trials/3, 1)
	}
	for _, m := range methods {
		s := score{}
		for trial := range trials {
			m.run(simulate.New(c.Scenario, uint64(trial)), &s)
		}
		fmt.Fprintf(out, "| %s | %d | %s | %s |\n", c.name, trials, m.name, s.String(trials))
	}
}

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

// share is 1 of nothing: nobody was accused wrongly, nobody was missed.
func share(n, of int) float64 {
	if of == 0 {
		return 1
	}
	return float64(n) / float64(of)
}

func (s score) String(trials int) string {
	t := float64(trials)
	return fmt.Sprintf("%.3f | %.3f | %.3f | %.3f | %.0f", s.precision(), s.recall(), float64(s.exact)/t, float64(s.wrong)/t, float64(s.tests)/t)
}

type method struct {
	name string
	run  func(*simulate.World, *score)
}

var methods = []method{
	{"seed rule", func(w *simulate.World, s *score) {
		reports := w.Reports(rounds)
		got, tests := seed(w, reports)
		s.add(w.IsSlow, got, tests)
	}},
	{"intersect", func(w *simulate.World, s *score) {
		w.Threshold = (1 - tolerance) * simulate.Nominal
		g := verdict.NewGraph(w.Reports(rounds))
		s.add(w.IsSlow, named(w, g.Nodes, verdict.Intersect(g, w.Nodes)), len(g.Tests))
	}},
	{"two-round median", twoRounds},
	{"estimate", func(w *simulate.World, s *score) {
		reports := w.Reports(rounds)
		s.add(w.IsSlow, judged(w, reports), tests(reports))
	}},
	{"estimate, threshold", func(w *simulate.World, s *score) {
		w.Threshold = (1 - tolerance) * simulate.Nominal
		reports := w.Reports(rounds)
		s.add(w.IsSlow, judged(w, reports), tests(reports))
	}},
	{"estimate, adaptive", func(w *simulate.World, s *score) {
		reports := w.Reports(rounds - 2)
		for round := rounds - 2; round < rounds; round++ {
			for _, pair := range verdict.Next(reports) {
				w.Add(reports, index(pair[0]), index(pair[1]), round)
			}
		}
		s.add(w.IsSlow, judged(w, reports), tests(reports))
	}},
}

// judged is what the verdict convicts, without a topology.
func judged(w *simulate.World, reports []verdict.Report) []bool {
	got := make([]bool, w.Nodes)
	for _, slow := range verdict.Judge("", reports, verdict.Options{}).Slow {
		got[index(slow.Node)] = true
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

func index(name string) int {
	var i int
	if _, err := fmt.Sscanf(name, "node-%d", &i); err != nil {
		panic(err)
	}
	return i
}

func tests(reports []verdict.Report) int {
	n := 0
	for _, r := range reports {
		n += len(r.Batches)
	}
	return n / 2
}

// seed is kcover's rule as it was: a node is slow if it was in a bad pair in every batch, so one lost report acquits.
func seed(w *simulate.World, reports []verdict.Report) ([]bool, int) {
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
	return got, tests(reports)
}

// twoRounds is like DLRover's node check: neighbours first, then the fastest with the slowest; slow is who was below
// the median's tolerance in both. A lost test counts as slow.
func twoRounds(w *simulate.World, s *score) {
	order := make([]int, w.Nodes)
	for i := range order {
		order[i] = i
	}
	round := func(pairs [][2]int, number int) []float64 {
		times := make([]float64, w.Nodes)
		for _, p := range pairs {
			gibps, ok := w.Test(p[0], p[1], number)
			if !ok {
				gibps = 0
			}
			times[p[0]], times[p[1]] = gibps, gibps
		}
		return times
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
	s.add(w.IsSlow, got, len(neighbours)+len(extremes))
}

// speed judges a run of the largest size on one core.
func speed() {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	reports := simulate.New(simulate.Scenario{Nodes: verdict.MaxSize, Slow: 50, Drop: 0.3, Noise: 0.03}, 1).Reports(rounds)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	v := verdict.Judge("", reports, verdict.Options{})
	took := time.Since(start)
	runtime.ReadMemStats(&after)
	fmt.Fprintf(os.Stderr, "%d nodes x %d rounds judged in %s on one core, %d MB allocated in all, %d of 50 slow nodes named\n",
		verdict.MaxSize, rounds, took.Round(time.Millisecond), (after.TotalAlloc-before.TotalAlloc)>>20, len(v.Slow))
}
