package docs

import (
	"os"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

// The list of alerts has each shipped alert that is not that of a condition of ours, with its severity and its runbook, and no other.
func TestThePageListsEveryAlert(t *testing.T) {
	listed := map[string][]string{} // severity and runbook
	_, list, _ := strings.Cut(read(t, "alerting.md"), "## Alerts\n")
	list, _, _ = strings.Cut(list, "\n## ")
	for line := range strings.Lines(list) {
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		name, page, _ := strings.Cut(strings.Trim(cells[1], " [)"), "](")
		if strings.HasPrefix(name, "Pitcrew") {
			listed[name] = []string{strings.TrimSpace(cells[2]), path.Base(page)}
		}
	}
	var files []string
	for _, pattern := range []string{"../manifests/alerts/*.yaml", "../manifests/alerts/without-remediator/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	shipped := map[string]bool{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rules struct {
			Groups []struct {
				Rules []struct {
					Alert       string
					Labels      map[string]string
					Annotations map[string]string
				}
			}
		}
		if err := yaml.Unmarshal(text, &rules); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, group := range rules.Groups {
			for _, rule := range group.Rules {
				if rule.Alert == "" {
					continue
				}
				shipped[rule.Alert] = true
				if filepath.Base(file) == "conditions.yaml" {
					if !strings.Contains(read(t, "conditions.md"), "["+rule.Alert+"]") {
						t.Errorf("docs/conditions.md lacks %s", rule.Alert)
					}
					continue
				}
				row := listed[rule.Alert]
				severity, runbook := rule.Labels["severity"], path.Base(rule.Annotations["runbook_url"])
				switch {
				case row == nil:
					t.Errorf("docs/alerting.md lacks alert %s", rule.Alert)
				case !strings.Contains(severity, "{{") && row[0] != severity:
					t.Errorf("docs/alerting.md: %s has severity %s, want %s", rule.Alert, row[0], severity)
				case !strings.Contains(runbook, "{{") && row[1] != runbook:
					t.Errorf("docs/alerting.md: %s has the runbook %s, want %s", rule.Alert, row[1], runbook)
				}
			}
		}
	}
	for name := range listed {
		if !shipped[name] {
			t.Errorf("docs/alerting.md lists %s, which is no alert", name)
		}
	}
	if len(listed) < 20 {
		t.Errorf("found only %d alerts on the page", len(listed))
	}
}
