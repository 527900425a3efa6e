// Package docs checks the pages of the repository against the repository: the targets of links exist, and so do the flags
// and the functions that the pages name.
package docs

import (
	"encoding/xml"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// pages are the Markdown files of the repository, from its root.
func pages(t *testing.T) (root string, files []string) {
	t.Helper()
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), "git", "-C", root, "ls-files", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	return root, strings.Fields(string(out))
}

var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

func TestEveryLinkHasATarget(t *testing.T) {
	root, files := pages(t)
	for _, file := range files {
		text := fenced.ReplaceAllString(read(t, filepath.Join(root, file)), "")
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			path, anchor, _ := strings.Cut(m[1], "#")
			target := filepath.Join(root, filepath.Dir(file), path)
			if path == "" {
				target = filepath.Join(root, file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s: %v", file, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(read(t, target)), anchor) {
				t.Errorf("%s links to %s, which has no such heading", file, m[1])
			}
		}
	}
}

// TestTheValuesOfTheInstallPagesRender gives each YAML block of the pages to the chart as its values.
func TestTheValuesOfTheInstallPagesRender(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.Build(t.Context(), os.Stderr, root, components.Helm); err != nil {
		t.Fatal(err)
	}
	blocks := values.FindAllStringSubmatch(read(t, "install.md")+read(t, "platforms.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("found no values")
	}
	for _, block := range blocks {
		file := filepath.Join(t.TempDir(), "values.yaml")
		if err := os.WriteFile(file, []byte(block[1]), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.CommandContext(t.Context(), components.Helm.Path(root), "template", "pitcrew", filepath.Join(root, "manifests/chart"),
			"--namespace", "pitcrew", "--values", file).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "kind: DaemonSet") {
			t.Errorf("%s\n%v\n%.2000s", block[1], err, out)
		}
	}
}

// TestTheMenuOfTheSiteHasEveryPage compares the menu with the pages of this folder. The build of the site does so, too, and takes minutes.
func TestTheMenuOfTheSiteHasEveryPage(t *testing.T) {
	var site struct {
		Params struct {
			Menu []struct{ Pages []string }
		}
	}
	if err := yaml.Unmarshal([]byte(read(t, "../site/hugo.yaml")), &site); err != nil {
		t.Fatal(err)
	}
	want, got := []string{"adr", "examples", "runbooks"}, []string(nil)
	files, err := filepath.Glob("*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		want = append(want, strings.TrimSuffix(file, ".md"))
	}
	for _, group := range site.Params.Menu {
		got = append(got, group.Pages...)
	}
	slices.Sort(want)
	slices.Sort(got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("pages (-) and the menu of site/hugo.yaml (+) differ: %s", diff)
	}
}

func TestThePicturesAreXML(t *testing.T) {
	pictures, err := filepath.Glob("images/*.svg")
	if err != nil || len(pictures) == 0 {
		t.Fatalf("no pictures: %v", err)
	}
	for _, file := range pictures {
		var picture struct {
			Title string `xml:"title"`
			Desc  string `xml:"desc"`
		}
		if err := xml.Unmarshal([]byte(read(t, file)), &picture); err != nil || picture.Title == "" || picture.Desc == "" {
			t.Errorf("%s: want XML with a title and a desc for those who cannot see it: %+v, %v", file, picture, err)
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var (
	values    = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	fenced    = regexp.MustCompile("(?ms)^```.*?^```$")
	heading   = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noAnchor  = regexp.MustCompile("[^a-z0-9 _-]")
	codeSpan  = regexp.MustCompile("`([^`\n]+)`")
	flagInUse = regexp.MustCompile(`(?:^| )--?([a-z][a-z0-9-]*)`)
)

// maxSteps is how many rows the table of the architecture page may have from the kernel record to the job that runs again.
const maxSteps = 15

// step is a row of that table: what happens, the file and the function.
var step = regexp.MustCompile("(?m)^\\| ([^|]+) \\| `([^`|]+\\.go)` \\| `(\\w+)` \\|$")

func TestTheStepsOfOneFaultAreInTheCode(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	_, section, _ := strings.Cut(read(t, "architecture.md"), "\n## Follow one fault\n")
	section, _, _ = strings.Cut(section, "\n## ")
	rows := strings.Count(section, "\n|") - 2 // the head and the line below it
	steps := step.FindAllStringSubmatch(section, -1)
	if len(steps) != rows || rows == 0 || rows > maxSteps {
		t.Errorf("found %d rows and %d steps with a file and a function, want as many and at most %d", rows, len(steps), maxSteps)
	}
	for _, m := range steps {
		text, err := os.ReadFile(filepath.Join(root, m[2]))
		if err != nil {
			t.Errorf("%s: %v", m[1], err)
		} else if !regexp.MustCompile(`(?m)^func (\([^)]*\) )?` + m[3] + `[\[(]`).Match(text) {
			t.Errorf("%s: %s has no function %s", m[1], m[2], m[3])
		}
	}
}

// anchors are what GitHub makes of the headings.
func anchors(page string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// ofTheProgram matches the arguments of the program repair.
var ofTheProgram = regexp.MustCompile(`^(check|reset-gpu|reboot)\b`)

// TestEveryFlagExists builds the programs and checks that each has the flags that a page gives it in `program -flag ...`.
func TestEveryFlagExists(t *testing.T) {
	root, files := pages(t)
	plugins, err := filepath.Glob(filepath.Join(root, "plugins", "*"))
	if err != nil {
		t.Fatal(err)
	}
	packages := []string{"./remediator", "./preflight", "./repair"}
	for _, plugin := range plugins {
		packages = append(packages, "./plugins/"+filepath.Base(plugin))
	}
	if err := components.BuildOurs(t.Context(), root, packages...); err != nil {
		t.Fatal(err)
	}
	usage := map[string]string{}
	for _, p := range packages {
		program := filepath.Base(p)
		out, _ := exec.CommandContext(t.Context(), filepath.Join(root, "bin", program), "-h").CombinedOutput() // a program that is no plugin exits 2
		usage[program] = string(out)
	}
	for _, command := range []string{"check", "reset-gpu", "reboot"} {
		out, err := exec.CommandContext(t.Context(), filepath.Join(root, "bin", "repair"), command, "-h").Output()
		if err != nil {
			t.Fatal(err)
		}
		usage["repair"] += string(out)
	}
	checked := 0
	for _, file := range files {
		if strings.HasPrefix(file, "docs/adr/") {
			continue // history
		}
		for _, m := range codeSpan.FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
			program, args, _ := strings.Cut(m[1], " ")
			known, ours := usage[filepath.Base(program)]
			// The command of the kubectl plugin has the same name, and other flags.
			if !ours || program == "repair" && !ofTheProgram.MatchString(args) {
				continue
			}
			for _, flag := range flagInUse.FindAllStringSubmatch(args, -1) {
				checked++
				if flag[1] != "h" && !regexp.MustCompile(`(?m)^\s+--?`+flag[1]+`\b`).MatchString(known) {
					t.Errorf("%s: `%s`: %s has no flag -%s", file, m[1], program, flag[1])
				}
			}
		}
	}
	if checked == 0 {
		t.Error("found no flag on any page")
	}
}
