package lint

import (
	"encoding/json"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// A package is tested with the race detector if its own code starts goroutines, has others call it from several, or guards what they
// share. What e2e and bench test and measure are built programs.
func TestWhatRunsSideBySideIsTestedWithTheRaceDetector(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	show := exec.CommandContext(t.Context(), "make", "--no-print-directory", "--eval=show-raced: ; @echo $(RACED)", "show-raced")
	show.Dir, show.Env = root, append(show.Environ(), "MAKEFLAGS=")
	out, err := show.Output()
	if err != nil {
		t.Fatal(err)
	}
	raced := strings.Fields(string(out))
	slices.Sort(raced)
	if diff := cmp.Diff(concurrent(t, root), raced); diff != "" {
		t.Errorf("RACED of the Makefile (+) is not what needs it (-):\n%s", diff)
	}
	broken := t.TempDir()
	write(t, filepath.Join(broken, "go.mod"), "module "+strings.TrimSuffix(module, "/")+"\n")
	for name, text := range map[string]string{
		"starts": "package p\n\nfunc f() {\n\tgo f()\n}\n", "shares": "package p\n\nimport _ \"sync\"\n",
		"serves": "package p\n\nimport \"net/http\"\n\nvar _ = http.ListenAndServe\n", "asks": "package p\n\nimport \"net/http\"\n\nvar _ = http.Get\n",
		"bench/measures": "package p\n\nimport _ \"sync\"\n",
	} {
		write(t, filepath.Join(broken, name, "p.go"), text)
		write(t, filepath.Join(broken, name, "p_test.go"), "package p\n")
	}
	write(t, filepath.Join(broken, "untested", "p.go"), "package p\n\nimport _ \"sync\"\n")
	if got, want := concurrent(t, broken), []string{"serves", "shares", "starts"}; !slices.Equal(got, want) {
		t.Errorf("of packages that need it and some that do not: %q, want %q", got, want)
	}
}

// sharing are imports of a package that starts goroutines, or that others call from several.
var sharing = []string{
	"sync", "sync/atomic", "golang.org/x/sync/errgroup",
	"sigs.k8s.io/controller-runtime", "sigs.k8s.io/controller-runtime/pkg/manager", "sigs.k8s.io/controller-runtime/pkg/controller",
}

// concurrent lists the folders of a module's packages that have tests and whose own code runs in several goroutines.
func concurrent(t *testing.T, root string) (folders []string) {
	t.Helper()
	list := exec.CommandContext(t.Context(), "go", "list", "-json=Dir,ImportPath,GoFiles,CgoFiles,Imports,TestGoFiles,XTestGoFiles", "./...")
	list.Dir = root
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	for packages := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct {
			Dir, ImportPath                                       string
			GoFiles, CgoFiles, Imports, TestGoFiles, XTestGoFiles []string
		}
		if err := packages.Decode(&p); errors.Is(err, io.EOF) {
			return folders
		} else if err != nil {
			t.Fatal(err)
		}
		folder := strings.TrimPrefix(p.ImportPath, module)
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 || strings.HasPrefix(folder, "e2e/") || strings.HasPrefix(folder, "bench/") {
			continue
		}
		shares := slices.ContainsFunc(p.Imports, func(path string) bool { return slices.Contains(sharing, path) })
		if shares || slices.ContainsFunc(slices.Concat(p.GoFiles, p.CgoFiles), func(name string) bool { return starts(t, filepath.Join(p.Dir, name)) }) {
			folders = append(folders, folder)
		}
	}
}

// starts reports whether a Go file starts goroutines, or runs an HTTP server, which calls its handlers in some.
func starts(t *testing.T, path string) (found bool) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			found = true
		case *ast.SelectorExpr:
			found = found || slices.Contains([]string{"ListenAndServe", "ListenAndServeTLS", "Serve", "ServeTLS"}, n.Sel.Name)
		}
		return true
	})
	return found
}
