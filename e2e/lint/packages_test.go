package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// pure returns the folders of the rule of that name in .golangci.yml.
func pure(t *testing.T, root string) (folders []string) {
	t.Helper()
	for _, file := range settings(t, read(t, filepath.Join(root, ".golangci.yml"))).Depguard.Rules["pure"].Files {
		if folder, ok := strings.CutPrefix(file, "${base-path}/"); ok {
			folders = append(folders, strings.TrimSuffix(folder, "/**"))
		}
	}
	if len(folders) == 0 {
		t.Fatal("found no pure package")
	}
	return folders
}

// controllers are the packages that only the remediator may contain.
var controllers = []string{"remediator/nodes", "remediator/jobs", "remediator/preflight", "remediator/followers/evidence", "remediator/followers/webhooks"}

// The linter checks the imports of a file. A program also contains the packages that these import.
func TestNoPackageComesInThroughAnother(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	type rule struct {
		dir, why string
		denied   func(pkg string) bool
	}
	runsControllers := func(pkg string) bool {
		return slices.Contains(controllers, strings.TrimPrefix(pkg, module))
	}
	rules := []rule{
		{"kubectl-pitcrew", "only the remediator runs controllers", runsControllers},
		{"repair", "only the remediator runs controllers", runsControllers},
		{"repair", "it has no rights in the cluster", func(pkg string) bool { return strings.Contains(pkg, "k8s.io/") }},
		{"e2e/try", "compiling Kubernetes takes minutes", func(pkg string) bool { return strings.Contains(pkg, "k8s.io/") }},
		{"preflight", "the init container must not carry the remediator", func(pkg string) bool { return strings.HasPrefix(pkg, module+"remediator/") }},
	}
	for _, dir := range pure(t, root) {
		rules = append(rules, rule{dir, "a pure package reads and writes no cluster", func(pkg string) bool {
			return strings.HasPrefix(pkg, "k8s.io/client-go/") || strings.HasPrefix(pkg, "sigs.k8s.io/controller-runtime")
		}})
	}
	for _, r := range rules {
		if _, err := os.Stat(filepath.Join(root, r.dir)); err != nil {
			continue // the lint rules name packages that do not exist yet
		}
		list := exec.CommandContext(t.Context(), "go", "list", "-deps", "./"+r.dir)
		list.Dir = root
		out, err := list.Output()
		if err != nil {
			t.Fatal(r.dir, err)
		}
		for _, pkg := range strings.Fields(string(out)) {
			if r.denied(pkg) {
				t.Errorf("%s is made from %s: %s", r.dir, pkg, r.why)
			}
		}
	}
}

// No linter forbids go statements.
func TestPurePackagesStartNoGoroutine(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	for _, dir := range pure(t, root) {
		for _, at := range goroutines(t, filepath.Join(root, dir)) {
			t.Errorf("%s: a pure package starts no goroutine", at)
		}
	}
	broken := t.TempDir()
	write(t, filepath.Join(broken, "a", "go.go"), "package a\n\nfunc f() {\n\tgo f()\n}\n")
	write(t, filepath.Join(broken, "a", "go_test.go"), "package a\n\nfunc g() {\n\tgo g()\n}\n")
	if got := goroutines(t, broken); len(got) != 1 || !strings.HasSuffix(got[0], "a/go.go:4:2") {
		t.Errorf("in a package that starts one: %q", got)
	}
}

// goroutines returns where the Go files below dir start goroutines, tests excepted.
func goroutines(t *testing.T, dir string) (found []string) {
	t.Helper()
	if _, err := os.Stat(dir); err != nil {
		return nil
	}
	files := token.NewFileSet()
	if err := filepath.WalkDir(dir, func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(files, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if statement, ok := n.(*ast.GoStmt); ok {
				found = append(found, files.Position(statement.Pos()).String())
			}
			return true
		})
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return found
}

// What is built and unpacked in bin can contain Go files of others. `ignore` of go.mod hides them from the go command, and from
// gopls and the linter, which ask it.
func TestWhatLiesInBinIsNoPackage(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp(filepath.Join(root, "bin"), "lint-test-")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	write(t, filepath.Join(dir, "broken", "broken.go"), "package broken\n\nvar x = undefined\n")
	for _, pattern := range []string{"./...", "./bin/..."} {
		cmd := exec.CommandContext(t.Context(), "go", "list", "-e", pattern)
		cmd.Dir = root
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list %s: %v", pattern, err)
		}
		if strings.Contains(string(out), "/bin/") {
			t.Errorf("go list %s lists\n%s", pattern, out)
		}
	}
}
