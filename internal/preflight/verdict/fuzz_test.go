package verdict

import (
	"encoding/json"
	"os"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

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
		if _, err := json.Marshal(Judge("fuzz", []report.Report{r, other}, Options{})); err != nil {
			t.Error(err)
		}
	})
}
