// Package alerts_test holds the alerts against the real promtool, the runbooks and the metrics that we export.
package alerts_test

import (
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

const (
	promtool = "../../bin/debian/usr/bin/promtool"
	amtool   = "../../bin/debian/usr/bin/amtool"
	runbooks = "https://github.com/pitcrew-dev/pitcrew/blob/main/docs/runbooks/"
)

type rule struct {
	Alert       string            `json:"alert"`
	Expr        string            `json:"expr"`
	For         string            `json:"for"`
	Labels      map[string]string `json:"labels"`
	Annotations map[string]string `json:"annotations"`
}

type group struct {
	Name  string `json:"name"`
	Rules []rule `json:"rules"`
}

// ruleFiles are the alerts by the file they are in.
func ruleFiles(t *testing.T) map[string][]rule {
	t.Helper()
	files := map[string][]rule{}
	for _, pattern := range []string{"*.yaml", "*/*.yaml"} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var file struct {
				Groups []group `json:"groups"`
			}
			if err := yaml.UnmarshalStrict(text, &file); err != nil {
				t.Fatalf("%s: %v", path, err)
			}
			for _, g := range file.Groups {
				files[path] = append(files[path], g.Rules...)
			}
		}
	}
	if len(files) == 0 {
		t.Fatal("no rule files")
	}
	return files
}

// vocabulary are the condition types of ours that alerts list.
func vocabulary(lists ...[]conditions.Condition) []string {
	var types []string
	for _, list := range lists {
		for _, c := range list {
			types = append(types, c.Type)
		}
	}
	slices.Sort(types)
	return types
}

// outermost finds the labels that tell the alarms of one alert apart.
var outermost = regexp.MustCompile(`\bby \(([^)]*)\)`)

func TestEveryAlertSaysWhatAndWhereToLook(t *testing.T) {
	for path, rules := range ruleFiles(t) {
		for _, r := range rules {
			if s := r.Labels["severity"]; !regexp.MustCompile(`^(critical|warning|info|\{\{ if .*\}\}warning\{\{ else \}\}critical\{\{ end \}\})$`).MatchString(s) {
				t.Errorf("%s: %s has severity %q", path, r.Alert, s)
			}
			said := r.Annotations["summary"] + r.Annotations["description"]
			if r.Annotations["summary"] == "" || r.Annotations["description"] == "" {
				t.Errorf("%s: %s has no summary or no description: %q", path, r.Alert, r.Annotations)
			}
			if by := outermost.FindStringSubmatch(r.Expr); by != nil {
				for label := range strings.SplitSeq(by[1], ", ") {
					if !strings.Contains(said, "{{ $labels."+label+" }}") {
						t.Errorf("%s: %s does not say which %s: %q", path, r.Alert, label, said)
					}
				}
			}
			page, ours := strings.CutPrefix(r.Annotations["runbook_url"], runbooks)
			if !ours {
				t.Errorf("%s: %s has runbook_url %q", path, r.Alert, r.Annotations["runbook_url"])
			}
			pages := []string{page}
			if strings.Contains(page, "{{ $labels.condition }}") {
				pages = nil
				for _, c := range vocabulary(conditions.All, conditions.Verdicts) {
					pages = append(pages, strings.ReplaceAll(page, "{{ $labels.condition }}", c))
				}
			}
			for _, page := range pages {
				if _, err := os.Stat("../../docs/runbooks/" + page); err != nil {
					t.Errorf("%s: %s: %v", path, r.Alert, err)
				}
			}
		}
	}
}

func TestEveryRunbookAndEveryConditionHasAnAlert(t *testing.T) {
	linked, named := map[string]bool{}, map[string]bool{}
	for _, rules := range ruleFiles(t) {
		for _, r := range rules {
			linked[strings.TrimPrefix(r.Annotations["runbook_url"], runbooks)] = true
			named[r.Alert] = true
		}
	}
	for _, c := range vocabulary(conditions.All, conditions.Verdicts) {
		if !named[c] {
			t.Errorf("condition %s has no alert", c)
		}
	}
	pages, err := filepath.Glob("../../docs/runbooks/*.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range pages {
		if !linked[filepath.Base(page)] {
			t.Errorf("no alert links to docs/runbooks/%s", filepath.Base(page))
		}
	}
}

const alertsOfConditions = `# Written by "make generate" from the vocabulary. One alert per condition: a node has it, and needs the repair in label
# "repair". What Pitcrew does about it is the policy's business; "kubectl pitcrew describe NODE" says that. The three
# minutes bridge a change of the remediator's leader.
groups:
- name: pitcrew-conditions
  rules:
`

