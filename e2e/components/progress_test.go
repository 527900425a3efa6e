package components

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

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

// project is an estimate of two tasks of one folder that share package b, and a clock. A byte takes 10 ms by the estimate made before.
func project(t *testing.T) (e *estimate, first, second task, out *bytes.Buffer, pass func(time.Duration)) {
	t.Helper()
	out = &bytes.Buffer{}
	clock := time.Unix(0, 0)
	e = &estimate{
		out: out, now: func() time.Time { return clock }, packages: map[string]map[string]string{}, left: map[string]cost{}, prior: 10 * time.Millisecond,
	}
	first, second = task{name: "kube", dir: "k", packages: []string{"."}}, task{name: "kwok", dir: "w", packages: []string{"."}}
	b := source{dir: "/mod/x.org@v1/b", cost: 3000}
	e.add(first, map[string]source{"a": {"/go/a", 1000}, "x.org/b": b, "x.org/c": {"/mod/x.org@v1/c", 6000}})
	e.add(second, map[string]source{"x.org/b": b, "x.org/d": {"/mod/x.org@v1/d", 2000}})
	e.start([]task{first, second})
	return e, first, second, out, func(d time.Duration) { clock = clock.Add(d) }
}

func TestThePlanNamesWhatIsMissingAndCountsOnceWhatIsShared(t *testing.T) {
	_, _, _, out, _ := project(t)
	want := fmt.Sprintf("to build: kube, kwok; about 2 min on this machine (%d cores)\n", runtime.NumCPU())
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	e := &estimate{out: out, now: time.Now}
	out.Reset()
	e.start([]task{{name: "kube"}})
	if out.Len() > 0 {
		t.Errorf("nothing is to be compiled: %q", out)
	}
}

func TestTheEstimateFollowsTheMeasuredSpeed(t *testing.T) {
	e, first, second, out, pass := project(t)
	out.Reset()
	m := &meter{task: first, estimate: e}
	write := func(after time.Duration, text string) {
		t.Helper()
		pass(after)
		if n, err := m.Write([]byte(text)); n != len(text) || err != nil {
			t.Fatal(n, err)
		}
	}
	write(reportEvery-1, "a\n")                      // too early for a line
	write(1, "# x.org/b\nx.o")                       // the name is not complete
	write(4*reportEvery, "rg/b\nfile.go:1: error\n") // 75 s for 4000 of 12000 bytes: 19 ms a byte
	write(reportEvery, "x.org/c\n")
	e.finish(first)
	m = &meter{task: second, estimate: e}
	write(reportEvery, "x.org/b\nx.org/d\n")
	want := "  kube: 33 % done, about 3 min left\n  kube: 83 % done, about 20 s left\n  kwok: 100 % done, linking\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	// What the error of a failed build quotes; the package that the first task has compiled is none that is left.
	if diff := cmp.Diff("x.org/b\n", m.other.String()); diff != "" {
		t.Error(diff)
	}
}

func TestATaskThatAnotherProgramHasDoneIsNotLeft(t *testing.T) {
	e, first, second, _, pass := project(t)
	pass(time.Minute)
	e.finish(first)
	if left := e.remaining(); left <= 0 || left > 30*time.Second {
		t.Errorf("%s left of 2000 bytes after a minute for 10000", left)
	}
	e.finish(second)
	if left := e.remaining(); left != 0 {
		t.Errorf("%s left", left)
	}
}

func TestStaleIsWhatABuildCompiles(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	tiny := task{env: []string{"CGO_ENABLED=0"}, dir: tiny.dir(root), flags: []string{"-trimpath", noDebugger, "-ldflags=-s -w -X=main.version=v0.47.0"}, packages: []string{"."}}
	costs := func() map[string]source {
		t.Helper()
		got, err := tiny.stale(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if err := Build(t.Context(), &bytes.Buffer{}, root, Component{Name: "tiny", Dir: "tiny", Package: ".", Module: "golang.org/x/sys"}); err != nil {
		t.Fatal(err)
	}
	if _, found := costs()["os"]; found {
		t.Error("os is cached")
	}
	tiny.flags = append(tiny.flags, "-gcflags=os=-N")
	list, err := runWith(t.Context(), tiny.env, tiny.dir, "list", "-deps", ".")
	if err != nil {
		t.Fatal(err)
	}
	dependencies := cost(bytes.Count(list, []byte("\n")) - 1) // without the package itself
	if got := costs(); got["os"].cost <= 100*perDependency || got["example.com/tiny"].cost != dependencies*perDependency+cost(len(tinyMain)) {
		t.Errorf("os is to compile again, and what imports it; got %v", got)
	}
}

func TestAProgramOfOursSharesWhatAComponentCompiles(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	r, err := KWOK.recipe(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	ours, err := ourTasks(t.Context(), root, []string{"./remediator"})
	if err != nil || len(ours) != 1 {
		t.Fatal(ours, err)
	}
	if component, own := r.task().key("/mod/x.org@v1/a"), ours[0].key("/mod/x.org@v1/a"); component != own {
		t.Errorf("a package of both counts twice, as %q and as %q", component, own)
	}
	// The flags of the compiler and its environment decide what is shared.
	if !slices.Contains(r.flags, noDebugger) || !slices.Contains(ours[0].flags, noDebugger) {
		t.Errorf("a component is built with %q, a program with %q", r.flags, ours[0].flags)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	if line := "\nexport GOFLAGS     ?= -trimpath " + noDebugger + "\n"; !strings.Contains(string(makefile), line) {
		t.Errorf("tests are built with other flags than programs: the Makefile does not say %q", line)
	}
	operator, err := Trainer.recipe(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if operator.task().key("/mod/x.org@v1/a") == r.task().key("/mod/x.org@v1/a") {
		t.Errorf("a package that is compiled with %q and with %q counts once", operator.flags, r.flags)
	}
}

func TestABuildReportsItsProgress(t *testing.T) {
	root := repository(t, "require golang.org/x/sys v0.47.0\n")
	var progress bytes.Buffer
	if err := Build(t.Context(), &progress, root, tiny); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"sources that are missing are downloaded\n", "building tiny (golang.org/x/sys v0.47.0)\n", "built tiny in "} {
		if !strings.Contains(progress.String(), want) {
			t.Errorf("no %q in\n%s", want, &progress)
		}
	}
}
