package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestValidatePrintsWarnings(t *testing.T) {
	text, err := os.ReadFile("../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(strings.Replace(string(text), "condition: KernelDeadlock", "condition: KernelDeadlok", 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := newCommand()
	var out, problems strings.Builder
	cmd.SetOut(&out)
	cmd.SetErr(&problems)
	cmd.SetArgs([]string{"policy", "validate", file})
	if err := cmd.ExecuteContext(t.Context()); err != nil {
		t.Fatalf("a warning is an error: %v", err)
	}
	if got := problems.String(); !strings.HasPrefix(got, "warning: "+file+": line ") || !strings.Contains(got, "did you mean KernelDeadlock?") || strings.Count(got, "\n") != 1 {
		t.Errorf("warnings %q", got)
	}
	if !strings.Contains(out.String(), ": ok: ") {
		t.Errorf("output %q", out.String())
	}
}
