// Package lint tests .golangci.yml: a rule that no longer matches its files, after a folder was renamed for instance,
// would report nothing, as if no file broke it. `make lint` runs it.
package lint

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

const module = "github.com/pitcrew-dev/pitcrew/"

// imports are files that break an import rule: path -> import -> the reason that the linter gives.
var imports = map[string]map[string]string{
	"plugins/xid/kube.go": {
		"k8s.io/api/core/v1":                        "plugins start thousands of times a day; k8s.io costs",
		"sigs.k8s.io/controller-runtime/pkg/client": "plugins start thousands of times a day; sigs.k8s.io costs",
	},
	"internal/npd/kube.go":          {"k8s.io/api/core/v1": "plugins start thousands of times a day"},
	"remediator/nodes/exec.go":      {"os/exec": "testable without a process"},
	"remediator/quarantine/exec.go": {"os/exec": "testable without a process"},
	"remediator/preflight/exec.go":  {"os/exec": "testable without a process"},
	"plugins/xid/nvml.go":           {"github.com/NVIDIA/go-nvml/pkg/nvml": "cgo stays in internal/nvml"},
	"plugins/ecc/dcgm.go":           {"github.com/NVIDIA/go-dcgm/pkg/dcgm": "cgo stays in plugins/dcgm"},
	"remediator/quarantine/client.go": {
		"sigs.k8s.io/controller-runtime/pkg/client": "its controller reads and writes the cluster",
		"k8s.io/client-go/rest":                     "its controller reads and writes the cluster",
		"k8s.io/utils/clock":                        "its caller passes the time",
		"log/slog":                                  "its caller logs it",
		"github.com/go-logr/logr":                   "its caller logs it",
	},
	"remediator/restart/client.go":           {"k8s.io/client-go/rest": "its controller reads and writes the cluster"},
	"internal/preflight/schedule/client.go":  {"k8s.io/client-go/rest": "its controller reads and writes the cluster"},
	"internal/preflight/verdict/client.go":   {"k8s.io/client-go/rest": "its controller reads and writes the cluster"},
	"internal/preflight/verdict/logs/log.go": {"log/slog": "its caller logs it"},
	"kubectl-pitcrew/controllers.go": {
		module + "remediator/nodes":              "only the remediator runs controllers",
		module + "remediator/jobs":               "only the remediator runs controllers",
		module + "remediator/preflight":          "only the remediator runs controllers",
		module + "remediator/followers/evidence": "only the remediator runs controllers",
		module + "remediator/followers/webhooks": "only the remediator runs controllers",
	},
	"repair/controllers.go": {module + "remediator/nodes": "only the remediator runs controllers"},
	"preflight/shared.go": {
		module + "remediator/jobs":       "does not belong into every training pod",
		module + "remediator/quarantine": "does not belong into every training pod",
	},
}

// allowed are imports that are similar to the forbidden ones but allowed.
var allowed = map[string][]string{
	"plugins/hca/exec.go":                {"os/exec"},
	"plugins/dcgm/read.go":               {"os/exec", "github.com/NVIDIA/go-dcgm/pkg/dcgm"},
	"internal/nvml/nvml.go":              {"github.com/NVIDIA/go-nvml/pkg/nvml"},
	"internal/npd/worker.go":             {"os/exec"},
	"internal/preflight/report/types.go": {"k8s.io/api/core/v1"},
	"internal/preflight/verdict/pure.go": {"k8s.io/api/core/v1"},
	"remediator/quarantine/pure.go":      {"k8s.io/api/core/v1", "time"},
	"remediator/quarantine/pure_test.go": {"k8s.io/client-go/rest", "log/slog"},
	"remediator/nodes/controller.go":     {"sigs.k8s.io/controller-runtime/pkg/client", "k8s.io/client-go/rest", "log/slog", "k8s.io/utils/clock"},
	"remediator/preflight/reconcile.go":  {"k8s.io/client-go/rest", module + "internal/preflight/verdict"},
	"kubectl-pitcrew/describe.go":        {module + "remediator/quarantine", module + "remediator/jobs/kinds", "k8s.io/client-go/rest"},
	"preflight/meet.go":                  {"os/exec", module + "internal/preflight/verdict"},
}

