package view

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

// sample is a simulated run of five rounds with its leaves.
func sample(s simulate.Scenario, seed uint64) Run {
	s.Noise = 0.02
	reports := simulate.New(s, seed).Reports(5)
	return judged(reports)
}

func judged(reports []report.Report) Run {
	leaf := map[string]string{}
	for _, r := range reports {
		leaf[r.Node] = simulate.Leaf(r.Rank)
	}
	return Run{
		Graph: verdict.NewGraph(reports), Verdict: verdict.Judge("simulated", reports, verdict.Options{Leaf: leaf}), Leaf: leaf,
		Job: "team-a/llama-70b", Date: time.Date(2026, 11, 22, 13, 5, 0, 0, time.UTC),
	}
}

// simulated is a run with a slow node, one whose local check failed and one with a low figure.
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
	return judged(reports)
}
