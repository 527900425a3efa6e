package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// testTarget is a target of the Makefile that tests and has a line of help.
var testTarget = regexp.MustCompile(`(?m)^(test-[a-z-]+|lint):.* ## `)

// What .ci/run runs is each target of tests once, also after one of them has failed. A program in place of make notes what it is asked for.
func TestCIRunsEveryTargetOfTests(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) (string, error) {
		made := exec.CommandContext(t.Context(), "make", append([]string{"--no-print-directory"}, args...)...)
		made.Dir, made.Env = root, append(made.Environ(), "MAKEFLAGS=")
		out, err := made.Output()
		return string(out), err
	}
	listed, err := run("--eval=show-ci: ; @echo $(CI)", "show-ci")
	if err != nil {
		t.Fatal(err)
	}
	notes := filepath.Join(t.TempDir(), "notes")
	program := filepath.Join(filepath.Dir(notes), "make")
	write(t, program, "#!/bin/sh\nfor last; do :; done\necho $last >>"+notes+"\n[ $last != test-race ]\n")
	if err := os.Chmod(program, 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := run(append([]string{"--keep-going", "--jobs=3", "MAKE=" + program}, strings.Fields(listed)...)...)
	if err == nil || !strings.Contains(out, "failed: test-race\n") {
		t.Errorf("of a target that fails: %v\n%s", err, out)
	}
	ran, err := os.ReadFile(notes)
	if err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(string(ran))
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"test-packages"} // with test-kernel-log it is `make test`
	for _, match := range testTarget.FindAllStringSubmatch(string(makefile), -1) {
		want = append(want, match[1])
	}
	slices.Sort(got)
	slices.Sort(want)
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, command := range []string{"`make demo`", "`make test`"} {
		if !strings.Contains(string(readme), command) {
			t.Errorf("README.md does not name %s", command)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("CI runs (+) other targets than the Makefile has (-):\n%s", diff)
	}
}

// nightly are the targets of `make nightly`.
var nightly = regexp.MustCompile(`(?m)^nightly: (.*) ## `)

func TestTheNightRunsWhatIsTooLongForCI(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	workflow, err := os.ReadFile(filepath.Join(root, ".github/workflows/nightly.yml"))
	if err != nil {
		t.Fatal(err)
	}
	match := nightly.FindStringSubmatch(string(makefile))
	if match == nil {
		t.Fatal("the Makefile has no target nightly")
	}
	for _, target := range append(strings.Fields(match[1]), "site", "chaos", "test-operators") {
		if !regexp.MustCompile(`run: make .*\b` + target + `\b`).Match(workflow) {
			t.Errorf("nightly.yml does not run make %s", target)
		}
	}
}