// calls are files that break another rule: path -> what the linter reports. For a file that may do it, the list is empty.
var calls = map[string]struct {
	text string
	want []string
}{
	"remediator/quarantine/now.go": {`package quarantine

import "time"

func Age(t time.Time) (time.Duration, time.Duration) { return time.Since(t), time.Until(t) }

func Now() time.Time { return time.Now() }
`, []string{
		"use of `time.Since` forbidden because \"judges and pure packages take the time as an argument",
		"use of `time.Until` forbidden because \"judges and pure packages take the time as an argument",
		"use of `time.Now` forbidden because \"judges and pure packages take the time as an argument",
	}},
	"remediator/nodes/now.go":             {nowIn("nodes"), []string{"use of `time.Now` forbidden"}},
	"remediator/jobs/kinds/now.go":        {nowIn("kinds"), []string{"use of `time.Now` forbidden"}},
	"internal/preflight/schedule/now.go":  {nowIn("schedule"), []string{"use of `time.Now` forbidden"}},
	"internal/preflight/verdict/now.go":   {nowIn("verdict"), []string{"use of `time.Now` forbidden"}},
	"plugins/xid/judge.go":                {nowIn("xid"), []string{"use of `time.Now` forbidden"}},
	"plugins/ntp/read.go":                 {nowIn("ntp"), nil},
	"internal/npd/hold.go":                {nowIn("npd"), nil},
	"remediator/nodes/controller_test.go": {strings.Replace(nowIn("nodes"), "Now()", "TestNow()", 1), nil},
	"remediator/main.go": {`// Command remediator.
package main

import (
	"os"
	"time"
)

func main() {
	if time.Now().IsZero() {
		os.Exit(1)
	}
}
`, nil},
	"remediator/nodes/exit.go": {`package nodes

import (
	"log"
	"os"
	"time"
)

func Exit() {
	time.Sleep(time.Second)
	os.Exit(1)
}

func Fatal() { log.Fatalf("ends") }
`, []string{
		"use of `time.Sleep` forbidden because \"wait for the thing itself",
		"use of `os.Exit` forbidden because \"npd.Main is the only exit of a plugin",
		"use of `log.Fatalf` forbidden because \"it exits 1, which tells NPD that the node is sick",
	}},
	"kubectl-pitcrew/print.go":              {printIn(name("kubectl-pitcrew")), []string{forbiddenPrint}},
	"kubectl-pitcrew/internal/cli/print.go": {printIn("cli"), nil},
	"repair/print.go":                       {printIn("repair"), nil},
	"remediator/nodes/nolint.go": {`package nodes

import "io"

func Unspecific(w io.Writer) { w.Write(nil) } //nolint // whatever it is

func Unexplained(w io.Writer) { w.Write(nil) } //nolint:errcheck

func Unused(w io.Writer) error { //nolint:errcheck // it returns the error
	_, err := w.Write(nil)
	return err
}

func Explained(w io.Writer) { w.Write(nil) } //nolint:errcheck // w is a buffer, which returns no error
`, []string{
		"should mention specific linter",
		"should provide explanation",
		"is unused for linter \"errcheck\"",
	}},
}

func nowIn(name string) string {
	return "package " + name + "\n\nimport \"time\"\n\nfunc Now() time.Time { return time.Now() }\n"
}

// forbiddenPrint is reported of what kubectl-pitcrew prints by other means than its writer.
const forbiddenPrint = "use of `fmt.Println` forbidden because \"text of others could control the terminal"

func printIn(name string) string {
	return "package " + name + "\n\nimport \"fmt\"\n\nfunc Print() { fmt.Println() }\n"
}

// stubs are packages of other modules, with nothing in them.
var stubs = []string{
	"k8s.io/api/core/v1", "k8s.io/client-go/rest", "k8s.io/utils/clock", "sigs.k8s.io/controller-runtime/pkg/client",
	"github.com/go-logr/logr", "github.com/NVIDIA/go-nvml/pkg/nvml", "github.com/NVIDIA/go-dcgm/pkg/dcgm",
}

// modules are the modules of stubs, by a prefix of the package.
var modules = []string{
	"k8s.io/api", "k8s.io/client-go", "k8s.io/utils", "sigs.k8s.io/controller-runtime", "github.com/go-logr/logr",
	"github.com/NVIDIA/go-nvml", "github.com/NVIDIA/go-dcgm",
}

type issue struct {
	FromLinter, Text string
	Pos              struct{ Filename string }
}

func TestEveryRuleReportsWhatBreaksIt(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.Build(t.Context(), os.Stderr, root, components.GolangCILint); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	config := read(t, filepath.Join(root, ".golangci.yml"))
	write(t, filepath.Join(dir, ".golangci.yml"), config)
	makeModule(t, dir)

	want := map[string][]string{}
	for path, broken := range imports {
		write(t, filepath.Join(dir, path), importing(path, slices.Sorted(maps.Keys(broken))))
		for pkg, reason := range broken {
			want[path] = append(want[path], fmt.Sprintf("depguard: import '%s' is not allowed from list ... %s", pkg, reason))
		}
	}
	for path, packages := range allowed {
		write(t, filepath.Join(dir, path), importing(path, packages))
	}
	for path, call := range calls {
		write(t, filepath.Join(dir, path), call.text)
		want[path] = append(want[path], call.want...)
	}

	found := run(t, components.GolangCILint.Path(root), dir)
	got := map[string][]string{}
	for _, i := range found {
		got[i.Pos.Filename] = append(got[i.Pos.Filename], i.FromLinter+": "+i.Text)
	}
	for path := range want {
		for _, text := range want[path] {
			i := slices.IndexFunc(got[path], func(line string) bool { return matches(line, text) })
			if i < 0 {
				t.Errorf("%s: no issue %q; the linter reports %q", path, text, got[path])
				continue
			}
			got[path] = slices.Delete(got[path], i, i+1)
		}
	}
	for path, lines := range got {
		if len(lines) > 0 {
			t.Errorf("%s: unexpected issues %q", path, lines)
		}
	}
	everyRuleIsBroken(t, config, found)
}