const alertOfCondition = `  - alert: CONDITION
    expr: max by (node, condition, repair) (last_over_time(pitcrew_node_problem_timestamp_seconds{condition="CONDITION",repair!="",status!="Stale"}[3m]))
    for: 1m
    labels:
      severity: '{{ if eq $labels.repair "Inspect" }}warning{{ else }}critical{{ end }}'
    annotations:
      summary: 'Node {{ $labels.node }} needs {{ $labels.repair }}: SAYS'
      description: 'Node {{ $labels.node }} has condition {{ $labels.condition }} since {{ $value | humanizeTimestamp }} and needs {{ $labels.repair }}. ` + "`kubectl pitcrew describe {{ $labels.node }}`" + ` shows what was found and what happens next.'
      runbook_url: RUNBOOKSCONDITION.md
`

// TestGeneratedAlerts writes, with -update, the alerts and the lists that follow from the vocabulary.
func TestGeneratedAlerts(t *testing.T) {
	text := alertsOfConditions
	for _, c := range slices.Concat(conditions.All, conditions.Verdicts) {
		text += strings.NewReplacer("CONDITION", c.Type, "SAYS", c.Summary, "RUNBOOKS", runbooks).Replace(alertOfCondition)
	}
	generated(t, "conditions.yaml", text)
	for path := range ruleFiles(t) {
		if path == "conditions.yaml" {
			continue
		}
		old, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		generated(t, path, listed.ReplaceAllStringFunc(string(old), func(found string) string {
			m := listed.FindStringSubmatch(found)
			types := vocabulary(conditions.All, conditions.Verdicts)
			if m[1] == "type" { // of a monitor of NPD, which the verdicts do not have
				types = vocabulary(conditions.All)
			}
			return m[1] + m[2] + `"` + strings.Join(types, "|") + `"`
		}))
	}
}

// listed finds a list of conditions. What is not ours has an alert of its own: a condition that a list forgets would have
// none, or two.
var listed = regexp.MustCompile(`(condition|type)(=~|!~)"[^"]*"`)

func generated(t *testing.T, path, want string) {
	t.Helper()
	if npdtest.Update() {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); err != nil || string(got) != want {
		t.Errorf("%s is not what the vocabulary says (%v); run make generate", path, err)
	}
}

// exported are the metrics of the remediator, from its source.
func exported(t *testing.T) []string {
	t.Helper()
	var names []string
	files, err := filepath.Glob("../../remediator/*/*.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`"(pitcrew_\w+)"`).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
	}
	slices.Sort(names)
	return names
}

func TestEveryMetricOfOursIsExported(t *testing.T) {
	names := exported(t)
	for path, rules := range ruleFiles(t) {
		for _, r := range rules {
			for _, metric := range regexp.MustCompile(`\bpitcrew_\w+`).FindAllString(r.Expr, -1) {
				if !slices.Contains(names, metric) {
					t.Errorf("%s: %s asks for %s, which the remediator does not export", path, r.Alert, metric)
				}
			}
		}
	}
}

