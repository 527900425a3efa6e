package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

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

// begin takes a look without bringing what it found into the state.
func begin(t *testing.T, r *reader, budget int64) *look {
	t.Helper()
	known, err := r.store.Update(func(*state) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	l := &look{reader: r, known: known, budget: budget}
	if err := l.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	return l
}

// end brings it into the state and fails the test unless the state has one episode of so many lines then.
func end(t *testing.T, l *look, want int) {
	t.Helper()
	s, err := l.merge(l)
	if err != nil || len(s.Episodes) != 1 || s.Episodes[0].Count != want {
		t.Errorf("%+v, %v; want %d lines", s.Episodes, err, want)
	}
}

func TestTwoRunsAtTheSameTimeCountOnce(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "pods/default_a_1/main/0.log")
	write(t, file, 0, lines("GPU is lost"))
	slow, quick := newReader(t, dir), newReader(t, dir)
	once(t, slow)
	write(t, file, os.O_APPEND, lines("GPU is lost"))
	l := begin(t, slow, minBytes)
	once(t, quick)
	end(t, l, 2)
}

func TestARunThatMissesALogForgetsNothingOfAnother(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "pods/default_a_1/main/0.log")
	write(t, file, 0, lines("GPU is lost"))
	slow, quick := newReader(t, dir), newReader(t, dir)
	once(t, slow)
	if err := os.Rename(file, file+".aside"); err != nil {
		t.Fatal(err)
	}
	l := begin(t, slow, minBytes)
	if err := os.Rename(file+".aside", file); err != nil {
		t.Fatal(err)
	}
	write(t, file, os.O_APPEND, lines("GPU is lost"))
	once(t, quick)
	end(t, l, 2)
	end(t, begin(t, slow, minBytes), 2)
}

func TestALookThatStopsWithinWhatWasSeenCountsNothingAgain(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "pods/default_a_1/main/0.log")
	write(t, file, 0, lines("out P x")+strings.Repeat(lines("step"), 2*bufferSize/len(lines("step")))+lines("GPU is lost"))
	r := newReader(t, dir)
	once(t, r)
	write(t, file, os.O_APPEND, lines("step"))
	end(t, begin(t, r, 1), 1) // it begins at the open line and has bytes for one buffer
	end(t, begin(t, r, minBytes), 1)
}

func TestALogWithAnotherInodeIsLeftToTheNextLook(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pods/default_a_1/main/0.log"), 0, lines("GPU is lost"))
	r := newReader(t, dir)
	once(t, r)
	root, err := os.OpenRoot(r.podLogs)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l := look{reader: r, root: root, budget: minBytes}
	n := news{log: logFile{path: "default_a_1/main/0.log", id: "of the log before the rotation"}}
	if err := l.file(t.Context(), t.Context(), &n); !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

func TestTooManyLogsAreReported(t *testing.T) {
	dir := t.TempDir()
	first := filepath.Join(dir, "default_a_1/main/0.log")
	write(t, first, 0, lines("step 1"))
	for i := range maxFiles {
		if err := os.Link(first, filepath.Join(dir, fmt.Sprintf("default_a_1/main/%d.log", i+1))); err != nil {
			t.Fatal(err)
		}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	logs, failed, err := walk(root, namespaces{"default"}, time.Time{})
	if want := []unread{{"pod logs", "more than 8192 of them"}}; err != nil || len(logs) != maxFiles || !slices.Equal(failed, want) {
		t.Errorf("%d logs, %v, %v", len(logs), failed, err)
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

// A log that hangs is named. The others are read, also while it hangs, and it is read when it answers again.
func TestALogThatHangsHidesNoOther(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "pods/default_b_1/main/0.log"), 0, lines("GPU is lost"))
	r := newReader(t, dir)
	once(t, r)
	write(t, filepath.Join(dir, "pods/default_b_1/main/0.log"), os.O_APPEND, lines("GPU is lost"))
	hanging := filepath.Join(dir, "pods/default_a_1/main/0.log")
	if err := os.MkdirAll(filepath.Dir(hanging), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(hanging, 0o600); err != nil {
		t.Fatal(err)
	}
	l := begin(t, r, minBytes)
	root, err := os.OpenRoot(r.podLogs)
	if err != nil {
		t.Fatal(err)
	}
	defer root.Close()
	l.root = root
	r.plugin.Timeout = 2 * time.Second
	a := news{log: logFile{path: "default_a_1/main/0.log", id: "a", namespace: "default", workload: "a", size: 1}}
	b := news{log: l.news[0].log}
	l.news = nil
	want := []unread{{"pod default/a", "did not answer in time"}, {"pod default/a", "did not answer in time"}}
	if failed := l.files(t.Context(), []news{a, b, a}); !slices.Equal(failed, want) || len(l.news) != 1 || len(l.news[0].found) != 1 {
		t.Errorf("%v, %+v", failed, l.news)
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

func TestTheStateIsBoundedThoughAFolderCannotBeRead(t *testing.T) {
	l := look{reader: &reader{namespaces: namespaces{"*"}}, known: state{Files: map[string]cursor{}}, there: map[string]bool{"0": true}}
	for i := range maxFiles {
		l.known.Files[fmt.Sprint(i)] = cursor{Missed: true}
	}
	s := state{Files: maps.Clone(l.known.Files)}
	if s.forgetFiles(&l); len(s.Files) != maxFiles {
		t.Errorf("%d logs of %d", len(s.Files), maxFiles)
	}
	s.Files["new"] = cursor{}
	if s.forgetFiles(&l); len(s.Files) != 2 {
		t.Errorf("%d logs, want the one that is there and the new one", len(s.Files))
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
