package view

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/schedule"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestGoldens(t *testing.T) {
	for name, show := range map[string]func(*strings.Builder) error{
		"matrix.txt":  func(b *strings.Builder) error { return Text(b, simulated(10)) },
		"slowest.txt": func(b *strings.Builder) error { return Text(b, simulated(32)) },
		"matrix.html": func(b *strings.Builder) error { return HTML(b, simulated(10)) },
	} {
		t.Run(name, func(t *testing.T) {
			var got strings.Builder
			if err := show(&got); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join("testdata", name)
			if *update {
				if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got.String()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestALargeRunShowsTheSuspects(t *testing.T) {
	r := simulated(1024)
	var page strings.Builder
	if err := HTML(&page, r); err != nil {
		t.Fatal(err)
	}
	if len(r.Verdict.Slow) != 1 || !strings.Contains(page.String(), `<th class="name" scope="row">`+r.Verdict.Slow[0].Node+"</th>") || page.Len() > 2<<20 {
		t.Errorf("slow %v, %d bytes", r.Verdict.Slow, page.Len())
	}
}

func TestNamesAreEscaped(t *testing.T) {
	for _, nodes := range []int{8, 64} {
		r := simulated(nodes)
		const tag = `"><script>`
		r.Graph.Nodes[0], r.Verdict.Run, r.Job, r.Verdict.Slow[0].Node = tag, tag, tag, tag
		r.Leaf[tag] = tag
		var page strings.Builder
		if err := HTML(&page, r); err != nil {
			t.Fatal(err)
		}
		if strings.Contains(page.String(), "<script") {
			t.Error("a name became a tag")
		}
	}
}

func TestFindingsAndFacts(t *testing.T) {
	graph := func(known int, tests ...verdict.Test) verdict.Graph {
		return verdict.Graph{Nodes: []string{"a", "b", "c", "d"}[:known], Known: known, FailFast: make([]bool, known), Tests: tests}
	}
	pair := verdict.Test{A: 0, B: 1, Bandwidth: 40}
	for name, tt := range map[string]struct {
		run  Run
		want []string
	}{
		"healthy":      {Run{Graph: graph(3, pair), Verdict: verdict.Verdict{Complete: true, Healthy: []string{"a", "b", "c"}}}, []string{"All 3 nodes are healthy: none is slow, none has failed"}},
		"two nodes":    {Run{Graph: graph(2, pair), Verdict: verdict.Verdict{Complete: true}}, []string{"No fault was found, but only 0 of 2 nodes were measured with two partners or more"}},
		"many slow":    {Run{Graph: graph(4), Verdict: verdict.Verdict{Complete: true, Slow: []verdict.Slow{{Node: "a", Drop: 0.5}, {Node: "b"}, {Node: "c", Drop: 0.41}, {Node: "d"}}}}, []string{"4 of 4 nodes are slow: a (50 % below the median), b, c (41 % below the median) and 1 more"}},
		"switch":       {Run{Graph: graph(3), Verdict: verdict.Verdict{Complete: true, Fabric: []string{"switch left: 2 of its 3 nodes are slow"}, Switches: []string{"left"}}}, []string{"Switch left is a suspect: 2 of its 3 nodes are slow"}},
		"fabric":       {Run{Graph: graph(3), Verdict: verdict.Verdict{Complete: true, Fabric: []string{"every pair failed: fabric or configuration"}}}, []string{"Not one node: every pair failed: fabric or configuration"}},
		"undecided":    {Run{Graph: graph(3), Verdict: verdict.Verdict{Complete: true, Retest: [][2]string{{"a", "b"}, {"a", "c"}}}}, []string{"Undecided: a"}},
		"not reported": {Run{Graph: graph(2), Verdict: verdict.Verdict{Missing: []string{"x"}, Failed: []string{"a"}}}, []string{"1 of 3 nodes has failed its local check: a", "1 of 3 nodes has not reported: x"}},
		"incomplete":   {Run{Graph: graph(2)}, []string{"Not every rank has reported"}},
	} {
		var got []string
		for _, f := range tt.run.Findings() {
			got = append(got, f.Text)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
		if err := HTML(&strings.Builder{}, tt.run); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestTheMedianIsOfHealthyPairs(t *testing.T) {
	r := Run{Graph: verdict.Graph{Nodes: []string{"a", "b", "c"}, Known: 3, Tests: []verdict.Test{{A: 0, B: 1, Bandwidth: 40}, {A: 0, B: 2, Bandwidth: 10}, {A: 1, B: 2, Bandwidth: 10}}}}
	r.Verdict.Healthy = []string{"a", "b"}
	if got, of := r.median(); got != 40 || of != "healthy pairs" {
		t.Error(got, of)
	}
	r.Verdict = verdict.Verdict{Slow: []verdict.Slow{{Node: "a"}, {Node: "b"}, {Node: "c"}}}
	if got, of := r.median(); got != 10 || of != "all pairs" {
		t.Error(got, of)
	}
}

func TestAMatrixIsSmallAndNotAlmostEmpty(t *testing.T) {
	for _, tt := range []struct {
		nodes, rounds int
		want          bool
	}{{2, 1, true}, {8, 5, true}, {16, 5, true}, {17, 5, false}, {24, 23, true}, {25, 25, false}} {
		g := verdict.Graph{Known: tt.nodes}
		for i := range tt.nodes {
			g.Nodes = append(g.Nodes, simulate.Name(i))
		}
		for round, pairs := range schedule.Rounds(tt.nodes, tt.rounds, 1, nil) {
			for _, p := range pairs {
				g.Tests = append(g.Tests, verdict.Test{A: p[0], B: p[1], Batch: round, Bandwidth: 100})
			}
		}
		if got := (Run{Graph: g}).isMatrix(); got != tt.want {
			t.Errorf("%d nodes, %d rounds, %d tests: matrix %v", tt.nodes, tt.rounds, len(g.Tests), got)
		}
	}
}

func TestScale(t *testing.T) {
	for deviation, want := range map[float64]string{-1: "w4", -0.36: "w4", -0.34: "w3", -0.15: "w2", -0.06: "w1", -0.04: "n", 0: "n", 0.04: "n", 0.06: "f1", 0.5: "f2"} {
		if got := class(deviation); got != want {
			t.Errorf("%v is %s, want %s", deviation, got, want)
		}
	}
	for top, want := range map[float64][]float64{0: nil, 3: {0, 0.5, 1, 1.5, 2, 2.5, 3}, 55: {0, 10, 20, 30, 40, 50}, 107: {0, 20, 40, 60, 80, 100}, 380: {0, 100, 200, 300}} {
		if diff := cmp.Diff(want, ticks(top)); diff != "" {
			t.Errorf("%v: %s", top, diff)
		}
	}
}

func TestParseTopology(t *testing.T) {
	got, err := ParseTopology("# node leaf\na left\n\nb  right\n")
	if diff := cmp.Diff(map[string]string{"a": "left", "b": "right"}, got); diff != "" || err != nil {
		t.Error(diff, err)
	}
	if _, err := ParseTopology("a\n"); err == nil {
		t.Error("a node without a leaf")
	}
}
