package verdict

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// measured are reports with one figure each, of node-0 and so on.
func measured(name string, values ...float64) []Report {
	var reports []Report
	for i, v := range values {
		reports = append(reports, Report{Size: len(values), Rank: i, Node: fmt.Sprintf("node-%d", i), Figures: map[string]float64{name: v}})
	}
	return reports
}

func TestFigures(t *testing.T) {
	tests := map[string]struct {
		reports []Report
		want    []Figure
	}{
		"none":             {[]Report{{Node: "a"}}, nil},
		"all alike":        {measured("gemm", 600, 605, 610, 590, 595), []Figure{{"gemm", 600, 5, nil}}},
		"one far below":    {measured("gemm", 600, 605, 500, 590, 595), []Figure{{"gemm", 595, 5, []Below{{"node-2", 500, 0.16}}}}},
		"one a bit below":  {measured("gemm", 600, 600, 545, 600, 600), []Figure{{"gemm", 600, 5, nil}}},
		"too few others":   {measured("gemm", 600, 600, 300, 600), []Figure{{"gemm", 600, 4, nil}}},
		"far above":        {measured("gemm", 600, 600, 900, 600, 600), []Figure{{"gemm", 600, 5, nil}}},
		"two kinds":        {measured("gemm", 600, 600, 600, 600, 300, 300), []Figure{{"gemm", 600, 6, nil}}},
		"several, slowest": {measured("gemm", 100, 100, 100, 80, 100, 70, 100, 100), []Figure{{"gemm", 100, 8, []Below{{"node-5", 70, 0.3}, {"node-3", 80, 0.2}}}}},
		"two ranks of a node": {
			append(measured("gemm", 600, 600, 600, 600, 600), Report{Node: "node-1", Figures: map[string]float64{"gemm": 300}}),
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

// A suspect's pairs may be well: the run does not clear it, and it is not in the JSON for machines.
func TestAFigureNeitherConvictsNorClears(t *testing.T) {
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

func TestFiguresAreReadAndRefused(t *testing.T) {
	report := func(figures string) string {
		return `{"workload_size":2,"rank":0,"node_name":"a","figures":` + figures + `}`
	}
	r, err := ParseReport([]byte(report(`{"gemm":612.5,"host-to-device":55}`)))
	if diff := cmp.Diff(map[string]float64{"gemm": 612.5, "host-to-device": 55}, r.Figures); diff != "" || err != nil {
		t.Error(diff, err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := ParseReport(data); err != nil || !cmp.Equal(r.Figures, again.Figures) {
		t.Errorf("%+v, %v", again, err)
	}
	var many []string
	for i := range maxFigures + 1 {
		many = append(many, fmt.Sprintf(`"f%d":1`, i))
	}
	for figures, want := range map[string]string{
		`{"gemm":0}`:                        "figure gemm is 0",
		`{"gemm":-1}`:                       "figure gemm is -1",
		`{"gemm":1e999}`:                    "not the JSON",
		`{"gemm":"612"}`:                    "not the JSON",
		`{"<b>":1}`:                         "is not named",
		`{"a\nb":1}`:                        "is not named",
		`{"": 1}`:                           "is not named",
		`[1]`:                               "not the JSON",
		"{" + strings.Join(many, ",") + "}": "17 figures, at most 16",
	} {
		if _, err := ParseReport([]byte(report(figures))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", figures, err, want)
		}
	}
	if err := checkFigures(map[string]float64{"gemm": math.NaN()}); err == nil {
		t.Error("NaN is a figure")
	}
}
