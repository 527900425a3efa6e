package components

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What docs/jobs.md says was measured with these.
var measured = []Component{
	kube(""), JobSet, TrainingOperator, MPIOperator, Trainer, KubeRay, LWS, Kueue, VolcanoControllers,
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

// older are the control planes of `make older`, the oldest first.
func older(t *testing.T, root string) (all []Component) {
	t.Helper()
	dirs, err := filepath.Glob(filepath.Join(root, "e2e", "components", "kubernetes-*"))
	if err != nil || len(dirs) == 0 {
		t.Fatalf("older versions of Kubernetes in %q: %v", dirs, err)
	}
	for _, dir := range dirs {
		_, minor, _ := strings.Cut(filepath.Base(dir), "-")
		all = append(all, kube(minor))
	}
	return all
}

// The chart refuses what no test runs on, every version has its night, and Renovate leaves each in its minor version.
func TestOlderVersionsOfKubernetes(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string][]string{}
	var minors []string
	for _, c := range older(t, root) {
		version, err := c.version(t.Context(), root)
		if err != nil {
			t.Fatal(err)
		}
		_, minor, _ := strings.Cut(c.Dir, "-")
		if !strings.HasPrefix(version, "v"+minor+".") {
			t.Errorf("e2e/components/%s pins %s", c.Dir, version)
		}
		minors = append(minors, strconv.Quote(minor))
		escaped := strings.ReplaceAll(minor, ".", `\\.`)
		wanted["renovate.json"] = append(wanted["renovate.json"], fmt.Sprintf(`"matchFileNames": ["e2e/components/%s/go.mod"],
      "matchPackageNames": ["k8s.io/**"],
      "allowedVersions": "/^(v%s\\.|v0%s\\.)/"`, c.Dir, escaped, strings.TrimPrefix(escaped, "1")))
		wanted["docs/upgrade.md"] = append(wanted["docs/upgrade.md"], " "+strings.TrimPrefix(version, "v"))
	}
	wanted["manifests/chart/Chart.yaml"] = []string{fmt.Sprintf(`kubeVersion: ">=%s.0-0"`, strings.Trim(minors[0], `"`))}
	wanted[".github/workflows/nightly.yml"] = []string{fmt.Sprintf("version: [%s]", strings.Join(minors, ", "))}
	for file, texts := range wanted {
		is, err := os.ReadFile(filepath.Join(root, file))
		if err != nil {
			t.Fatal(err)
		}
		for _, text := range texts {
			if !strings.Contains(string(is), text) {
				t.Errorf("%s lacks %s", file, text)
			}
		}
	}
}

func TestThePageOfDevicesNamesThePinnedVersion(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(root, "docs", "devices.md"))
	if err != nil {
		t.Fatal(err)
	}
	version, err := DRAExampleDriver.version(t.Context(), root)
	if err != nil {
		t.Fatal(err)
	}
	if want := "**Tested** with dra-example-driver " + strings.TrimPrefix(version, "v"); !strings.Contains(string(text), want) {
		t.Errorf("docs/devices.md lacks %q", want)
	}
}

// A package is compiled once for the control plane, KWOK, JobSet, the demo and the remediator if all of them need it at the same
// version. Most of the time that `make demo` needs on a fresh machine depends on that.
func TestTheDemoAndTheControlPlaneShareTheirLibraries(t *testing.T) {
	root, err := Root()
	if err != nil {
		t.Fatal(err)
	}
	ours := modules(t, root, "./e2e/demo", "./remediator")
	theirs := modules(t, Kube.dir(root), Kube.Package, KWOK.Package, JobSet.Package)
	for module, version := range ours {
		if other, shared := theirs[module]; shared && other != version {
			t.Errorf("%s is %s in go.mod and %s in e2e/components/%s/go.mod: go get the later one in both", module, version, other, Kube.Dir)
		}
	}
	if ours["k8s.io/client-go"] == "" || theirs["k8s.io/client-go"] == "" {
		t.Error("found no k8s.io/client-go")
	}
}

// modules are the versions of the modules that programs are made from, by path.
func modules(t *testing.T, dir string, programs ...string) map[string]string {
	t.Helper()
	out, err := run(t.Context(), dir, append([]string{"list", "-deps", "-f", "{{with .Module}}{{.Path}} {{.Version}}{{end}}"}, programs...)...)
	if err != nil {
		t.Fatal(err)
	}
	versions := map[string]string{}
	for line := range strings.Lines(string(out)) {
		if path, version, found := strings.Cut(strings.TrimSpace(line), " "); found {
			versions[path] = version
		}
	}
	return versions
}
