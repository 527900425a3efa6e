package npd_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// files is the snapshot of the check: /proc/sys/fs/file-nr, see proc_sys_fs(5).
type files struct {
	Open uint64 `json:"open"`
	Max  uint64 `json:"max"`
}

// readFiles observes and decides nothing. An error makes the answer Unknown.
func readFiles(procfs string) (f files, err error) {
	path := filepath.Join(procfs, "sys/fs/file-nr")
	text, err := os.ReadFile(path)
	if err != nil {
		return f, err
	}
	var unused uint64
	if _, err := fmt.Sscan(string(text), &f.Open, &unused, &f.Max); err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// judgeFiles decides and reads nothing. The text of a finding has no number that changes from look to look, because each
// changed message becomes an Event.
func judgeFiles(f files, limit float64) npd.Result {
	result := npd.Result{Healthy: "enough file handles are left"}
	if 100*float64(f.Open) > limit*float64(f.Max) {
		result.Found(conditions.Inspect, "file handles", fmt.Sprintf("more than %g percent in use", limit))
	}
	return result
}

// A complete check: a plugin that exits 1 when the node runs out of file handles. It has the flags that every plugin has,
// such as -hold and -dump, and two of its own.
func ExampleMain() {
	p := npd.New("files", "checks that the node has file handles left")
	procfs := p.String("procfs", "/proc", "`path` of the proc filesystem of the host")
	limit := p.Float64("max-used", 90, "largest share of file handles in `percent` that may be in use")
	npd.Main(p, npd.Check[files]{
		Read:  func(context.Context) (files, error) { return readFiles(*procfs) },
		Judge: func(f files) npd.Result { return judgeFiles(f, *limit) },
	})
}
