// Package docs checks the pages of the repository against the repository: the targets of links exist, and so do the flags
// that the pages name.
package docs

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

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

func TestEveryLinkLeadsSomewhere(t *testing.T) {
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

// TestTheValuesOfTheInstallPageRender gives each YAML block of the page to the chart as its values.
func TestTheValuesOfTheInstallPageRender(t *testing.T) {
	root, err := components.Root()
	if err != nil {
		t.Fatal(err)
	}
	if err := components.Build(t.Context(), os.Stderr, root, components.Helm); err != nil {
		t.Fatal(err)
	}
	blocks := values.FindAllStringSubmatch(read(t, "install.md"), -1)
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

// anchors are what GitHub makes of the headings.
func anchors(page string) (all []string) {
	for _, m := range heading.FindAllStringSubmatch(page, -1) {
		all = append(all, strings.ReplaceAll(noAnchor.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	return all
}

// TestEveryFlagExists builds the programs and asks each for the flags that a page gives it in `program -flag ...`.
func TestEveryFlagExists(t *testing.T) {
	root, files := pages(t)
	plugins, err := filepath.Glob(filepath.Join(root, "plugins", "*"))
	if err != nil {
		t.Fatal(err)
	}
	packages := []string{"./remediator", "./preflight"}
	for _, plugin := range plugins {
		packages = append(packages, "./plugins/"+filepath.Base(plugin))
	}
	if err := components.BuildOurs(t.Context(), root, packages...); err != nil {
		t.Fatal(err)
	}
	usage := map[string]string{}
	for _, p := range packages {
		program := filepath.Base(p)
		out, _ := exec.CommandContext(t.Context(), filepath.Join(root, "bin", program), "-h").CombinedOutput() // exits 2
		usage[program] = string(out)
	}
	checked := 0
	for _, file := range files {
		if strings.HasPrefix(file, "docs/adr/") {
			continue // history
		}
		for _, m := range codeSpan.FindAllStringSubmatch(read(t, filepath.Join(root, file)), -1) {
			program, args, _ := strings.Cut(m[1], " ")
			known, ours := usage[filepath.Base(program)]
			if !ours {
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
