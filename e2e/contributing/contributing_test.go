// Package contributing follows docs/add-a-check.md exactly.
package contributing

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// An instruction is a sentence and the fenced block below it.
var (
	block   = regexp.MustCompile("(?ms)^([^\n]+):\n\n```[a-z]*\n(.*?)^```$")
	newFile = regexp.MustCompile("^New file `([^`]+)`$")
	insert  = regexp.MustCompile("^In `([^`]+)`, after the line `([^`]+)`$")
)

func TestTheSixStepsWork(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(root, "docs", "add-a-check.md"))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	sh(t, root, "git ls-files -z | xargs -0 cp --parents -t "+dir)
	// What make builds from pinned modules need not be built again for the copy.
	if err := components.Build(t.Context(), os.Stderr, root, components.Helm); err != nil {
		t.Fatal(err)
	}
	sh(t, root, "mkdir "+dir+"/bin && for built in bin/*; do ln -s $PWD/$built "+dir+"/bin/; done")
	instructions := block.FindAllStringSubmatch(string(page), -1)
	if n := strings.Count(string(page), "\n## "); n != 6 || len(instructions) < n {
		t.Fatalf("found %d steps and %d instructions", n, len(instructions))
	}
	for _, i := range instructions {
		sentence, text := i[1], i[2]
		if m := newFile.FindStringSubmatch(sentence); m != nil {
			file := filepath.Join(dir, m[1])
			if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		} else if m := insert.FindStringSubmatch(sentence); m != nil {
			if err := insertAfter(filepath.Join(dir, m[1]), m[2], text); err != nil {
				t.Fatal(err)
			}
		} else if sentence == "Run" {
			sh(t, dir, text)
		} else {
			t.Errorf("no instruction: %q", sentence)
		}
	}
}

func insertAfter(file, line, text string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	before, after, found := strings.Cut(string(data), "\n"+line+"\n")
	if !found {
		return fmt.Errorf("%s has no line %q", file, line)
	}
	return os.WriteFile(file, []byte(before+"\n"+line+"\n"+text+after), 0o644)
}

func sh(t *testing.T, dir, script string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "sh", "-euc", script)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s\n%v\n%s", script, err, out)
	}
}