// An alert lists the reasons that it is about. One that was renamed in the source would leave the list without a sound.
func TestEveryListedReasonIsInTheSource(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir("../../remediator", func(path string, _ os.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	found := 0
	for path, rules := range ruleFiles(t) {
		for _, r := range rules {
			for _, m := range regexp.MustCompile(`(?:result|reason)=~?"([^"]*)"`).FindAllStringSubmatch(r.Expr, -1) {
				for reason := range strings.SplitSeq(m[1], "|") {
					found++
					if !strings.Contains(source.String(), `"`+reason+`"`) {
						t.Errorf("%s: %s asks for %q, which no source of the remediator says", path, r.Alert, reason)
					}
				}
			}
			if m := regexp.MustCompile(`(?:result|reason)!~"([^"]*)"`).FindStringSubmatch(r.Expr); m != nil {
				t.Errorf("%s: %s excludes %s: what is new would page; name what is meant instead", path, r.Alert, m[1])
			}
		}
	}
	if found == 0 {
		t.Error("no alert lists reasons")
	}
}

const page = "../../docs/alerting.md"

func TestThePageListsTheMetrics(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var listed []string
	for _, m := range regexp.MustCompile("`(pitcrew_\\w+)`").FindAllStringSubmatch(string(text), -1) {
		listed = append(listed, m[1])
	}
	slices.Sort(listed)
	if diff := cmp.Diff(exported(t), listed); diff != "" {
		t.Errorf("%s: %s", page, diff)
	}
}

// The routes of the page are for Alertmanager, and speak of alerts and labels that there are.
func TestTheRoutesOfThePageAreValid(t *testing.T) {
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, block, found := strings.Cut(string(text), "```yaml\n")
	config, _, closed := strings.Cut(block, "```")
	if !found || !closed {
		t.Fatalf("%s has no YAML", page)
	}
	file := filepath.Join(t.TempDir(), "alertmanager.yml")
	if err := os.WriteFile(file, []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), amtool, "check-config", file).CombinedOutput(); err != nil {
		t.Errorf("%v; make bin/debian unpacks amtool\n%s", err, out)
	}
	named := map[string]bool{}
	for _, rules := range ruleFiles(t) {
		for _, r := range rules {
			named[r.Alert] = true
		}
	}
	for _, m := range regexp.MustCompile(`alertname = (\w+)`).FindAllStringSubmatch(config, -1) {
		if !named[m[1]] {
			t.Errorf("%s routes %s, which is no alert", page, m[1])
		}
	}
}

// The forms of promtool's unit tests, see prometheus.io/docs, "Unit testing for rules".
type (
	suite struct {
		RuleFiles          []string `json:"rule_files"`
		EvaluationInterval string   `json:"evaluation_interval"`
		Tests              []test   `json:"tests"`
	}
	test struct {
		Name     string  `json:"name"`
		Interval string  `json:"interval"`
		Input    []input `json:"input_series"`
		Alerts   []check `json:"alert_rule_test"`
	}
	input struct {
		Series string `json:"series"`
		Values string `json:"values"`
	}
	check struct {
		EvalTime string  `json:"eval_time"`
		Alert    string  `json:"alertname"`
		Want     []alarm `json:"exp_alerts"`
	}
	alarm struct {
		Labels      map[string]string `json:"exp_labels"`
		Annotations map[string]string `json:"exp_annotations"`
	}
)

var (
	valueOf = regexp.MustCompile(`\{\{ \$value[^}]*\}\}`)
	labelOf = regexp.MustCompile(`\{\{ \$labels\.(\w+) \}\}`)
)

// fires is the alarm that a rule must raise.
func (r rule) fires(t *testing.T, f firing) alarm {
	t.Helper()
	a := alarm{Labels: map[string]string{"severity": r.Labels["severity"]}, Annotations: map[string]string{}}
	for pair := range strings.FieldsSeq(f.labels) {
		name, value, _ := strings.Cut(pair, "=")
		a.Labels[name] = value
	}
	for name, text := range r.Annotations {
		text = valueOf.ReplaceAllString(text, f.value)
		a.Annotations[name] = labelOf.ReplaceAllStringFunc(text, func(ref string) string {
			label := labelOf.FindStringSubmatch(ref)[1]
			if a.Labels[label] == "" {
				t.Errorf("%s speaks of label %s, which it does not have: %v", r.Alert, label, a.Labels)
			}
			return a.Labels[label]
		})
	}
	return a
}

func TestAlertsFireWhenTheyShould(t *testing.T) {
	tried := map[string]map[bool]bool{} // alert -> fired
	for path, rules := range ruleFiles(t) {
		absolute, err := filepath.Abs(path)
		if err != nil {
			t.Fatal(err)
		}
		s := suite{RuleFiles: []string{absolute}, EvaluationInterval: "1m"}
		for _, r := range rules {
			tried[path+" "+r.Alert] = map[bool]bool{}
			for _, c := range append(slices.Clone(cases[path]), casesOfConditions(path)...) {
				if c.alert != r.Alert {
					continue
				}
				tried[path+" "+r.Alert][len(c.want) > 0] = true
				made := test{Name: c.alert + " " + c.name, Interval: "1m", Alerts: []check{{EvalTime: c.at, Alert: c.alert, Want: []alarm{}}}}
				for _, series := range slices.Sorted(maps.Keys(c.series)) {
					made.Input = append(made.Input, input{series, c.series[series]})
				}
				for _, f := range c.want {
					made.Alerts[0].Want = append(made.Alerts[0].Want, r.fires(t, f))
				}
				s.Tests = append(s.Tests, made)
			}
		}
		text, err := yaml.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(t.TempDir(), "test.yaml")
		if err := os.WriteFile(file, text, 0o644); err != nil {
			t.Fatal(err)
		}
		if out, err := exec.CommandContext(t.Context(), promtool, "test", "rules", file).CombinedOutput(); err != nil {
			t.Errorf("%s: %v; make bin/debian unpacks promtool\n%s", path, err, out)
		}
	}
	for alert, with := range tried {
		if !with[true] || !with[false] {
			t.Errorf("%s: no case in which it fires, or none in which it does not", alert)
		}
	}
}
