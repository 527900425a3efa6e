package report

import (
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"os"
	"runtime/metrics"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

var equateAddresses = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func TestKcoversOwnReportsAreRead(t *testing.T) {
	ip := netip.MustParseAddr
	want := map[string]Report{
		"raw": {Workload: "train-4", Size: 4, Node: "gpu-a", IP: ip("10.1.0.11"), GPU: Passed, Storage: Passed, Threshold: 12.5, Batches: []Batch{
			{Index: 0, Pair: [2]netip.Addr{ip("10.1.0.11"), ip("10.1.0.14")}, Self: ip("10.1.0.11"), Bandwidth: 31.25},
			{Index: 1, Pair: [2]netip.Addr{ip("10.1.0.11"), ip("10.1.0.13")}, Self: ip("10.1.0.11"), Bandwidth: 6.25},
			{Index: 2, Pair: [2]netip.Addr{ip("10.1.0.11"), ip("10.1.0.12")}, Self: ip("10.1.0.11"), Bandwidth: 31.25},
		}},
		"compact": {Size: 4, Rank: 2, Node: "gpu-c", IP: ip("10.1.0.13"), GPU: Passed, Storage: Passed, Threshold: 12.5, Batches: []Batch{
			{Index: 0, Pair: [2]netip.Addr{ip("10.1.0.12"), ip("10.1.0.13")}, Self: ip("10.1.0.13"), Status: Fail},
			{Index: 1, Pair: [2]netip.Addr{ip("10.1.0.11"), ip("10.1.0.13")}, Self: ip("10.1.0.13"), Status: Fail},
			{Index: 2, Pair: [2]netip.Addr{ip("10.1.0.13"), ip("10.1.0.14")}, Self: ip("10.1.0.13"), Status: Skip},
		}},
		"failfast": {Size: 4, Rank: 3, Node: "gpu-d", IP: ip("10.1.0.14"), GPU: Failed, Storage: Passed},
	}
	for name, want := range want {
		t.Run(name, func(t *testing.T) {
			data, err := os.ReadFile("testdata/kcover-" + name + ".json")
			if err != nil {
				t.Fatal(err)
			}
			got, err := Parse(data)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got, equateAddresses, cmpopts.EquateApprox(1e-9, 0)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestBandwidthIsTheBusBandwidthOfNCCL(t *testing.T) {
	for _, tt := range []struct {
		ms, shape float64
		want      float64
	}{{12.345, 268435456, 151.88}, {211.52, 536870912, 17.73}, {120, 536870912, 31.25}, {600, 536870912, 6.25}} {
		n, bytes := 16, 4.0
		got, err := rawBatch{Milliseconds: &tt.ms, WorldSize: &n, Shape: &tt.shape, Bytes: &bytes}.bandwidth()
		if err != nil || math.Abs(got-tt.want) > 0.005 {
			t.Errorf("%g ms: %.3f GiB/s, %v, want %.2f", tt.ms, got, err, tt.want)
		}
	}
}

// batch wraps one batch into a report with a threshold.
func batch(fields string) string {
	return `{"workload_size":4,"rank":1,"node_name":"a","node_ip":"10.0.0.1","node_check_busbw_threshold_gbps":"10","batches":[{` + fields + `}]}`
}

const between = `"pair":["10.0.0.2","10.0.0.1"],`

func TestAReportIsReadStrictly(t *testing.T) {
	head := func(fields string) string { return `{"workload_size":4,"rank":1,"node_name":"a"` + fields + `}` }
	tests := map[string]struct{ report, wrong string }{
		"the least":                      {head(``), ""},
		"an odd number of nodes":         {`{"workload_size":9,"rank":8,"node_name":"a"}`, ""},
		"a batch index as text":          {batch(between + `"batch_idx":"3","busbw_gbps":12`), ""},
		"an unknown field":               {head(`,"colour":"red"`), ""},
		"a blank threshold":              {head(`,"node_check_busbw_threshold_gbps":" "`), ""},
		"a skip without a pair":          {batch(`"batch_idx":0,"pair":[],"status":"skip"`), ""},
		"both figures that agree":        {batch(between + `"batch_idx":0,"allreduce_ms":120,"world_size":16,"allreduce_shape":536870912,"dtype_bytes":4,"busbw_gbps":31.2`), ""},
		"not JSON":                       {`{"workload_size":4,`, "not the JSON"},
		"two documents":                  {head(``) + `{}`, "more follows"},
		"too large":                      {head(`,"workload":"` + strings.Repeat("x", MaxBytes) + `"`), "bytes"},
		"no size":                        {`{"rank":1,"node_name":"a"}`, "no workload_size"},
		"size 0":                         {`{"workload_size":0,"rank":0,"node_name":"a"}`, "workload_size 0"},
		"size 10001":                     {`{"workload_size":10001,"rank":1,"node_name":"a"}`, "workload_size 10001"},
		"size with a fraction":           {`{"workload_size":4.5,"rank":1,"node_name":"a"}`, "not the JSON"},
		"no rank":                        {`{"workload_size":4,"node_name":"a"}`, "no rank"},
		"a rank outside":                 {`{"workload_size":4,"rank":4,"node_name":"a"}`, "rank 4"},
		"a negative rank":                {`{"workload_size":4,"rank":-1,"node_name":"a"}`, "rank -1"},
		"no node":                        {`{"workload_size":4,"rank":1}`, "node_name"},
		"a node name that is not one":    {`{"workload_size":4,"rank":1,"node_name":"a;b"}`, "node_name"},
		"a run id that is not a label":   {head(`,"run_id":"a b"`), "run_id"},
		"an unknown check result":        {head(`,"gpu_check":3`), "gpu_check 3"},
		"an address that is not one":     {head(`,"node_ip":"gpu-a"`), "not an IP address"},
		"a threshold as a number":        {head(`,"node_check_busbw_threshold_gbps":12.5`), "not the JSON"},
		"a threshold that is NaN":        {head(`,"node_check_busbw_threshold_gbps":"NaN"`), "not a bandwidth"},
		"an infinite threshold":          {head(`,"node_check_busbw_threshold_gbps":"+Inf"`), "not a bandwidth"},
		"a negative threshold":           {head(`,"node_check_busbw_threshold_gbps":"-1"`), "not a bandwidth"},
		"a batch index with a fraction":  {batch(between + `"batch_idx":1.5,"busbw_gbps":12`), "batch_idx"},
		"a negative batch index":         {batch(between + `"batch_idx":-1,"busbw_gbps":12`), "batch_idx"},
		"no batch index":                 {batch(between + `"busbw_gbps":12`), "batch_idx"},
		"a batch that appears twice":     {batch(between + `"batch_idx":0,"busbw_gbps":12},{` + between + `"batch_idx":"0","busbw_gbps":12`), "appears twice"},
		"an unknown status":              {batch(between + `"batch_idx":0,"status":"meh","busbw_gbps":12`), `status "meh"`},
		"a pair of one":                  {batch(`"batch_idx":0,"pair":["10.0.0.1"],"busbw_gbps":12`), "pair has 1 addresses"},
		"a pair of others":               {batch(`"batch_idx":0,"pair":["10.0.0.2","10.0.0.3"],"busbw_gbps":12`), "not an end of the pair"},
		"an end that is unknown":         {head(`,"batches":[{"batch_idx":0,"pair":["10.0.0.2","10.0.0.3"]}]`), "neither self_ip"},
		"a negative bandwidth":           {batch(between + `"batch_idx":0,"busbw_gbps":-12`), "negative"},
		"a negative time":                {batch(between + `"batch_idx":0,"allreduce_ms":-120,"world_size":16,"allreduce_shape":536870912,"dtype_bytes":4`), "negative"},
		"a bandwidth in bytes":           {batch(between + `"batch_idx":0,"busbw_gbps":12e9`), "wrong unit"},
		"GB/s that should be GiB/s":      {batch(between + `"batch_idx":0,"allreduce_ms":120,"world_size":16,"allreduce_shape":536870912,"dtype_bytes":4,"busbw_gbps":33.55`), "wrong unit"},
		"no bandwidth for a threshold":   {batch(between + `"batch_idx":0`), "no bandwidth to compare"},
		"half a rank in the pair's size": {batch(between + `"batch_idx":0,"allreduce_ms":120,"world_size":1.5,"allreduce_shape":536870912,"dtype_bytes":4`), "not the JSON"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(tt.report))
			switch {
			case tt.wrong == "" && err != nil:
				t.Error(err)
			case tt.wrong != "" && (err == nil || !strings.Contains(err.Error(), tt.wrong)):
				t.Errorf("error %v, want one with %q", err, tt.wrong)
			}
		})
	}
}

func TestATestThatMovedNothingHasFailed(t *testing.T) {
	for _, figures := range []string{`"busbw_gbps":0`, `"allreduce_ms":0,"world_size":16,"allreduce_shape":1,"dtype_bytes":4`, `"status":"timeout"`} {
		r, err := Parse([]byte(batch(between + `"batch_idx":0,` + figures)))
		if err != nil {
			t.Fatal(err)
		}
		if r.Batches[0].Status != Fail || r.Batches[0].Bandwidth != 0 {
			t.Errorf("%s: %+v", figures, r.Batches[0])
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, name := range []string{"raw", "compact", "failfast"} {
		data, err := os.ReadFile("testdata/kcover-" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(batch(between + `"batch_idx":"1","busbw_gbps":1e5`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
		metrics.Read(sample)
		before := sample[0].Value.Uint64()
		r, err := Parse(data)
		if metrics.Read(sample); sample[0].Value.Uint64()-before > 8<<20 {
			t.Errorf("%d bytes allocated for %d", sample[0].Value.Uint64()-before, len(data))
		}
		if err != nil {
			return
		}
		if r.Rank < 0 || r.Rank >= r.Size || r.Size > MaxRanks || r.Node == "" {
			t.Errorf("accepted %+v", r)
		}
		for _, b := range r.Batches {
			if math.IsNaN(b.Bandwidth) || b.Bandwidth < 0 || b.Bandwidth > maxBandwidth || !b.Self.IsValid() || b.Pair[1].Less(b.Pair[0]) {
				t.Errorf("accepted batch %+v", b)
			}
		}
		written, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		// Writing spells fields out, so a report close to the limit may grow beyond it.
		again, err := Parse(written)
		if len(written) <= MaxBytes && (err != nil || !cmp.Equal(r, again, equateAddresses, cmpopts.EquateEmpty())) {
			t.Errorf("%s comes back as %+v, %v", written, again, err)
		}
	})
}

func TestFiguresAreReadAndRefused(t *testing.T) {
	report := func(figures string) string {
		return `{"workload_size":2,"rank":0,"node_name":"a","figures":` + figures + `}`
	}
	r, err := Parse([]byte(report(`{"gemm":612.5,"host-to-device":55}`)))
	if diff := cmp.Diff(map[string]float64{"gemm": 612.5, "host-to-device": 55}, r.Figures); diff != "" || err != nil {
		t.Error(diff, err)
	}
	data, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Parse(data); err != nil || !cmp.Equal(r.Figures, again.Figures) {
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
		if _, err := Parse([]byte(report(figures))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", figures, err, want)
		}
	}
	if err := checkFigures(map[string]float64{"gemm": math.NaN()}); err == nil {
		t.Error("NaN is a figure")
	}
}
