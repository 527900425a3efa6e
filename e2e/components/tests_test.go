package components

import (
	"bytes"
	"fmt"
	"io"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestEachPackageOfTestsSaysHowLongTheOthersTake(t *testing.T) {
	var out bytes.Buffer
	clock := time.Unix(0, 0)
	e := &estimate{
		out: &out, now: func() time.Time { return clock }, prior: time.Second, left: map[string]cost{"x.org/a": 10, "x.org/b": 80, "x.org/c": 110}, total: 200,
		order: []string{"x.org/a", "x.org/b", "x.org/c"}, atOnce: 2,
	}
	in := io.MultiReader(
		strings.NewReader("=== FAIL: a TestX\n"),
		&passing{&clock, 360 * time.Second}, strings.NewReader("FAIL\tx.org/a\t60.001s\nok  \tx.org/other\t(cached)\n"),
		&passing{&clock, 120 * time.Second}, strings.NewReader("ok  \tx.org/b\t180.000s\nok  \tx.org/c\t3.000s\n\nDONE 3 tests"))
	if err := e.copyTests(in); err != nil {
		t.Fatal(err)
	}
	// What a needs is compiled in the first 5 min. After 60 s for 10 of 200 and, side by side with it, as much of b and c; and the 11 s that count as if they had been for 11 others: 1.7 s each.
	want := fmt.Sprintf("3 packages of tests; about 4 min on this machine (%d cores), and on a first run the time to compile them\n", runtime.NumCPU()) +
		"=== FAIL: a TestX\n" +
		"FAIL\tx.org/a\t60.001s\t1 of 3, about 5 min left\n" +
		"ok  \tx.org/other\t(cached)\n" +
		"ok  \tx.org/b\t180.000s\t2 of 3, about 70 s left\n" +
		"ok  \tx.org/c\t3.000s\t3 of 3\n\nDONE 3 tests"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if err := e.copyTests(iotest.ErrReader(io.ErrClosedPipe)); err == nil {
		t.Error("an output that cannot be read is no error")
	}
}

// The outputs are those of gotestsum v1.13.0 with --rerun-fails=1: of a process that could not start once, of one that was killed once, and of a
// test that failed once.
func TestAProcessOfTestsThatEndsEarlyIsNoSuccess(t *testing.T) {
	const failed = "FAIL\tx.org/a\t0.007s\n\nDONE 1 tests, 1 failure in 0.007s\n\n"
	tests := map[string]struct{ out, want string }{
		"before its tests": {failed + "ok  \tx.org/a\t0.002s [no tests to run]\n\nDONE 2 runs, 0 tests in 0.325s\n", "x.org/a"},
		"during its tests": {failed + "ok  \tx.org/a\t0.003s\n\n=== Failed\n=== FAIL: a TestOne (unknown)\nsignal: killed\n", "a TestOne"},
		"a failed test":    {failed + "ok  \tx.org/a\t0.003s\n\n=== Failed\n=== FAIL: a TestOne (0.00s)\n", ""},
		"never any tests":  {"ok  \tx.org/a\t0.002s [no tests to run]\n", ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := Tests(strings.NewReader(test.out), io.Discard, 1, []string{"x.org/a"})
			if test.want == "" && err != nil || test.want != "" && (err == nil || !strings.HasSuffix(err.Error(), ": "+test.want)) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestGapsAreWhereNoPackageIsTested(t *testing.T) {
	at := func(seconds int64) time.Time { return time.Unix(seconds, 0) }
	// Each has a stretch in which a package was tested, and how long the gaps are then.
	tests := map[string][]struct{ from, to, want int64 }{
		"compiled before":       {{100, 101, 100}, {110, 120, 100}},
		"compiled between":      {{0, 50, 0}, {90, 91, 40}, {121, 122, 70}},
		"beside a long one":     {{100, 101, 100}, {60, 150, 60}, {0, 160, 0}},
		"what is left is short": {{100, 101, 100}, {29, 150, 0}},
		"linked":                {{29, 30, 0}, {59, 60, 0}, {89, 90, 0}},
	}
	for name, stretches := range tests {
		t.Run(name, func(t *testing.T) {
			var g gaps
			before := at(0)
			for _, s := range stretches {
				g = g.tested(before, at(s.from))
				before = at(s.to)
				if got := g.sum(); got != time.Duration(s.want)*time.Second {
					t.Errorf("after %v: gaps of %v", s, got)
				}
			}
		})
	}
}

// passing is empty and moves a clock when it is read.
type passing struct {
	clock *time.Time
	by    time.Duration
}

func (p *passing) Read([]byte) (int, error) {
	*p.clock = p.clock.Add(p.by)
	return 0, io.EOF
}

func TestPackagesOneByOneUseOneCore(t *testing.T) {
	for atOnce, want := range map[int]time.Duration{0: 3 * time.Second, 1: 3 * time.Second, 2: 1500 * time.Millisecond, 8: 1500 * time.Millisecond} {
		if got := perWeight(3, atOnce, 2); got != want {
			t.Errorf("%d at once: %v for each second on 2 cores of a machine that takes 3 times as long, want %v", atOnce, got, want)
		}
	}
}

func TestTheTableOfTestTimes(t *testing.T) {
	if _, err := testWeights(testSeconds); err != nil {
		t.Error(err)
	}
	if _, err := testWeights("x.org/a soon\n"); err == nil || !strings.Contains(err.Error(), "x.org/a soon") {
		t.Errorf("got %v", err)
	}
}
