package upgrade_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// answering is the first commit whose tests ask that version about all goldens. It reads and writes records as the earlier commit does, with
// one field more.
const answering = "f100d713"

// added are names that records have got since. The earlier version ignores them and would not write them again, as its tests want it to.
var added = regexp.MustCompile(`\\"namespace\\":\\"pitcrew-repair\\",|(\\"link\\":\{[^}]*),\\"seen\\":\\"[^"\\]*\\"`)

// observed has other records since, on purpose: while a rule observes, no GPU is isolated.
const observed = "quarantines/isolated-observed.json"

// The earlier version reads the records that this one writes in every phase, and answers about each as about its own: what a name in JSON, or
// a value, has become would be lost on the way back. remediator/testdata is the way there.
func TestTheEarlierVersionReadsEveryRecord(t *testing.T) {
	t.Parallel()
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := unpack(t.Context(), root, answering)
	if err != nil {
		t.Fatal(err)
	}
	packages := []string{"./remediator/quarantine", "./remediator/restart", "./remediator/repair", "./remediator/nodes"}
	const tests = "^TestGolden(Quarantines|Restarts|Visits|Clusters|Stores)$"
	goldens := t.TempDir()
	run := func(dir string, args ...string) {
		test := exec.CommandContext(t.Context(), "go", append(append([]string{"test", "-vet=off", "-count=1", "-run=" + tests}, packages...), args...)...)
		test.Dir = dir
		if out, err := test.CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", dir, err, out)
		}
	}
	run(root, "-args", "-into="+goldens)
	files, err := filepath.Glob(filepath.Join(goldens, "*", "*.json"))
	if err != nil || len(files) < 50 {
		t.Fatalf("%d goldens: %v", len(files), err)
	}
	for _, file := range files {
		name, err := filepath.Rel(goldens, file)
		if err != nil {
			t.Fatal(err)
		}
		if name == observed {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(tree, "remediator", "testdata", earlier, name), added.ReplaceAll(text, []byte("$1")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(tree)
}
