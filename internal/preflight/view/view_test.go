package view

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func simulated(n int) Run {
	w := simulate.New(simulate.Scenario{Nodes: n, Slow: 1, Drop: 0.4, Noise: 0.02}, 5)
	reports := w.Reports(5)
	bad := 3
	if w.IsSlow[bad] {
		bad = 4
	}
	reports[bad].GPU, reports[bad].Batches = report.Failed, nil
	for i := range reports {
		reports[i].Figures = map[string]float64{"gemm": 600 + float64(i%3)}
	}
	reports[n-1].Figures["gemm"] = 420
	leaf := map[string]string{}
	for i := range n {
		leaf[simulate.Name(i)] = simulate.Leaf(i)
	}
	return Run{verdict.NewGraph(reports), verdict.Judge("simulated", reports, verdict.Options{Leaf: leaf}), leaf}
}

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
	if len(r.Verdict.Slow) != 1 || !strings.Contains(page.String(), "<th>"+r.Verdict.Slow[0].Node+"</th>") || page.Len() > 1<<20 {
		t.Errorf("slow %v, %d bytes", r.Verdict.Slow, page.Len())
	}
}

func TestNamesAreEscaped(t *testing.T) {
	r := simulated(8)
	r.Graph.Nodes[0], r.Verdict.Run = "<script>", "<script>"
	var page strings.Builder
	if err := HTML(&page, r); err != nil {
		t.Fatal(err)
	}
	if strings.Contains(page.String(), "<script>") {
		t.Error("a name became a tag")
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
