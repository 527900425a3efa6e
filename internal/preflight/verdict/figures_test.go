package verdict

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// measured are reports with one figure each, from node-0 and so on.
func measured(name string, values ...float64) []report.Report {
	var reports []report.Report
	for i, v := range values {
		reports = append(reports, report.Report{Size: len(values), Rank: i, Node: fmt.Sprintf("node-%d", i), Figures: map[string]float64{name: v}})
	}
	return reports
}

func TestFigures(t *testing.T) {
	tests := map[string]struct {
		reports []report.Report
		want    []Figure
	}{
		"none":             {[]report.Report{{Node: "a"}}, nil},
		"all similar":      {measured("gemm", 600, 605, 610, 590, 595), []Figure{{"gemm", 600, 5, nil}}},
		"one far below":    {measured("gemm", 600, 605, 500, 590, 595), []Figure{{"gemm", 595, 5, []Below{{"node-2", 500, 0.16}}}}},
		"one a bit lower":  {measured("gemm", 600, 600, 545, 600, 600), []Figure{{"gemm", 600, 5, nil}}},
		"too few others":   {measured("gemm", 600, 600, 300, 600), []Figure{{"gemm", 600, 4, nil}}},
		"far above":        {measured("gemm", 600, 600, 900, 600, 600), []Figure{{"gemm", 600, 5, nil}}},
		"two kinds":        {measured("gemm", 600, 600, 600, 600, 300, 300), []Figure{{"gemm", 600, 6, nil}}},
		"several, slowest": {measured("gemm", 100, 100, 100, 80, 100, 70, 100, 100), []Figure{{"gemm", 100, 8, []Below{{"node-5", 70, 0.3}, {"node-3", 80, 0.2}}}}},
		"two ranks of a node": {
			append(measured("gemm", 600, 600, 600, 600, 600), report.Report{Node: "node-1", Figures: map[string]float64{"gemm": 300}}),
			[]Figure{{"gemm", 600, 5, []Below{{"node-1", 300, 0.5}}}},
		},
		"two figures": {
			append(measured("hbm", 3, 3), measured("gemm", 5)...),
			[]Figure{{"gemm", 5, 1, nil}, {"hbm", 3, 2, nil}},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, figures(tt.reports), cmpopts.EquateApprox(0, 0.001)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// The pairs of a suspect may be healthy. The run does not clear it, and it is not in the JSON for programs.
func TestAFigureNeitherAssertsNorClears(t *testing.T) {
	reports := run{names: "abcdef", batches: circle6("", 10)}.reports()
	for i := range reports {
		reports[i].Figures = map[string]float64{"gemm": 100}
	}
	reports[4].Figures["gemm"] = 50
	v := Judge("r", reports, Options{})
	if len(v.Slow) > 0 || len(v.Figures) != 1 || len(v.Figures[0].Below) != 1 {
		t.Errorf("%+v", v)
	}
	if diff := cmp.Diff([]string{"a", "b", "c", "d", "f"}, v.Healthy); diff != "" {
		t.Error(diff)
	}
	data, err := json.Marshal(v)
	if err != nil || strings.Contains(string(data), "gemm") {
		t.Errorf("%s, %v", data, err)
	}
}
