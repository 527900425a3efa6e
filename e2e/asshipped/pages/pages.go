// Package pages reads what the pages of the documentation show, so that tests do what a reader does.
package pages

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Shown is what a page shows: YAML in a fence, or a command.
type Shown struct {
	Line int
	Text string
}

var (
	// fence is a fenced block of YAML, command one line of commands with the lines that continue it, and inline a command in a sentence,
	// also one of a program of ours.
	fence   = regexp.MustCompile("(?ms)^```yaml\n(.*?)^```$")
	command = regexp.MustCompile(`(?m)^    ((?:kubectl|helm) (?:[^\n]*\\\n)*[^\n]*)$`)
	inline  = regexp.MustCompile("`((?:kubectl|helm|repair|remediator|preflight|dcgm) [^`]*)`")
	// unread is what none of these finds: a fence of another language or within a list, and YAML that is only indented.
	unread  = regexp.MustCompile("(?m)^(?: *```[^y\\n].*| +```.*|    [a-zA-Z]+:(?: .*)?)$")
	comment = regexp.MustCompile(`\s+# .*$`)
)

// Loop are the pages on sweeps, repairs, validation and first checks.
var Loop = []string{"repair.md", "repair-steps.md", "sweeps.md", "templates.md"}

// Of returns the YAML that a page shows, and its commands of kubectl and helm, in their order.
func Of(t *testing.T, root, page string) (all []Shown) {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, "docs", page))
	if err != nil {
		t.Fatal(err)
	}
	text := string(data)
	if line := unread.FindString(fence.ReplaceAllString(text, "")); line != "" {
		t.Fatalf("docs/%s shows %q in a form that no test reads", page, line)
	}
	for i := 0; i < len(text); {
		next, end, what := len(text), len(text), ""
		for _, pattern := range []*regexp.Regexp{fence, command, inline} {
			if at := pattern.FindStringSubmatchIndex(text[i:]); at != nil && i+at[0] < next {
				next, end, what = i+at[0], i+at[1], text[i+at[2]:i+at[3]]
			}
		}
		if what != "" {
			if !strings.Contains(what, "\n") {
				what = comment.ReplaceAllString(what, "")
			}
			all = append(all, Shown{1 + strings.Count(text[:next], "\n"), what})
		}
		i = end
	}
	if len(all) == 0 {
		t.Fatalf("docs/%s shows nothing", page)
	}
	return all
}

// Values are the values that pages show, each block over those before it, and then others. The spec of a policy is below policy, as in
// the chart.
func Values(t *testing.T, root string, names []string, others ...string) string {
	t.Helper()
	values := map[string]any{}
	add := func(text string) {
		var block map[string]any
		if err := yaml.Unmarshal([]byte(text), &block); err != nil {
			return // of several documents
		}
		if spec, ok := block["spec"].(map[string]any); ok && spec["rules"] != nil && block["kind"] == nil {
			block = map[string]any{"policy": spec}
		}
		if block["policy"] != nil || block["repair"] != nil {
			merge(values, block)
		}
	}
	for _, page := range names {
		for _, s := range Of(t, root, page) {
			add(s.Text)
		}
	}
	for _, text := range others {
		add(text)
	}
	text, err := yaml.Marshal(values)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func merge(into, from map[string]any) {
	for key, value := range from {
		below, isMap := value.(map[string]any)
		if present, ok := into[key].(map[string]any); ok && isMap {
			merge(present, below)
			continue
		}
		into[key] = value
	}
}
