package policy

import (
	"cmp"
	"fmt"
	"reflect"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
)

// lines are the lines of an error of Parse.
func lines(t *testing.T, text string) []string {
	t.Helper()
	_, err := Parse([]byte(text))
	if err == nil {
		t.Fatal("no error")
	}
	return strings.Split(err.Error(), "\n")
}

func TestErrorsAreInTheOrderOfTheirLinesAndEachOnce(t *testing.T) {
	got := lines(t, head+`spec:
  rules:
    z:
      match: {condition: GPUXidError, repair: Reboot}
      unknownAfter: soon
      flaps: {max: 3, window: [1h]}
    a: none
  webhooks:
    pager: {url: "https://secret@", secretFile: x, timeout: 2m}
  restart:
    maxPerDay: 101
    maxPerDay: 3
  budget: {maxNodes: 1, maxPercent: 200}
`)
	want := []string{
		"line 6: cannot unmarshal !!str `Reboot` into a list (spec.rules[z].match.repair)",
		`line 7: spec.rules[z].unknownAfter: Invalid value: "soon": must be a duration like 30s, 10m or 1h`,
		"line 8: cannot unmarshal !!seq into a string (spec.rules[z].flaps.window)",
		"line 9: cannot unmarshal !!str `none` into a mapping (spec.rules[a])",
		`line 11: spec.webhooks[pager].timeout: Invalid value: "2m0s": must be at most 1m`,
		`line 11: spec.webhooks[pager].url: Invalid value: "(not shown)": must be an https URL with a host`,
		`line 13: spec.restart.maxPerDay: Invalid value: 101: must be at most 100: the record of a job keeps no more restarts`,
		`line 14: mapping key "maxPerDay" already defined at line 13`,
		`line 15: spec.budget.maxPercent: Invalid value: 200: must be at most 100`,
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestAPartWithoutValuesIsStillChecked(t *testing.T) {
	for text, want := range map[string]string{
		"flaps: {most: }":            "field most not found in spec.rules[gpu].flaps",
		"flaps: {'-': }":             "field - not found",
		"budget: {scope: , scope: }": `mapping key "scope" already defined`,
		"match: {repair: []}":        "spec.rules[gpu].match.repair: Required value",
	} {
		if _, err := Parse([]byte(oneRule(text))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// Helm and kustomize write empty values for what is not set.
func TestAnEmptyValueIsTheDefault(t *testing.T) {
	p := parse(t, head+`spec:
  mode: ""
  budget: {maxNodes: 1, window: "", scope: }
  breaker:
  correlated: null
  restart: {}
  jobKinds:
  handOff: {keepNode: , taints: []}
  rules:
    gpu:
      match: {condition: GPUXidError, status: "", repair: [Reboot], reason: "", nodeSelector: {}}
      clearAfter: ""
      unknownAfter:
      taint: {}
      budget: {}
      flaps: {}
    report:
      match: {condition: GPUXidError, repair: [Inspect]}
      alertOnly: true
      taint: {key: "", value: }
      budget: {}
      flaps: {max: , window: ""}
      mode: ""
      restartJobs: false
`)
	r, _ := p.Rule("gpu")
	if !p.Observe || p.Breaker != nil || p.Correlated != nil || r.ClearAfter != 10*time.Minute || r.UnknownAfter != DefaultUnknownAfter ||
		len(r.Status) != 1 || !r.IsFault("True") || r.Reason != nil || !r.Nodes.Empty() || r.Budget != Unlimited || r.Flaps != (Flaps{}) || len(r.HandOff.Annotations) != len(KeepNode) {
		t.Errorf("%+v %+v", p, r)
	}
}

func TestAnchorsAndMergesAreYAML(t *testing.T) {
	p := parse(t, head+`metadata:
  common: &common {for: 1m, clearAfter: 5m, taint: &taint {key: example.com/faulty}}
spec:
  budget: {maxNodes: 1}
  rules:
    a:
      <<: *common
      match: &match {condition: GPUXidError, repair: [Reboot]}
      clearAfter: 2m
    b:
      <<: [{for: 3m}, *common]
      match: *match
      taint: *taint
`)
	a, b := p.Rules[0], p.Rules[1]
	if a.For != time.Minute || a.ClearAfter != 2*time.Minute || b.For != 3*time.Minute || b.ClearAfter != 5*time.Minute ||
		a.Taint.Key != "example.com/faulty" || b.Taint != a.Taint || b.Condition != a.Condition {
		t.Errorf("%+v\n%+v", a, b)
	}
	for name, text := range map[string]string{
		"a merge of itself": head + "spec: &spec {<<: *spec, budget: {maxNodes: 1}, rulez: {}}",
		"a value in itself": head + "metadata: &m {m: *m}\nspec: {budget: {maxNodes: 1}}",
		"a merge of text":   head + "spec: {<<: text, budget: {maxNodes: 1}}",
		"a key of keys":     head + "spec: {? {a: b} : c, budget: {maxNodes: 1}}",
	} {
		if _, err := Parse([]byte(text)); err == nil || !strings.HasPrefix(err.Error(), "line 3: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestAliasesCannotMakeAFileLarge(t *testing.T) {
	const many = 2000
	var rules strings.Builder
	for i := range many {
		fmt.Fprintf(&rules, "    r%d: *r\n", i)
	}
	taints := "[" + strings.Repeat("{key: example.com/a},", many) + "]"
	labels := "{"
	for i := range many {
		labels += fmt.Sprintf("example.com/%d: a,", i)
	}
	for name, handOff := range map[string]string{"lists": "taints: " + taints, "mappings": "labels: " + labels + "}"} {
		got := lines(t, head+"metadata: {r: &r {match: {condition: A, repair: [Reboot]}, handOff: {"+handOff+"}}}\n"+
			"spec:\n  budget: {maxNodes: 1}\n  rules:\n"+rules.String())
		if want := "line 3: more than 100000 values, those that aliases repeat included"; len(got) != 1 || got[0] != want {
			t.Errorf("%s: %.200q", name, got)
		}
	}
	bomb := "a: &a [" + strings.Repeat("x,", 10) + "]"
	for c := 'b'; c <= 'j'; c++ {
		bomb += fmt.Sprintf(", %c: &%c [%s]", c, c, strings.Repeat(fmt.Sprintf("*%c,", c-1), 10))
	}
	if got := lines(t, head+"metadata: {"+bomb+"}\nspec: {budget: {maxNodes: 1}}"); len(got) != 1 || !strings.Contains(got[0], "excessive aliasing (metadata)") {
		t.Errorf("%.200q", got)
	}
}

func TestWhatIsNoPolicyIsRefusedWithItsLine(t *testing.T) {
	spec := func(text string) string { return head + "spec: {budget: {maxNodes: 1}, " + text + "}" }
	for name, test := range map[string]struct{ text, want string }{
		"a tab":                       {head + "spec:\n\tbudget: {maxNodes: 1}", "line 4: the line is indented with a tab: indent it with spaces"},
		"a control character":         {"\x00", "line 1: control characters are not allowed"},
		"bytes that are not UTF-8":    {head + "spec: \xff", "line 3: invalid leading UTF-8 octet"},
		"a deep list":                 {head + "metadata: " + strings.Repeat("[", 100_000), "line 3: exceeded max depth of 10000"},
		"a deep list for a number":    {head + "spec: {budget: {maxNodes: " + strings.Repeat("[", 9000) + strings.Repeat("]", 9000) + "}}", "line 3: cannot unmarshal !!seq into int (spec.budget.maxNodes)"},
		"a list":                      {"[a]", "line 1: cannot unmarshal !!seq into a mapping (the file)"},
		"a number that is too large":  {head + "spec: {budget: {maxNodes: 99999999999999999999}}", "line 3: cannot unmarshal !!float `9999999...` into int (spec.budget.maxNodes)"},
		"a number that is too small":  {head + "spec: {budget: {maxNodes: -1e30}}", "line 3: spec.budget.maxNodes: Invalid value: -9223372036854775808: must be at least 0"},
		"no number":                   {head + "spec: {budget: {maxNodes: .nan}}", "line 3: cannot unmarshal !!float `.nan` into int (spec.budget.maxNodes)"},
		"a duration of a millennium":  {head + "spec: {budget: {maxNodes: 1, window: 9999999h}}", `line 3: spec.budget.window: Invalid value: "9999999h": must be a duration like 30s, 10m or 1h`},
		"a key that is a boolean":     {spec("true: 1"), "line 3: field true not found in spec"},
		"a key that is null":          {spec("~: 1"), "line 3: field ~ not found in spec"},
		"a number and a text as keys": {spec(`jobKinds: [], handOff: {labels: {1: a, "1": b}}`), `line 3: mapping key "1" already defined at line 3`},
		"a quoted merge key":          {spec(`"<<": {}`), "line 3: field << not found in spec"},
		"an unknown field of a merge": {spec("<<: {rulez: {}}"), "line 3: field rulez not found in spec; did you mean rules?"},
		"an anchor that is missing":   {spec("rules: *rules"), "line 3: unknown anchor 'rules' referenced"},
		"labels in themselves":        {spec("handOff: {labels: &l {a: *l}}"), "line 3: cannot unmarshal !!map into string (spec.handOff.labels)"},
		"a status in base64":          {spec("rules: {a: {match: {condition: A, status: !!binary True, repair: [Reboot]}}}"), "line 3: spec.rules[a].match.status: Unsupported value: \"N\\xbb\\x9e\": supported values: \"True\", \"False\", \"Unknown\""},
	} {
		if got := lines(t, test.text); got[0] != test.want {
			t.Errorf("%s: got %.300q, want %q", name, got, test.want)
		}
	}
}

func TestLineEndsAndAByteOrderMarkDoNotMatter(t *testing.T) {
	const rule = "match: {condition: GPUXidError, repair: [Reboot]}\nfor: 1m"
	want := parse(t, oneRule(rule))
	for name, text := range map[string]string{
		"carriage returns":  strings.ReplaceAll(oneRule(rule), "\n", "\r\n"),
		"a byte order mark": "\ufeff" + oneRule(rule),
		"a document start":  "---\n" + oneRule(rule),
	} {
		if got := parse(t, text); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

var located = regexp.MustCompile(`^(line \d+: |yaml: |more than one YAML document$)`)

// FuzzParse: Parse never panics, every error names a line, and every policy that it accepts can be used.
// maxAllocation is the number of bytes that a policy of up to 64 KiB may have Parse allocate.
const maxAllocation = 8 << 20

func FuzzParse(f *testing.F) {
	f.Add([]byte(oneRule("match: {condition: A, status: 'False', repair: [Reboot], reason: a, message: '[b]', nodeSelector: {a: b}}\nmode: enforce\nfor: 1m\n" +
		"unknownAfter: never\ntaint: {key: a, effect: NoExecute}\nrestartJobs: true\ncheckpointGrace: 1s\nbudget: {maxNodes: 0, scope: a, window: 1h}\n" +
		"flaps: {max: 2, window: 1h}\nhandOff: {keepNode: true, labels: {b: c}, annotations: {d: e}}\npriority: -3")))
	f.Add([]byte(withReady("condition: Ready, status: [Unknown, False]", "", true)))
	f.Add([]byte(oneRule("match: {condition: GPUXidError, repair: [Explode]}\nfor: soon\nflaps: {max: 9}")))
	f.Add([]byte(head + "spec: &a {<<: [*a, {mode: enforce}], budget: {maxNodes: 1, maxPercent: 10}, breaker: {maxNodes: 1, window: 1m, coolDown: 1m, pace: 1m}, " +
		"correlated: {maxPercent: 1, minNodes: 2, window: 1s, scopes: [a]}, output: {aws: true}}"))
	f.Add([]byte(head + "spec: {webhooks: {a: {url: 'http://a', allowHTTP: true, secretFile: b, events: [NodeReleased], timeout: 5s}}, jobKinds: [{apiVersion: a/v1, kind: B, activePath: spec.c, podLabel: d}], " +
		"restart: {settle: 5s, backOff: {first: 1s}, podFailures: {enabled: true, podSelector: {a: b}}}, handOff: {keepNode: false, taints: [{key: a}]}}"))
	f.Add([]byte(withRepair("repair: {mode: false, maxConcurrent: 2, maxPerDay: 3, scope: a, actions: {ResetGPU: [{template: b, args: [c], timeout: 1m}]}, drain: {mode: evict}, validate: {template: d}, lemon: {repairs: 0}}\n"+
		"sweeps: {e: {nodeSelector: {f: g}, every: 1h, idleFor: 0s, maxPercent: 5, template: h, args: [i]}}\nfirstCheck: {taint: l, conditions: [all, M], template: n}", validated)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		p, err := Parse(data)
		runtime.ReadMemStats(&after)
		if used := after.TotalAlloc - before.TotalAlloc; used > maxAllocation && len(data) < 64<<10 {
			t.Fatalf("%d bytes were allocated for %d", used, len(data))
		}
		if err != nil {
			if p != nil || !located.MatchString(err.Error()) {
				t.Fatalf("%+v, %v", p, err)
			}
			return
		}
		var anything map[string]any
		if err := yaml.Unmarshal(data, &anything); err != nil {
			t.Fatalf("accepted what is no YAML: %v", err)
		}
		if !slices.IsSortedFunc(p.Rules, func(a, b Rule) int {
			return cmp.Or(cmp.Compare(b.Priority, a.Priority), strings.Compare(a.Name, b.Name))
		}) {
			t.Error("the rules are not sorted")
		}
		for _, r := range p.Rules {
			if len(r.Repair) == 0 || r.Nodes == nil || len(r.Status) == 0 || r.UnknownAfter <= 0 || r.For < 0 || r.ClearAfter < 0 || r.AlertOnly == (r.Taint.Key != "") || r.Budget.MaxPercent < 1 {
				t.Errorf("rule %+v", r)
			}
		}
		for _, s := range p.Sweeps {
			if s.Name == "" || s.Template == "" || s.Every <= 0 || s.Timeout <= 0 || s.Nodes == nil || s.MaxNodes < 1 || s.MaxPercent < 1 || len(strings.Join(s.Args, "")) > MaxArgs {
				t.Errorf("sweep %+v", s)
			}
		}
		if r := p.Repair; r != nil {
			for _, action := range slices.Concat(r.Actions.ResetGPU, r.Actions.Reboot) {
				if action.Template == "" || action.Timeout <= 0 {
					t.Errorf("action %+v", action)
				}
			}
			if r.MaxConcurrent < 1 || r.Drain.Timeout <= 0 || r.ProofTimeout <= 0 || !slices.Contains([]RepairMode{RepairOff, RepairApprove, RepairAuto}, r.Mode) {
				t.Errorf("repair %+v", r)
			}
		}
		if p.Budget == Unlimited && !strings.Contains(string(data), "maxPercent") || p.Budget.Limit(1000) < 0 || p.Restart.PodFailures.Pods == nil {
			t.Errorf("%+v", p)
		}
	})
}
