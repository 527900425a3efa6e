package npdtest

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

// stand is a library that Library has compiled, by what it was compiled from.
type stand struct{ name, source, module, folder string }

var (
	stands   = map[stand][]byte{}
	standsMu sync.Mutex
)

// Library compiles C source into the shared library path, with the headers that a Go module has in a folder: a stand-in for a vendor's
// library. The same source is compiled once.
func Library(t *testing.T, path, source, module, folder string) {
	t.Helper()
	standsMu.Lock()
	defer standsMu.Unlock()
	of := stand{filepath.Base(path), source, module, folder}
	if stands[of] == nil {
		stands[of] = compile(t, of)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, stands[of], 0o755); err != nil {
		t.Fatal(err)
	}
}

func compile(t *testing.T, of stand) []byte {
	t.Helper()
	headers, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", of.module).Output()
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), of.name)
	cc := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wno-deprecated-declarations",
		"-Wl,-soname,"+of.name, "-I", filepath.Join(strings.TrimSpace(string(headers)), of.folder), "-x", "c", "-o", library, "-")
	cc.Stdin = strings.NewReader(of.source)
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", of.name, err, out)
	}
	binary, err := os.ReadFile(library)
	if err != nil {
		t.Fatal(err)
	}
	return binary
}
