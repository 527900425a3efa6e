package main

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestPreflightOffline(t *testing.T) {
	const samples = "../remediator/preflight/verdict/testdata" // kcover's documented run of four
	tests := map[string]struct {
		args string
		want []string
	}{
		"text": {"preflight -f " + samples, []string{"slow: gpu-c (p 0.9", "failed: gpu-d (a local check", "31.25", "6.25"}},
		"html": {"preflight -o html -f " + samples, []string{"<table>", "gpu-c", "6.25"}},
		"json": {"preflight -o json -f " + samples, []string{`"complete":true`, `"slow":[{"node":"gpu-c","p":0.9`, `"drop":0.8,"partners":2}]`, `"failed":["gpu-d"],"missing":[],"retest":[],"fabric":[]`}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			cmd := newCommand()
			cmd.SetArgs(strings.Fields(tt.args))
			cmd.SetOut(&out)
			if err := cmd.ExecuteContext(t.Context()); err != nil {
				t.Fatal(err)
			}
			for _, want := range tt.want {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, &out)
				}
			}
		})
	}
	for args, want := range map[string]string{
		"preflight":                      "name a run",
		"preflight r -f " + samples:      "name a run",
		"preflight -f " + t.TempDir():    "there is no report",
		"preflight -o pdf -f " + samples: "not text, html or json",
	} {
		cmd := newCommand()
		cmd.SetArgs(strings.Fields(args))
		cmd.SetErr(&bytes.Buffer{})
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestOneBadReportIsNamedAndTheOthersCount(t *testing.T) {
	good := `{"run_id":"r","workload_size":2,"rank":0,"node_name":"a"}`
	var warn bytes.Buffer
	r, err := judgeRun(&warn, []namedReport{{"one", []byte(good)}, {"two", []byte(good)}, {"three", []byte("{")}}, "", nil)
	if err != nil || r.Verdict.Run != "r" || len(r.Graph.Nodes) != 1 {
		t.Errorf("%+v, %v", r, err)
	}
	want := "refused two: rank 0 has already reported, in one\nrefused three: not the JSON of a report: unexpected EOF\n"
	if diff := cmp.Diff(want, warn.String()); diff != "" {
		t.Error(diff)
	}
}
