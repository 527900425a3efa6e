package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// newReader returns a reader on the pod logs in dir, as a new run of the plugin would have it.
func newReader(t *testing.T, dir string) *reader {
	t.Helper()
	write(t, filepath.Join(dir, "proc/sys/kernel/random/boot_id"), os.O_TRUNC, "first\n")
	write(t, filepath.Join(dir, "proc/uptime"), os.O_TRUNC, "900000000.00 0.00\n")
	p := npd.New("podlog", "")
	p.StateDir = filepath.Join(dir, "state")
	return &reader{
		plugin: p, podLogs: filepath.Join(dir, "pods"), procfs: filepath.Join(dir, "proc"),
		namespaces: namespaces{"*"}, window: 10 * time.Minute, maxBytes: minBytes,
	}
}

func once(t *testing.T, r *reader) snapshot {
	t.Helper()
	s, err := r.read(context.Background())
	if err != nil || s.Unshared != "" || len(s.Unread) > 0 {
		t.Fatal(err, s.Unshared, s.Unread)
	}
	return s
}

func TestWhereverALookEndsEachLineCountsOnce(t *testing.T) {
	log := lines("GPU is lost", "P NCCL", "out GPU is lost", "P  err", "out P GPU", "or", "out GPU is lost", "NCCL error", "out P x", "GPU is lost")
	want := map[string]int{"gpu-lost": 4, "nccl-error": 2}
	for cut := range len(log) + 1 {
		dir := t.TempDir()
		file := filepath.Join(dir, "pods/default_a_1/main/0.log")
		got := map[string]int{}
		for _, part := range []string{log[:cut], log[cut:]} {
			write(t, file, os.O_APPEND, part)
			clear(got)
			for _, e := range once(t, newReader(t, dir)).Episodes {
				got[e.Pattern] += e.Count
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("cut at %d, behind %q:\n%s", cut, log[:cut], diff)
		}
	}
}

func TestTwoRunsAtTheSameTimeCountOnce(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pods/default_a_1/main/0.log"), 0, lines("GPU is lost"))
	slow, quick := newReader(t, dir), newReader(t, dir)
	once(t, slow)
	write(t, filepath.Join(dir, "pods/default_a_1/main/0.log"), os.O_APPEND, lines("GPU is lost"))
	// The slow one has read, the quick one reads and merges, and then the slow one merges.
	known, err := slow.store.Update(func(*state) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	l := look{reader: slow, known: known, budget: minBytes}
	if err := l.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	once(t, quick)
	s, err := slow.merge(&l)
	if err != nil || len(s.Episodes) != 1 || s.Episodes[0].Count != 2 {
		t.Errorf("%+v, %v", s.Episodes, err)
	}
}

func TestALookEndsWithItsTime(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pods/default_a_1/main/0.log"), 0, lines("GPU is lost"))
	r := newReader(t, dir)
	r.plugin.Timeout = 0
	if s := once(t, r); s.Behind == 0 || len(s.Episodes) > 0 {
		t.Errorf("%d bytes behind, %+v", s.Behind, s.Episodes)
	}
	r.plugin.Timeout = time.Minute
	if s := once(t, r); s.Behind != 0 || len(s.Episodes) != 1 {
		t.Errorf("%d bytes behind, %+v", s.Behind, s.Episodes)
	}
}

func TestTheStateForgetsLogsThatAreGone(t *testing.T) {
	dir := t.TempDir()
	r := newReader(t, dir)
	for i := range 50 {
		pod := filepath.Join(dir, fmt.Sprintf("pods/default_a-%d_1", i))
		write(t, filepath.Join(pod, "main/0.log"), 0, lines("step 1"))
		once(t, r)
		if err := os.RemoveAll(pod); err != nil {
			t.Fatal(err)
		}
	}
	once(t, r)
	once(t, r)
	s, err := r.store.Update(func(*state) bool { return false })
	if err != nil || len(s.Files) > 0 || s.Lost > 0 {
		t.Errorf("%d logs, %d lost, %v", len(s.Files), s.Lost, err)
	}
}

func TestWhileBehindThePauseIsShort(t *testing.T) {
	dir := t.TempDir()
	line := lines(strings.Repeat("x", 1000))
	write(t, filepath.Join(dir, "pods/default_a_1/main/0.log"), 0, strings.Repeat(line, 3*minBytes/2/len(line)))
	r := newReader(t, dir)
	once(t, r)
	if err := r.wait(t.Context()); err != nil {
		t.Error(err)
	}
	once(t, r)
	ctx, cancel := context.WithTimeout(t.Context(), 2*catchUp)
	defer cancel()
	if err := r.wait(ctx); err == nil {
		t.Error("a short pause though there is nothing left to read")
	}
}
