package asshipped_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// step does what a page shows.
type step struct {
	// begins is how the text begins.
	begins string
	do     func(text string)
}

// follow does what a page shows, in its order. Each YAML and each command needs a step.
func follow(t *testing.T, root, page string, steps ...step) {
	t.Helper()
	var all []pages.Shown
	for _, s := range pages.Of(t, root, page) {
		if program, _, _ := strings.Cut(s.Text, " "); slices.Contains([]string{"repair", "remediator", "preflight"}, program) {
			hasFlags(t, root, s)
			continue
		}
		all = append(all, s)
	}
	for i, s := range all {
		if i >= len(steps) || !strings.HasPrefix(s.Text, steps[i].begins) {
			t.Fatalf("docs/%s:%d shows %q, and that is not step %d of this test", page, s.Line, s.Text, i)
		}
		t.Logf("docs/%s:%d: %s", page, s.Line, s.Text)
		steps[i].do(s.Text)
	}
	if len(all) < len(steps) {
		t.Fatalf("docs/%s shows no %q any more", page, steps[len(all)].begins)
	}
}

// hasFlags checks that a program of ours has the command and the flags that a page shows.
func hasFlags(t *testing.T, root string, shown pages.Shown) {
	t.Helper()
	words := strings.Fields(shown.Text)
	if err := components.BuildOurs(t.Context(), root, "./"+words[0]); err != nil {
		t.Fatal(err)
	}
	args := []string{"-h"}
	if len(words) > 1 && !strings.HasPrefix(words[1], "-") {
		args = []string{words[1], "-h"}
	}
	help, _ := exec.CommandContext(t.Context(), filepath.Join(root, "bin", words[0]), args...).CombinedOutput() // -h is no success of all
	for _, word := range words[1:] {
		name, _, _ := strings.Cut(word, "=")
		if word == "--" {
			break // what follows is another program's
		}
		if strings.HasPrefix(name, "-") && !regexp.MustCompile("(?m)^ *-?"+regexp.QuoteMeta(name)+"\\b").Match(help) {
			t.Errorf("line %d of the page: %s has no flag %s:\n%s", shown.Line, words[0], name, help)
		}
	}
}

// shell runs a command of a page in the root of the repository. That of Helm only renders, since no release is here.
func shell(t *testing.T, c *cluster.Cluster, line string) (string, error) {
	t.Helper()
	bin := t.TempDir()
	kubectl := fmt.Sprintf("#!/bin/sh\nexec %s/bin/components/kube kubectl \"$@\"\n", c.Root)
	if err := os.WriteFile(filepath.Join(bin, "kubectl"), []byte(kubectl), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(filepath.Join(c.Root, "bin", "kubectl-pitcrew"), filepath.Join(bin, "kubectl-pitcrew")); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
	cmd.Dir = c.Root
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "PATH="+bin+":"+os.Getenv("PATH"))
	out, err := cmd.CombinedOutput()
	return string(out), err
}
