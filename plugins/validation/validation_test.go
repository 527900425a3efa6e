package main

import (
	"bytes"
	"compress/gzip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// The Cluster Readiness Engine compresses its lists, each in one entry of a ConfigMap's binaryData.
func TestCompressedLists(t *testing.T) {
	var packed bytes.Buffer
	out := gzip.NewWriter(&packed)
	if _, err := out.Write([]byte(`[{"name":"gpu-07","reason":"ThresholdViolation"}]`)); err != nil {
		t.Fatal(err)
	}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	binary, path := npdtest.Build(t), filepath.Join(t.TempDir(), "failed-nodes.json.gz")
	for name, test := range map[string]struct {
		data []byte
		want string
	}{
		"whole":     {packed.Bytes(), "exit 1\nInspect Cluster Readiness Engine: ThresholdViolation\n"},
		"cut short": {packed.Bytes()[:packed.Len()-9], "exit 2\nunknown: Cluster Readiness Engine: " + path + ": unexpected EOF\n"},
	} {
		if err := os.WriteFile(path, test.data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got := npdtest.Run(t, binary, "-nvcre-failed", path, "-node", "gpu-07", "-state-dir", t.TempDir()); got != test.want {
			t.Errorf("%s: got %swant %s", name, got, test.want)
		}
	}
}

func FuzzReports(f *testing.F) {
	f.Add([]byte(`{"overall_severity":"PASS","a":[{"check_ids":["x"],"category":"gpu","max_severity":"INFO"}]}`))
	f.Add([]byte(`[{"name":"a","reason":"b"},{"name":"c"}]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		if overall, components, err := parseVerdict(data); err == nil {
			for _, c := range components {
				if !overall.known() || !c.Severity.known() || c.Category == "" || len(c.Checks) == 0 {
					t.Errorf("%q: %+v", overall, c)
				}
			}
		}
		rows, err := parseFailures(data)
		for _, row := range rows {
			if row.Name == "" || row.Reason == "" {
				t.Errorf("%+v of %q, %v", row, data, err)
			}
		}
		if err == nil && !strings.HasPrefix(strings.TrimSpace(string(data)), "[") {
			t.Errorf("%q is taken for a list", data)
		}
	})
}

// A pipe without a writer never answers; what the other tool has said arrives all the same.
func TestAFileThatHangsHidesNoOther(t *testing.T) {
	binary, dir := npdtest.Build(t), t.TempDir()
	hangs, critical, failed := filepath.Join(dir, "hangs"), filepath.Join(dir, "v.json"), filepath.Join(dir, "failed.json")
	if err := syscall.Mkfifo(hangs, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, data := range map[string]string{
		critical: `{"overall_severity":"CRITICAL"}`, failed: `[{"name":"gpu-07","reason":"ThresholdViolation"}]`,
	} {
		if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	const ofTheOther = "exit 1\nInspect Cluster Readiness Engine: ThresholdViolation; "
	for name, test := range map[string]struct{ verdict, failed, succeeded, want string }{
		"verdict": {hangs, failed, "", ofTheOther + "Health Validation: not read: "},
		"failed": {critical, hangs, "",
			"exit 1\nInspect Health Validation: CRITICAL, see its checks; Cluster Readiness Engine: not read: "},
		"succeeded": {"", failed, hangs, ofTheOther + "Cluster Readiness Engine: not read: "},
	} {
		got := npdtest.Run(t, binary, "-node-verdict", test.verdict, "-nvcre-failed", test.failed, "-nvcre-succeeded", test.succeeded,
			"-node", "gpu-07", "-state-dir", t.TempDir(), "-timeout", "2s")
		if want := test.want + hangs + ": did not answer in time\n"; got != want {
			t.Errorf("%s: got %swant %s", name, got, want)
		}
	}
}
