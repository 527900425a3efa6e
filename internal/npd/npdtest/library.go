package npdtest

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Library compiles the C source beside path, which ends in .c, into the shared library path, with the headers that a
// Go module has in a folder: a stand-in for a vendor's library.
func Library(t *testing.T, path, module, folder string) {
	t.Helper()
	headers, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	if err != nil {
		t.Fatal(err)
	}
	include := filepath.Join(strings.TrimSpace(string(headers)), folder)
	cc := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Wno-deprecated-declarations",
		"-Wl,-soname,"+filepath.Base(path), "-I", include, "-o", path, path+".c")
	if out, err := cc.CombinedOutput(); err != nil {
		t.Fatalf("compile %s: %v\n%s", path, err, out)
	}
}
