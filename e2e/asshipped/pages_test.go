package asshipped_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/asshipped/pages"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
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
	all := pages.Of(t, root, page)
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
