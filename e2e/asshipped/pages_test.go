package asshipped_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// shown is what a page shows: YAML in a fence, or a command.
type shown struct {
	line int
	text string
}

var (
	// fence is a fenced block of YAML, command one line of commands with the lines that continue it, and inline a command in a sentence.
	fence   = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	command = regexp.MustCompile(`(?m)^    ((?:kubectl|helm) (?:[^\n]*\\\n)*[^\n]*)$`)
	inline  = regexp.MustCompile("`(kubectl [^`]*)`")
	comment = regexp.MustCompile(`\s+# .*$`)
)

// showsOf returns the YAML that a page shows, and its commands of kubectl and helm, in their order.
func showsOf(t *testing.T, root, page string) (all []shown) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	for i := 0; i < len(text); {
		next, end, what := len(text), len(text), ""
		for _, pattern := range []*regexp.Regexp{fence, command, inline} {
			if at := pattern.FindStringSubmatchIndex(text[i:]); at != nil && i+at[0] < next {
				next, end, what = i+at[0], i+at[1], text[i+at[2]:i+at[3]]
			}
		}
		if what != "" {
			if !strings.Contains(what, "\n") {
				what = comment.ReplaceAllString(what, "")
			}
			all = append(all, shown{1 + strings.Count(text[:next], "\n"), what})
		}
		i = end
	}
	if len(all) == 0 {
		t.Fatalf("docs/%s shows nothing", page)
	}
	return all
}

// step does what a page shows.
type step struct {
	// begins is how the text begins.
	begins string
	do     func(text string)
}

// follow does what a page shows, in its order. Each YAML and each command needs a step.
func follow(t *testing.T, root, page string, steps ...step) {
	t.Helper()
	all := showsOf(t, root, page)
	for i, s := range all {
		if i >= len(steps) || !strings.HasPrefix(s.text, steps[i].begins) {
			t.Fatalf("docs/%s:%d shows %q, and that is not step %d of this test", page, s.line, s.text, i)
		}
		t.Logf("docs/%s:%d: %s", page, s.line, s.text)
		steps[i].do(s.text)
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

// valuesOf are the values that pages show, each block over those before it, and then others. The spec of a policy is below policy, as in
// the chart.
func valuesOf(t *testing.T, root, others string, pages ...string) string {
	t.Helper()
	values := map[string]any{}
	add := func(text string) {
		var block map[string]any
		if err := yaml.Unmarshal([]byte(text), &block); err != nil {
			return // of several documents
		}
		if spec, ok := block["spec"].(map[string]any); ok && spec["rules"] != nil && block["kind"] == nil {
			block = map[string]any{"policy": spec}
		}
		if block["policy"] != nil || block["repair"] != nil {
			merge(values, block)
		}
	}
	for _, page := range pages {
		for _, s := range showsOf(t, root, page) {
			add(s.text)
		}
	}
	add(others)
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