// matches returns whether line contains the parts of text around " ... ".
func matches(line, text string) bool {
	for part := range strings.SplitSeq(text, " ... ") {
		_, rest, ok := strings.Cut(line, part)
		if !ok {
			return false
		}
		line = rest
	}
	return true
}

// everyRuleIsBroken tests that every rule has a case that breaks it.
func everyRuleIsBroken(t *testing.T, config string, found []issue) {
	t.Helper()
	c := settings(t, config)
	if len(c.Depguard.Rules) == 0 || len(c.Forbidigo.Forbid) == 0 {
		t.Fatal("found no rules")
	}
	reported := func(text string) bool {
		return slices.ContainsFunc(found, func(i issue) bool { return matches(i.Text, text) })
	}
	for name, rule := range c.Depguard.Rules {
		for _, deny := range rule.Deny {
			pkg := strings.TrimSuffix(deny.Pkg, "$")
			if !reported("import '" + pkg + " ... ' is not allowed from list '" + name + "': " + deny.Desc) {
				t.Errorf("rule %s: no file of this test breaks it with %s, or it reports nothing", name, deny.Pkg)
			}
		}
	}
	for _, forbid := range c.Forbidigo.Forbid {
		if !reported(forbid.Msg) {
			t.Errorf("no file of this test breaks the rule %q, or it reports nothing", forbid.Msg)
		}
	}
}

// rules are the linters.settings in .golangci.yml that this package tests.
type rules struct {
	Depguard struct {
		Rules map[string]struct {
			Files []string
			Deny  []struct{ Pkg, Desc string }
		}
	}
	Forbidigo struct{ Forbid []struct{ Msg string } }
}

func settings(t *testing.T, config string) rules {
	t.Helper()
	var c struct{ Linters struct{ Settings rules } }
	if err := yaml.Unmarshal([]byte(config), &c); err != nil {
		t.Fatal(err)
	}
	return c.Linters.Settings
}

// run lints the module in dir and returns what it found.
func run(t *testing.T, linter, dir string) []issue {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), linter, "run", "--allow-parallel-runners", "--show-stats=false", "--output.json.path=stdout",
		"--max-issues-per-linter=0", "--max-same-issues=0", "--uniq-by-line=false", "./...")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOPROXY=off", "GOWORK=off", "CGO_ENABLED=0", "GOLANGCI_LINT_CACHE="+t.TempDir())
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, _ := cmd.Output() // 1: it has found something
	var report struct{ Issues []issue }
	if err := json.Unmarshal(out, &report); err != nil {
		t.Fatalf("%v: %s\n%s", err, out, stderr.String())
	}
	return report.Issues
}

// makeModule makes a module with this repository's name whose dependencies are empty packages beside it.
func makeModule(t *testing.T, dir string) {
	t.Helper()
	mod := "module " + strings.TrimSuffix(module, "/") + "\n\ngo 1.26.0\n"
	for _, m := range modules {
		mod += fmt.Sprintf("\nrequire %s v0.0.0\n\nreplace %s => ./bin/stubs/%s\n", m, m, m)
		write(t, filepath.Join(dir, "bin/stubs", m, "go.mod"), "module "+m+"\n\ngo 1.26.0\n")
	}
	write(t, filepath.Join(dir, "go.mod"), mod)
	for _, stub := range stubs {
		write(t, filepath.Join(dir, "bin/stubs", stub, "stub.go"), "package "+name(stub)+"\n")
	}
	for _, ours := range []string{
		"remediator/nodes", "remediator/jobs", "remediator/jobs/kinds", "remediator/preflight", "remediator/followers/evidence", "remediator/followers/webhooks",
		"remediator/quarantine", "internal/preflight/verdict",
	} {
		write(t, filepath.Join(dir, ours, "doc.go"), "// Package "+name(ours)+" is empty.\npackage "+name(ours)+"\n")
	}
}

// importing is a file that imports packages and does nothing with them.
func importing(path string, packages []string) string {
	text := "package " + name(filepath.Dir(path)) + "\n\nimport (\n"
	slices.SortFunc(packages, func(a, b string) int {
		return strings.Compare(order(a), order(b))
	})
	for i, p := range packages {
		if i > 0 && order(p)[0] != order(packages[i-1])[0] {
			text += "\n"
		}
		text += "\t_ \"" + p + "\"\n"
	}
	return text + ")\n"
}

// order sorts imports as goimports groups them: the standard library, other modules, this one.
func order(pkg string) string {
	first, _, _ := strings.Cut(pkg, "/")
	switch {
	case strings.HasPrefix(pkg, module):
		return "3" + pkg
	case strings.Contains(first, "."):
		return "2" + pkg
	default:
		return "1" + pkg
	}
}

func name(path string) string { return strings.ReplaceAll(filepath.Base(path), "-", "") }

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}
