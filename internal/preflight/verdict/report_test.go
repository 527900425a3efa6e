package verdict

import (
	"encoding/json"
	"math"
	"net/netip"
	"os"
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
			got, err := ParseReport(data)
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
		"too large":                      {head(`,"workload":"` + strings.Repeat("x", MaxReport) + `"`), "bytes"},
		"no size":                        {`{"rank":1,"node_name":"a"}`, "no workload_size"},
		"size 0":                         {`{"workload_size":0,"rank":0,"node_name":"a"}`, "workload_size 0"},
		"size 10001":                     {`{"workload_size":10001,"rank":1,"node_name":"a"}`, "workload_size 10001"},
		"size with a fraction":           {`{"workload_size":4.5,"rank":1,"node_name":"a"}`, "not the JSON"},
		"no rank":                        {`{"workload_size":4,"node_name":"a"}`, "no rank"},
		"a rank outside":                 {`{"workload_size":4,"rank":4,"node_name":"a"}`, "rank 4"},
		"a negative rank":                {`{"workload_size":4,"rank":-1,"node_name":"a"}`, "rank -1"},
		"no node":                        {`{"workload_size":4,"rank":1}`, "node_name"},
		"a node that is no name":         {`{"workload_size":4,"rank":1,"node_name":"a;b"}`, "node_name"},
		"a run id that is no label":      {head(`,"run_id":"a b"`), "run_id"},
		"a check that is none":           {head(`,"gpu_check":3`), "gpu_check 3"},
		"an address that is none":        {head(`,"node_ip":"gpu-a"`), "no IP address"},
		"a threshold as a number":        {head(`,"node_check_busbw_threshold_gbps":12.5`), "not the JSON"},
		"a threshold that is NaN":        {head(`,"node_check_busbw_threshold_gbps":"NaN"`), "no bandwidth"},
		"an infinite threshold":          {head(`,"node_check_busbw_threshold_gbps":"+Inf"`), "no bandwidth"},
		"a negative threshold":           {head(`,"node_check_busbw_threshold_gbps":"-1"`), "no bandwidth"},
		"a batch index with a fraction":  {batch(between + `"batch_idx":1.5,"busbw_gbps":12`), "batch_idx"},
		"a negative batch index":         {batch(between + `"batch_idx":-1,"busbw_gbps":12`), "batch_idx"},
		"no batch index":                 {batch(between + `"busbw_gbps":12`), "batch_idx"},
		"a batch that stands twice":      {batch(between + `"batch_idx":0,"busbw_gbps":12},{` + between + `"batch_idx":"0","busbw_gbps":12`), "stands twice"},
		"a status nobody knows":          {batch(between + `"batch_idx":0,"status":"meh","busbw_gbps":12`), `status "meh"`},
		"a pair of one":                  {batch(`"batch_idx":0,"pair":["10.0.0.1"],"busbw_gbps":12`), "a pair of 1"},
		"a pair of others":               {batch(`"batch_idx":0,"pair":["10.0.0.2","10.0.0.3"],"busbw_gbps":12`), "no end of the pair"},
		"an end that is unknown":         {head(`,"batches":[{"batch_idx":0,"pair":["10.0.0.2","10.0.0.3"]}]`), "neither self_ip"},
		"a negative bandwidth":           {batch(between + `"batch_idx":0,"busbw_gbps":-12`), "negative"},
		"a negative time":                {batch(between + `"batch_idx":0,"allreduce_ms":-120,"world_size":16,"allreduce_shape":536870912,"dtype_bytes":4`), "negative"},
		"a bandwidth in bytes":           {batch(between + `"batch_idx":0,"busbw_gbps":12e9`), "wrong unit"},
		"GB/s that should be GiB/s":      {batch(between + `"batch_idx":0,"allreduce_ms":120,"world_size":16,"allreduce_shape":536870912,"dtype_bytes":4,"busbw_gbps":33.55`), "wrong unit"},
		"no figures for the threshold":   {batch(between + `"batch_idx":0`), "no figures"},
		"half a rank in the pair's size": {batch(between + `"batch_idx":0,"allreduce_ms":120,"world_size":1.5,"allreduce_shape":536870912,"dtype_bytes":4`), "not the JSON"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := ParseReport([]byte(tt.report))
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
		r, err := ParseReport([]byte(batch(between + `"batch_idx":0,` + figures)))
		if err != nil {
			t.Fatal(err)
		}
		if r.Batches[0].Status != Fail || r.Batches[0].Bandwidth != 0 {
			t.Errorf("%s: %+v", figures, r.Batches[0])
		}
	}
}

func FuzzParseReport(f *testing.F) {
	for _, name := range []string{"raw", "compact", "failfast"} {
		data, err := os.ReadFile("testdata/kcover-" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(batch(between + `"batch_idx":"1","busbw_gbps":1e5`)))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := ParseReport(data)
		if err != nil {
			return
		}
		if r.Rank < 0 || r.Rank >= r.Size || r.Size > MaxSize || r.Node == "" {
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
		again, err := ParseReport(written)
		if len(written) <= MaxReport && (err != nil || !cmp.Equal(r, again, equateAddresses, cmpopts.EquateEmpty())) {
			t.Errorf("%s comes back as %+v, %v", written, again, err)
		}
		// What is accepted can be judged, together with itself as another rank's.
		other := r
		other.Rank = (r.Rank + 1) % r.Size
		if _, err := json.Marshal(Judge("fuzz", []Report{r, other}, Options{})); err != nil {
			t.Error(err)
		}
	})
}
