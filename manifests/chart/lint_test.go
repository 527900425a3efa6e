package chart_test

import (
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// Helm's own lint accepts the chart with the values of each example, also what it only recommends. values.schema.json is part of it.
func TestHelmLint(t *testing.T) {
	examples, err := filepath.Glob("../../docs/examples/*/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	examples = slices.DeleteFunc(examples, func(file string) bool {
		return filepath.Base(filepath.Dir(file)) != "values" && filepath.Base(file) != "values.yaml"
	})
	if len(examples) == 0 {
		t.Fatal("no values")
	}
	for _, file := range append(examples, "values.yaml") {
		if out, err := helm(t.Context(), "lint", "--strict", ".", "--values", file); err != nil || strings.Contains(out, "[") {
			t.Errorf("%s: %v\n%s", file, err, out)
		}
	}
	out, err := helm(t.Context(), "lint", ".", "--set", "pool[0].name=gpu")
	if err == nil || !strings.Contains(out, "'pool' not allowed") {
		t.Errorf("a value that does not exist: %v\n%s", err, out)
	}
}

// What Helm prints after an installation says which rules act.
func TestNotesSayWhatActs(t *testing.T) {
	for set, want := range map[string]string{
		"policy.mode=observe":               "The remediator only observes until you upgrade with",
		"policy.mode=enforce":               "The remediator acts.\n",
		"policy.rules.gpu-xid.mode=enforce": "The remediator acts by gpu-xid. Other rules only observe until",
		"policy.rules.gpu-xid.mode=observe": "The remediator only observes until you upgrade with",
		"remediator.policyConfigMap=ours":   "The remediator does what the policy in ConfigMap ours says.",
	} {
		out, err := helm(t.Context(), "install", "pitcrew", ".", "--namespace", "pitcrew", "--dry-run=client", "--set", set)
		if err != nil || !strings.Contains(out, want) {
			_, notes, _ := strings.Cut(out, "NOTES:")
			t.Errorf("with %s: %v, not %q but %s", set, err, want, notes)
		}
	}
}

// Artifact Hub and `helm search` show these. A file of this repository that Chart.yaml links to exists.
func TestChartMetadata(t *testing.T) {
	text, err := os.ReadFile("Chart.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var chart struct {
		Icon        string
		Sources     []string
		Keywords    []string
		Maintainers []struct{ Name, URL string }
		Annotations map[string]string
	}
	if err := yaml.Unmarshal(text, &chart); err != nil {
		t.Fatal(err)
	}
	if len(chart.Sources) == 0 || len(chart.Keywords) < 5 || len(chart.Maintainers) == 0 {
		t.Errorf("sources, keywords or maintainers are missing: %+v", chart)
	}
	for _, key := range []string{"category", "license", "links", "prerelease"} {
		if chart.Annotations["artifacthub.io/"+key] == "" {
			t.Errorf("no annotation artifacthub.io/%s", key)
		}
	}
	var links []struct{ Name, URL string }
	if err := yaml.Unmarshal([]byte(chart.Annotations["artifacthub.io/links"]), &links); err != nil || len(links) == 0 {
		t.Error(links, err)
	}
	urls := []string{chart.Icon}
	for _, m := range chart.Maintainers {
		urls = append(urls, m.URL)
	}
	for _, l := range links {
		urls = append(urls, l.URL)
	}
	for _, text := range urls {
		u, err := url.Parse(text)
		if err != nil || u.Scheme != "https" {
			t.Errorf("%q: %v", text, err)
			continue
		}
		_, file, found := strings.Cut(u.Path, "/main/")
		if _, err := os.Stat(filepath.Join("../..", file)); !found || err != nil {
			t.Errorf("%s is no file of this repository: %v", text, err)
		}
	}
}
