package components

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What docs/jobs.md says was measured with these.
var measured = []Component{
	kube(""), JobSet, TrainingOperator, TrainingOperator19, MPIOperator, Trainer, KubeRay, LWS, Kueue, VolcanoControllers,
}

func TestThePageOfJobsNamesThePinnedVersions(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "jobs.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "\n## Versions\n")
	if !found {
		t.Fatal("docs/jobs.md has no section Versions")
	}
	section, _, _ = strings.Cut(section, "\n## ")
	got := map[string]bool{}
	for _, row := range regexp.MustCompile("(?m)^\\| [^|]+ \\| `([^`]+)` \\| (v[^ |]+) \\|").FindAllStringSubmatch(section, -1) {
		got[row[1]+" "+row[2]] = true
	}
	want := map[string]bool{}
	for _, c := range measured {
		version, err := c.version(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		want[c.Module+" "+version] = true
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error("the go.mod files below e2e/components, and docs/jobs.md, which says with which versions its traps were measured"+
			" (run make test-operators before you change it):", diff)
	}
}

func TestThePageOfUpgradesNamesThePinnedVersions(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "upgrade.md"))
	if err != nil {
		t.Fatal(err)
	}
	for row, c := range map[string]Component{"Kubernetes": kube(""), "Node Problem Detector": NodeProblemDetector, "Helm": Helm} {
		version, err := c.version(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^\| ` + row + ` \|.* v?` + regexp.QuoteMeta(strings.TrimPrefix(version, "v")) + `\b`).Match(text) {
			t.Errorf("the row %s of docs/upgrade.md does not name %s", row, version)
		}
	}
}
