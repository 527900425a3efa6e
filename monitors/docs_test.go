package monitors

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// policyRules is as much of manifests/policy.yaml as the page needs.
type policyRules struct {
	Spec struct {
		Rules map[string]struct {
			Match struct {
				Condition string   `json:"condition"`
				Repair    []string `json:"repair"`
				Message   string   `json:"message"`
			} `json:"match"`
			For         string `json:"for"`
			AlertOnly   bool   `json:"alertOnly"`
			RestartJobs bool   `json:"restartJobs"`
		} `json:"rules"`
	} `json:"spec"`
}

// whatIsDone says in words what the default policy does about a condition.
func (p policyRules) whatIsDone(condition string) string {
	var words []string
	for name, rule := range p.Spec.Rules {
		if rule.Match.Condition != condition {
			continue
		}
		what := "taint"
		switch {
		case rule.AlertOnly:
			what = "alert only"
		case rule.RestartJobs:
			what = "taint, restart jobs"
		}
		if rule.For != "" {
			what += " after " + rule.For
		}
		line := strings.Join(rule.Match.Repair, ", ") + ": " + what
		if rule.Match.Message != "" {
			line += " (rule `" + name + "`)"
		}
		words = append(words, line)
	}
	slices.Sort(words)
	return strings.Join(words, "<br>")
}

func conditionsPage(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var policy policyRules
	if err := yaml.Unmarshal(data, &policy); err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	b.WriteString("# Conditions\n\nWritten by `go test ./monitors -update` from the vocabulary, the monitors and the default policy.\n\n" +
		"| NodeCondition | plugin and arguments | looked at | reason: healthy, problem | default policy |\n|---|---|---|---|---|\n")
	for _, c := range conditions.All {
		config := load(t, c.Type+".json")
		if err := config.ApplyConfiguration(); err != nil {
			t.Fatal(err)
		}
		args := config.Rules[0].Args
		looked := "every " + config.PluginGlobalConfig.InvokeInterval.String()
		if slices.Contains(args, "-hold") {
			looked = "at once"
		}
		fmt.Fprintf(&b, "| [%s](runbooks/%s.md) | `%s` | %s | %s, %s | %s |\n", c.Type, c.Type,
			strings.TrimSpace(c.Plugin+" "+strings.Join(args, " ")), looked, c.Healthy, c.Problem, policy.whatIsDone(c.Type))
	}
	for _, c := range conditions.Verdicts {
		fmt.Fprintf(&b, "| [%s](runbooks/%s.md) | the remediator | preflight reports | %s, %s | %s |\n", c.Type, c.Type,
			c.Healthy, c.Problem, policy.whatIsDone(c.Type))
	}
	return b.String()
}

func TestConditionsPageIsUpToDate(t *testing.T) {
	const page = "../docs/conditions.md"
	want := conditionsPage(t)
	if npdtest.Update() {
		if err := os.WriteFile(page, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(page); err != nil || string(got) != want {
		t.Errorf("%s is not what vocabulary, monitors and policy say (%v); run go test ./monitors -update", page, err)
	}
}

func TestEveryConditionIsDocumented(t *testing.T) {
	readme, err := os.ReadFile("../README.md")
	if err != nil {
		t.Fatal(err)
	}
	page := conditionsPage(t)
	for _, c := range append(slices.Clone(conditions.All), conditions.Verdicts...) {
		if _, err := os.Stat(filepath.Join("../docs/runbooks", c.Type+".md")); err != nil {
			t.Error(err)
		}
		if !strings.Contains(string(readme), "`"+c.Type+"`") {
			t.Errorf("%s has no row in README.md", c.Type)
		}
		if !strings.Contains(page, "["+c.Type+"]") {
			t.Errorf("%s has no row on the page", c.Type)
		}
	}
	var policy policyRules
	data, err := os.ReadFile("../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &policy); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(slices.Clone(conditions.All), conditions.Verdicts...) {
		if policy.whatIsDone(c.Type) == "" {
			t.Errorf("the default policy has no rule for %s", c.Type)
		}
	}
}
