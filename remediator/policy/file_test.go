package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAFileWithoutAValidPolicyGetsOneLater(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	const valid = "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\nspec: {budget: {maxNodes: 1}}\n"
	invalid := strings.Replace(valid, "maxNodes: 1", "maxNodes: one", 1)
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if f, err := Follow(path); err == nil || f.Known() {
		t.Errorf("a file that does not exist: %v, known %v", err, f.Known())
	}
	write(invalid)
	if f, err := Open(path); err == nil || f != nil {
		t.Errorf("Open: %v, %v", f, err)
	}
	f, err := Follow(path)
	if err == nil || !strings.Contains(err.Error(), "line 3") {
		t.Fatalf("Follow: %v", err)
	}
	if p := f.Policy(); f.Known() || p == nil || len(p.Rules) > 0 || !p.Observe {
		t.Fatalf("known %v, policy %+v", f.Known(), p)
	}
	write(valid)
	if changed, err := f.Reload(); !changed || err != nil || !f.Known() || f.Policy().Budget.MaxNodes != 1 {
		t.Fatalf("changed %v, %v, policy %+v", changed, err, f.Policy())
	}
	write(invalid)
	if _, err := f.Reload(); err == nil || !f.Known() || f.Policy().Budget.MaxNodes != 1 {
		t.Errorf("%v, policy %+v", err, f.Policy())
	}
}
