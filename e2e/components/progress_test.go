package components

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestThePlanNamesWhatIsMissingAndTheTimeOnThisMachine(t *testing.T) {
	missing := []recipe{{Component: Component{Name: "kube", CPU: 9 * time.Minute}}, {Component: Component{Name: "kwok", CPU: 50 * time.Second}}}
	for cores, want := range map[int]string{
		2:  "to build: kube, kwok; about 5 min with empty caches on this machine (2 cores), and the download of the sources\n",
		16: "to build: kube, kwok; about 40 s with empty caches on this machine (16 cores), and the download of the sources\n",
	} {
		if diff := cmp.Diff(want, plan(missing, cores)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestTimesAreRoundedUp(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "10 s", time.Second: "10 s", 11 * time.Second: "20 s", 110 * time.Second: "110 s", 111 * time.Second: "2 min",
		2 * time.Minute: "2 min", 121 * time.Second: "3 min",
	} {
		if got := about(d); got != want {
			t.Errorf("%s: %s, not %s", d, got, want)
		}
	}
}

func TestTheMeterCountsPackagesAndEstimatesByTheirSize(t *testing.T) {
	var out bytes.Buffer
	now := time.Unix(0, 0)
	m := newMeter(&out, "kube", map[string]int64{"a": 100, "b": 300, "c/d": 600}, func() time.Time { return now })
	write := func(after time.Duration, text string) {
		t.Helper()
		now = now.Add(after)
		if n, err := m.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	write(reportEvery-1, "a\n") // too early for a line
	write(1, "# b\nb")          // the name is not complete
	write(reportEvery, "\nfile.go:1: error\nb\n")
	write(reportEvery, "c/d\n")
	want := "  kube: 2 of 3 packages, about 50 s left\n" + // 30 s for 400 of 1000 bytes: 45 s
		"  kube: 3 of 3 packages, linking\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	// What the error of a failed build quotes.
	if diff := cmp.Diff("# b\nfile.go:1: error\nb\n", m.other.String()); diff != "" {
		t.Error(diff)
	}
}

func TestStaleIsWhatABuildCompiles(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	args := []string{"-trimpath", "-ldflags=-s -w -X=main.version=v0.47.0", "."}
	sizes := func() map[string]int64 {
		t.Helper()
		got, err := stale(t.Context(), []string{"CGO_ENABLED=0"}, tiny.dir(root), args...)
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if err := Build(t.Context(), &bytes.Buffer{}, root, tiny); err != nil {
		t.Fatal(err)
	}
	if _, found := sizes()["os"]; found {
		t.Error("os is cached")
	}
	args = append([]string{"-gcflags=os=-N"}, args...)
	if got := sizes(); got["os"] == 0 || got["example.com/tiny"] != int64(len(tinyMain)) {
		t.Errorf("os is to compile again, and what imports it; got %v", got)
	}
}

func TestABuildReportsItsProgress(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	var progress bytes.Buffer
	if err := Build(t.Context(), &progress, root, tiny); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"to build: tiny;", "building tiny (golang.org/x/sys v0.47.0)\n", "built tiny in "} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("no %q in\n%s", want, &progress)
		}
	}
}
