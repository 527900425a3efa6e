// Command slownode measures how well the verdicts name the slow nodes, on simulated runs whose slow nodes are known. It
// compares the estimate, kcover's intersection and a two-round median rule like DLRover's, over size, number of slow nodes,
// drop, noise and faults. It prints Markdown tables; -update writes them to testdata/table.md, and a test checks that file.
//
// It is a simulation: in half of the tables the noise is the noise that the estimate assumes, in the others it is not.
package main

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

// published is how many runs of each cell testdata/table.md counts.
const published = 48

func main() {
	trials := flag.Int("trials", published, "runs of each cell; a quarter of it from 256 nodes, a twelfth from 1024")
	update := flag.Bool("update", false, "write bench/slownode/testdata/table.md")
	summary := flag.Bool("summary", false, "print a summary of bench/slownode/testdata/grid.csv")
	grid := flag.String("grid", "", "measure the cells of the whole grid that `file` lacks (hours; may be stopped)")
	flag.Parse()
	if err := run(*trials, *update, *summary, *grid); err != nil {
		fmt.Fprintln(os.Stderr, "slownode:", err)
		os.Exit(1)
	}
}

func run(trials int, update, summary bool, grid string) error {
	if grid != "" {
		return extendGrid(grid)
	}
	if summary {
		return printSummary(os.Stdout)
	}
	var out bytes.Buffer
	tables(&out, trials)
	if err := speed(); err != nil {
		return err
	}
	fmt.Print(out.String())
	if update {
		return os.WriteFile("bench/slownode/testdata/table.md", out.Bytes(), 0o644)
	}
	return nil
}

func printSummary(w io.Writer) error {
	f, err := os.Open("bench/slownode/testdata/grid.csv")
	if err != nil {
		return err
	}
	defer f.Close()
	all, err := readGrid(f)
	if err != nil {
		return fmt.Errorf("read %s: %w", f.Name(), err)
	}
	summarize(w, all)
	return nil
}

// cell is a scenario with its name, and how many runs it has if not as many as others of its size.
type cell struct {
	name string
	simulate.Scenario
	runs int
}

// tables are the published cells: one fault at a time, then all together, then noise that the estimate does not assume.
func tables(out *bytes.Buffer, trials int) {
	base := simulate.Scenario{Nodes: 64, Slow: 2, Drop: 0.2, Noise: 0.03}
	with := func(name string, change func(*simulate.Scenario)) cell {
		s := base
		change(&s)
		return cell{name, s, 0}
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
		cell{"1024 nodes, all mixed", mixed, published / 2},
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
		cell{"1024 nodes, all mixed, heavy tails", heavy, 0},
	)
	for _, t := range []struct {
		title string
		cells []cell
	}{
		{"Size (drop 20 %, noise 3 %)", size},
		{"One fault (2 of 64 slow, drop 20 %, noise 3 %, unless noted)", faults},
		{"No slow nodes", none},
		{"Noise that the estimate does not assume", other},
	} {
		fmt.Fprintf(out, "## %s\n\n| scenario | runs | method | precision | recall | exact set | false positives per run | tests |\n|---|---|---|---|---|---|---|---|\n", t.title)
		for _, c := range t.cells {
			c.print(out, trials)
		}
		fmt.Fprintln(out)
	}
}

func (c cell) print(out *bytes.Buffer, trials int) {
	switch {
	case c.runs > 0:
		trials = min(c.runs, trials)
	case c.Nodes >= 1024:
		trials = max(trials/12, 1)
	case c.Nodes >= 256:
		trials = max(trials/4, 1)
	}
	line := func(method string, s score) {
		t := float64(trials)
		fmt.Fprintf(out, "| %s | %d | %s | %.3f | %.3f | %.3f | %.3f | %.0f |\n",
			c.name, trials, method, s.precision(), s.recall(), float64(s.exact)/t, float64(s.wrong)/t, float64(s.tests)/t)
	}
	for m, s := range measure(c.Scenario, trials) {
		line(methodNames[m], s)
	}
	line("estimate, adaptive", measureAdaptive(c.Scenario, trials))
}
