package verdict

import (
	"encoding/json"
	"math"
	"os"
	"runtime/metrics"
	"slices"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// allocated is the number of bytes that f allocates. Other goroutines of the test count as well.
func allocated(f func()) uint64 {
	sample := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	metrics.Read(sample)
	before := sample[0].Value.Uint64()
	f()
	metrics.Read(sample)
	return sample[0].Value.Uint64() - before
}

// maxAllocation is the number of bytes that judging a run of two reports, or the figures of one, may allocate.
const maxAllocation = 8 << 20

// Every report that is accepted can be judged, also together with the same report of another rank.
func FuzzJudge(f *testing.F) {
	for _, name := range []string{"raw", "compact", "failfast"} {
		data, err := os.ReadFile("../report/testdata/kcover-" + name + ".json")
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"workload_size":4,"rank":1,"node_name":"a","node_ip":"10.0.0.1","node_check_busbw_threshold_gbps":"10",` +
		`"batches":[{"pair":["10.0.0.2","10.0.0.1"],"batch_idx":"1","busbw_gbps":1e5}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := report.Parse(data)
		if err != nil {
			return
		}
		other := r
		other.Rank = (r.Rank + 1) % r.Size
		if n := allocated(func() {
			reports := []report.Report{r, other}
			if _, err := json.Marshal(Judge("fuzz", reports, Options{})); err != nil {
				t.Error(err)
			}
			for _, pair := range Next(reports) {
				if pair[0] == pair[1] {
					t.Errorf("node %s is to test itself", pair[0])
				}
			}
		}); n > maxAllocation {
			t.Errorf("%d bytes allocated for two reports of %d", n, len(data))
		}
	})
}

// What nodes report about themselves: whatever the values are, few nodes are below the median, and each of them is.
func FuzzFigures(f *testing.F) {
	f.Add([]byte{100, 100, 100, 100, 100, 50}, 1.0)
	f.Add([]byte{1, 1, 1, 1, 255}, math.SmallestNonzeroFloat64)
	f.Add([]byte{255, 255, 254, 255, 255, 1}, 1e306)
	f.Fuzz(func(t *testing.T, values []byte, unit float64) {
		var reports []report.Report
		for i, v := range values[:min(len(values), 500)] {
			value := float64(v) * unit
			if !(value > 0) || math.IsInf(value, 0) { // the parser refuses it
				continue
			}
			node := string(rune('a' + i%64))
			reports = append(reports, report.Report{Size: 1, Node: node, Figures: map[string]float64{string(rune('f' + i%3)): value}})
		}
		if n := allocated(func() {
			for _, figure := range figures(reports) {
				if !(figure.Median > 0) || math.IsInf(figure.Median, 0) || 4*len(figure.Below) > figure.Nodes {
					t.Errorf("%+v", figure)
				}
				if slices.ContainsFunc(figure.Below, func(b Below) bool { return !(b.Value < figure.Median) || !(b.Drop > figureDrop) || b.Drop > 1 }) {
					t.Errorf("%+v", figure)
				}
			}
		}); n > maxAllocation {
			t.Errorf("%d bytes allocated for the figures of %d reports", n, len(reports))
		}
	})
}
