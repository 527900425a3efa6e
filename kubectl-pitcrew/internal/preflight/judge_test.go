package preflight

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOneBadReportIsNamedAndTheOthersCount(t *testing.T) {
	good := `{"run_id":"r","workload_size":2,"rank":0,"node_name":"a"}`
	var warn bytes.Buffer
	r, err := judgeRun(&warn, []namedReport{{name: "one", data: []byte(good)}, {name: "two", data: []byte(good)}, {name: "three", data: []byte("{")}}, "", nil)
	if err != nil || r.Verdict.Run != "r" || len(r.Graph.Nodes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	want := "refused two: rank 0 has already reported, in one\nrefused three: not the JSON of a report: unexpected EOF\n"
	if diff := cmp.Diff(want, warn.String()); diff != "" {
		t.Error(diff)
	}
}
