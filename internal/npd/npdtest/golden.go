// Package npdtest tests a plugin the way NPD sees it: the built binary on fixtures, its exit code and its one line.
package npdtest

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"golang.org/x/tools/txtar"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

var update = flag.Bool("update", false, "rewrite the `want` section of the golden files")

// Update reports whether golden files are to be rewritten: `go test -update`.
func Update() bool { return *update }

// Build compiles the plugin in the current folder and returns the binary's path.
func Build(t *testing.T) string { return BuildIn(t, ".") }

// BuildIn compiles the plugin in a folder and returns the binary's path.
func BuildIn(t *testing.T, folder string) string {
	t.Helper()
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	path, err := filepath.Abs(folder)
	if err != nil {
		t.Fatal(err)
	}
	path, err = filepath.Rel(root, path)
	if err != nil {
		t.Fatal(err)
	}
	if err := components.BuildOurs(t.Context(), root, "./"+path); err != nil {
		t.Fatal(err)
	}
	noticed.Do(func() { noticeSources(t) })
	return filepath.Join(root, "bin", filepath.Base(path))
}

var noticed sync.Once

// noticeSources looks at every source file of the plugin. `go test` sees only what the test itself links and opens: it
// would answer from its cache after a change of the plugin's main package.
func noticeSources(t *testing.T) {
	t.Helper()
	const files = `{{$d := .Dir}}{{with .Module}}{{if .Main}}{{range $.GoFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{range $.EmbedFiles}}{{$d}}/{{.}}{{"\n"}}{{end}}{{end}}{{end}}`
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", files, ".").Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	for file := range strings.FieldsSeq(string(out)) {
		if _, err := os.Stat(file); err != nil {
			t.Fatal(err)
		}
	}
}

// Run runs a plugin by hand and returns what NPD would get: "exit N" and stdout.
func Run(t *testing.T, binary string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), binary, args...)
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatalf("%s %q: %v", binary, args, err)
	}
	return fmt.Sprintf("exit %d\n%s", cmd.ProcessState.ExitCode(), out)
}

// Golden runs the plugin in the current folder on every testdata/*.txtar. Such a file says in its comment, on the line
// `args: ...`, how to call the plugin ($DIR is where the file's sections lie as files, and -state-dir is added), and
// in the section `want` what must come out: "exit N" and the line on stdout.
func Golden(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txtar")
	if err != nil || len(files) == 0 {
		t.Fatalf("testdata/*.txtar: %d files, %v", len(files), err)
	}
	binary := Build(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			golden(t, binary, file)
		})
	}
}

func golden(t *testing.T, binary, file string) {
	archive, err := txtar.ParseFile(file)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	want := -1
	for i, section := range archive.Files {
		if section.Name == "want" {
			want = i
			continue
		}
		path := filepath.Join(dir, filepath.FromSlash(section.Name))
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		mode := os.FileMode(0o644)
		if bytes.HasPrefix(section.Data, []byte("#!")) {
			// A stand-in for a vendor's tool.
			mode = 0o755
		}
		if err := os.WriteFile(path, section.Data, mode); err != nil {
			t.Fatal(err)
		}
	}
	if want < 0 {
		archive.Files = append(archive.Files, txtar.File{Name: "want"})
		want = len(archive.Files) - 1
	}
	args, found := "", false
	for line := range strings.Lines(string(archive.Comment)) {
		if rest, ok := strings.CutPrefix(line, "args:"); ok {
			args, found = rest, true
		}
	}
	if !found {
		t.Fatalf("%s has no line `args: ...`", file)
	}
	argv := append([]string{"-state-dir", filepath.Join(dir, "state")}, strings.Fields(strings.ReplaceAll(args, "$DIR", dir))...)
	got := strings.ReplaceAll(Run(t, binary, argv...), dir, "$DIR")
	if *update {
		archive.Files[want].Data = []byte(got)
		if err := os.WriteFile(file, txtar.Format(archive), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if got != string(archive.Files[want].Data) {
		t.Errorf("got\n%swant\n%s", got, archive.Files[want].Data)
	}
}
