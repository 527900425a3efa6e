package policy

import (
	"fmt"
	"math"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const validated = "match: {condition: GPUXidError, repair: [Reboot]}\nvalidate: true"

// withRepair puts fields of the policy, each on its own line from line 9 on, beside one rule.
func withRepair(spec, rule string) string {
	text := oneRule("match: {condition: GPUXidError, repair: [Reboot]}")
	if rule != "" {
		text = oneRule(rule)
	}
	return text + "\n  " + strings.ReplaceAll(spec, "\n", "\n  ") + "\n"
}

func TestRepairSweepsAndFirstCheckHaveDefaults(t *testing.T) {
	p := parse(t, withRepair(`repair:
  actions: {ResetGPU: [{template: reset-gpu}, {template: reboot, timeout: 5m}], Reboot: [{template: reboot}]}
  validate: {template: check, args: [-level, 3]}
sweeps:
  weekly: {every: 168h, template: check, args: [-level, "2"]}
  percent: {every: 24h, template: check, maxPercent: 5, nodeSelector: {pool: gpu}}
firstCheck: {conditions: all}`, validated))
	got := fmt.Sprintf("%+v", *p.Repair)
	if want := "{Mode:approve MaxConcurrent:1 MaxPerDay:20 MaxFailures:3 Scope: Actions:{ResetGPU:[{Template:reset-gpu Args:[] Timeout:20m0s} {Template:reboot Args:[] Timeout:5m0s}] " +
		"Reboot:[{Template:reboot Args:[] Timeout:20m0s}]} Drain:{Mode:wait Timeout:30m0s} NextIfRefused:false ProofTimeout:10m0s "; !strings.HasPrefix(got, want) {
		t.Errorf("repair %s", got)
	}
	if diff := cmp.Diff(&Check{Template: "check", Args: []string{"-level", "3"}, Timeout: 45 * time.Minute}, p.Repair.Validate); diff != "" || p.Repair.Lemon != (Lemon{3, 720 * time.Hour}) {
		t.Errorf("validate %s, lemon %+v", diff, p.Repair.Lemon)
	}
	percent, weekly := p.Sweeps[0], p.Sweeps[1]
	if percent.MaxNodes != math.MaxInt || percent.MaxPercent != 5 || percent.Nodes.String() != "pool=gpu" {
		t.Errorf("percent %+v", percent)
	}
	if weekly.MaxNodes != 1 || weekly.MaxPercent != 100 || weekly.IdleFor != 10*time.Minute || weekly.Timeout != 45*time.Minute || !weekly.Nodes.Empty() || strings.Join(weekly.Args, " ") != "-level 2" {
		t.Errorf("weekly %+v", weekly)
	}
	pairs := parse(t, withRepair("sweeps: {pairs: {every: 24h, template: preflight, pairwise: {maxNodes: 8}}, weekly: {every: 168h, template: check}}", ""))
	if len(pairs.Sweeps) != 1 || pairs.Sweeps[0].Name != "weekly" || len(pairs.Warnings) != 1 ||
		!strings.Contains(pairs.Warnings[0], "spec.sweeps[pairs].pairwise: is no longer supported, so this sweep does nothing") {
		t.Errorf("sweeps %+v, warnings %q", pairs.Sweeps, pairs.Warnings)
	}
	if f := p.FirstCheck; f.Taint != "pitcrew.dev/unchecked" || strings.Join(f.Conditions, " ") != "all" || f.Template != "" || !f.Nodes.Empty() {
		t.Errorf("first check %+v", f)
	}
	if !p.Rules[0].Validate || len(p.Warnings) != 1 || !strings.Contains(p.Warnings[0], "spec.firstCheck: waits for every condition that a rule names") {
		t.Errorf("%+v, warnings %q", p.Rules[0], p.Warnings)
	}
	if p := parse(t, withRepair("repair:\nsweeps:\nfirstCheck:", "")); p.Repair != nil || p.Sweeps != nil || p.FirstCheck != nil {
		t.Errorf("nothing is set: %+v", p)
	}
}

func refused(arg string) string {
	return fmt.Sprintf("%q is neither a flag nor a number, as -level=3 or 30m; the chart's admission policies refuse a Job with it: write it into the PodTemplate check", arg)
}

func TestArgumentsAreThoseThatTheAdmissionPolicyAdmits(t *testing.T) {
	text, err := os.ReadFile("../../manifests/repair/admission.yaml")
	if err != nil {
		t.Fatal(err)
	}
	pattern := strings.TrimSuffix(strings.TrimPrefix(admittedArg.String(), "^"), "$")
	if !strings.Contains(string(text), `'\\E(`+pattern+`\\x00)*$'`) {
		t.Errorf("the admission policy does not admit %s", pattern)
	}
}

// Helm reads YAML 1.1, where off is a boolean, and writes false.
func TestOffMayBeFalse(t *testing.T) {
	for text, want := range map[string]RepairMode{"off": RepairOff, `"off"`: RepairOff, "false": RepairOff, "False": RepairOff, "auto": RepairAuto, `""`: RepairApprove} {
		if p := parse(t, withRepair("repair: {mode: "+text+"}", "")); p.Repair.Mode != want {
			t.Errorf("%s is %s, want %s", text, p.Repair.Mode, want)
		}
	}
	for text, want := range map[string]string{
		"repair: {mode: true}":           `line 9: spec.repair.mode: Unsupported value: "true": supported values: "off", "approve", "auto"`,
		`repair: {mode: "false"}`:        `line 9: spec.repair.mode: Unsupported value: "false": supported values: "off", "approve", "auto"`,
		"repair: {mode: enforce}":        `line 9: spec.repair.mode: Unsupported value: "enforce": supported values: "off", "approve", "auto"`,
		"repair: {drain: {mode: false}}": `line 9: spec.repair.drain.mode: Unsupported value: "false": supported values: "wait", "evict"`,
		"restart: {forceDelete: false}":  `line 9: spec.restart.forceDelete: Unsupported value: "false": supported values: "never", "unreachable", "quarantined"`,
	} {
		if got := lines(t, withRepair(text, "")); got[0] != want {
			t.Errorf("%s: %q", text, got)
		}
	}
}

func TestMistakesInRepairSweepsAndFirstCheckAreNamed(t *testing.T) {
	long := strings.Repeat("x", MaxArgs)
	for name, test := range map[string]struct{ spec, rule, want string }{
		"no check to validate with":       {"", validated, "line 9: spec.rules[gpu].validate: Forbidden: needs spec.repair.validate, the check under load"},
		"a repair without that check":     {"repair: {mode: auto}", validated, "line 9: spec.rules[gpu].validate: Forbidden: needs spec.repair.validate, the check under load"},
		"validated and left as it is":     {"repair: {validate: {template: check}}", validated + "\nalertOnly: true", "line 9: spec.rules[gpu].validate: Forbidden: has no effect with alertOnly"},
		"validated and never empty":       {"repair: {validate: {template: check}}", validated + "\ntaint: {effect: PreferNoSchedule}", "line 9: spec.rules[gpu].validate: Forbidden: is not for a taint of effect PreferNoSchedule"},
		"a check without a template":      {"repair: {validate: {args: [a]}}", "", "line 9: spec.repair.validate.template: Required value: the name of a PodTemplate in namespace pitcrew-repair"},
		"an action without a template":    {"repair: {actions: {Reboot: [{timeout: 1m}]}}", "", "line 9: spec.repair.actions.Reboot[0].template: Required value"},
		"an action that is no mapping":    {"repair: {actions: {ResetGPU: [reset]}}", "", "line 9: cannot unmarshal !!str `reset` into a mapping (spec.repair.actions.ResetGPU[0])"},
		"an action that takes no time":    {"repair: {actions: {ResetGPU: [{template: a, timeout: 0s}]}}", "", `line 9: spec.repair.actions.ResetGPU[0].timeout: Invalid value: "0s": must be longer than 0s`},
		"an action of another class":      {"repair: {actions: {Replace: [{template: a}]}}", "", "line 9: field Replace not found in spec.repair.actions"},
		"a template that is no name":      {"repair: {validate: {template: ns/check}}", "", `line 9: spec.repair.validate.template: Invalid value: "ns/check"`},
		"a line end in an argument":       {`repair: {validate: {template: check, args: [a, "b\nc"]}}`, "", `line 9: spec.repair.validate.args[1]: Invalid value: "b\nc": must be text without control characters`},
		"an argument in base64":           {"repair: {validate: {template: check, args: [!!binary /w==]}}", "", `line 9: spec.repair.validate.args[0]: Invalid value: "\xff": must be text without control characters`},
		"many arguments":                  {"repair: {validate: {template: check, args: [" + long + ", y]}}", "", `line 9: spec.repair.validate.args: Invalid value: "1025 bytes": must be at most 1024 bytes together`},
		"too many arguments":              {"repair: {validate: {template: check, args: [" + strings.Repeat("a,", maxArgs+1) + "]}}", "", "line 9: spec.repair.validate.args: Invalid value: 33: must be at most 32"},
		"no repair at the same time":      {"repair: {maxConcurrent: 0}", "", "line 9: spec.repair.maxConcurrent: Invalid value: 0: must be at least 1"},
		"a scope that is no label":        {"repair: {scope: a b}", "", `line 9: spec.repair.scope: Invalid value: "a b"`},
		"more repairs than are kept":      {"repair: {lemon: {repairs: 21}}", "", "line 9: spec.repair.lemon.repairs: Invalid value: 21: must be at most 20: the record of a node keeps no more"},
		"a sweep without a template":      {"sweeps: {weekly: {every: 1h}}", "", "line 9: spec.sweeps[weekly].template: Required value"},
		"a sweep that is never":           {"sweeps: {weekly: {template: check}}", "", "line 9: spec.sweeps[weekly].every: Required value"},
		"a sweep without a name":          {"sweeps: {Weekly_1: {every: 1h, template: check}}", "", `line 9: spec.sweeps[Weekly_1]: Invalid value: "Weekly_1"`},
		"a sweep of wrong arguments":      {`sweeps: {weekly: {every: 1h, template: check, args: ["\x01"]}}`, "", "line 9: spec.sweeps[weekly].args[0]: Invalid value"},
		"a sweep of wrong labels":         {"sweeps: {weekly: {every: 1h, template: check, nodeSelector: {a b: c}}}", "", `line 9: spec.sweeps[weekly].nodeSelector[a b]: Invalid value: "a b"`},
		"a misspelt field of an inline":   {"sweeps: {weekly: {every: 1h, templat: check}}", "", "line 9: field templat not found in spec.sweeps[weekly]; did you mean template?"},
		"the inline part by its name":     {`sweeps: {weekly: {every: 1h, template: a, ",inline": {template: b}}}`, "", "line 9: field ,inline not found in spec.sweeps[weekly]"},
		"Kubernetes' own taint":           {"firstCheck: {taint: node.kubernetes.io/not-ready}", "", `line 9: spec.firstCheck.taint: Invalid value: "node.kubernetes.io/not-ready": must not be in the domains kubernetes.io and k8s.io`},
		"a taint that is no name":         {"firstCheck: {taint: a b}", "", `line 9: spec.firstCheck.taint: Invalid value: "a b"`},
		"the maintenance taint":           {"firstCheck: {taint: pitcrew.dev/maintenance}", "", "line 9: spec.firstCheck.taint: Invalid value: \"pitcrew.dev/maintenance\": is the maintenance taint"},
		"the taint of quarantines":        {"firstCheck: {taint: pitcrew.dev/unhealthy}", "match: {condition: GPUXidError, repair: [Reboot]}\nalertOnly: true", `line 10: spec.firstCheck.taint: Invalid value: "pitcrew.dev/unhealthy": is the taint of quarantines`},
		"the taint of a rule":             {"firstCheck: {taint: example.com/bad}", "match: {condition: GPUXidError, repair: [Reboot]}\ntaint: {key: example.com/bad}", `line 10: spec.firstCheck.taint: Invalid value: "example.com/bad": is a taint of rule gpu`},
		"the taint of a hand-off":         {"firstCheck: {taint: example.com/bad}\nhandOff: {taints: [{key: example.com/bad}]}", "", `line 9: spec.firstCheck.taint: Invalid value: "example.com/bad": is a taint of rule gpu`},
		"a condition that is no name":     {"firstCheck: {conditions: [all, a b]}", "", `line 9: spec.firstCheck.conditions[1]: Invalid value: "a b"`},
		"arguments of no template":        {"firstCheck: {args: [a]}", "", "line 9: spec.firstCheck.args: Forbidden: has no effect without template"},
		"a limit of no template":          {"firstCheck: {maxNodes: 1}", "", "line 9: spec.firstCheck.maxNodes: Forbidden: has no effect without template"},
		"a first check of no nodes":       {"firstCheck: {template: check, maxNodes: 0}", "", "line 9: spec.firstCheck.maxNodes: Invalid value: 0: must be at least 1"},
		"a pool without conditions":       {"pools: {a: {nodeSelector: {b: c}}}", "", "line 9: spec.pools[a].conditions: Required value: the types of the conditions that the nodes report"},
		"a pool of a wrong operator":      {"pools: {a: {conditions: [A], matchExpressions: [{key: b, operator: Is}]}}", "", `line 9: spec.pools[a].matchExpressions[0].operator: Unsupported value: "Is"`},
		"a pool of no values":             {"pools: {a: {conditions: [A], matchExpressions: [{key: b, operator: In}]}}", "", `line 9: spec.pools[a].matchExpressions[0]: Invalid value: "b": values: Invalid value: null: for 'in'`},
		"a pool of a wrong condition":     {"pools: {a: {conditions: [a b]}}", "", `line 9: spec.pools[a].conditions[0]: Invalid value: "a b"`},
		"a pool of a wrong name":          {"pools: {A_: {conditions: [A]}}", "", `line 9: spec.pools[A_]: Invalid value: "A_"`},
		"a first check of wrong template": {"firstCheck: {template: A}", "", `line 9: spec.firstCheck.template: Invalid value: "A"`},
	} {
		got := strings.Join(lines(t, withRepair(test.spec, test.rule)), "\n")
		if !strings.Contains(got, test.want) {
			t.Errorf("%s: got %.500s, want %s", name, got, test.want)
		}
	}
}

func TestARepairThatDoesNothingIsWarnedOf(t *testing.T) {
	for name, test := range map[string]struct{ spec, rule, want string }{
		"no actions":                   {"repair: {mode: approve}", "", "line 9: spec.repair.mode: approve repairs nothing without actions"},
		"no validation":                {"repair: {mode: auto, actions: {Reboot: [{template: reboot}]}}", "", "line 9: spec.repair.mode: no rule has validate: true, so a repaired node returns without a check under load"},
		"a validation of no rule":      {"repair:\n  mode: auto\n  actions: {Reboot: [{template: reboot}]}\n  validate: {template: check}", "", "line 12: spec.repair.validate: has no effect: no rule has validate: true"},
		"validation alone":             {"repair: {validate: {template: check}}", validated, ""},
		"validation alone, off":        {"repair: {mode: off, validate: {template: check}}", validated, ""},
		"approved without validation":  {"repair: {mode: approve, actions: {Reboot: [{template: reboot}]}}", "", ""},
		"everything":                   {"repair: {mode: auto, actions: {Reboot: [{template: reboot}]}, validate: {template: check}}", validated, ""},
		"a misspelt condition":         {"firstCheck: {conditions: [GPUXidErr]}", "", `line 9: spec.firstCheck.conditions[0]: "GPUXidErr" is a condition of no check of Pitcrew and of no other component that it knows; did you mean GPUXidError?`},
		"a condition of the user":      {"firstCheck: {conditions: [AcmeFanBroken]}", "", ""},
		"a condition of no pool":       {"firstCheck: {conditions: [GPUXidError, HCAPortDown, AcmeFanBroken, SlowNode]}\npools: {a: {conditions: [GPUXidError]}}", "", "line 9: spec.firstCheck.conditions[1]: no pool reports HCAPortDown: no node passes the first check"},
		"all of no pool":               {"firstCheck: {conditions: all}", "", "line 9: spec.firstCheck: waits for every condition that a rule names: spec.pools does not say which the nodes report"},
		"all of a pool":                {"firstCheck: {conditions: all}\npools: {a: {conditions: [GPUXidError]}}", "", ""},
		"a check that no pool proves":  {"sweeps: {weekly: {every: 1h, template: check}}\npools: {a: {conditions: [GPUXidError]}}", "", "line 9: spec.sweeps[weekly].template: no node of sweep weekly reports DCGMDiagFailed, which proves template check: no check passes; add it to the checks of a pool"},
		"one that another pool proves": {"sweeps: {weekly: {every: 1h, template: check, nodeSelector: {pool: a}}}\npools: {b: {nodeSelector: {pool: b}, conditions: [DCGMDiagFailed]}}", "", "line 9: spec.sweeps[weekly].template: no node of sweep weekly reports DCGMDiagFailed, which proves template check: no check passes; add it to the checks of a pool"},
		"one that its own pool proves": {"sweeps: {weekly: {every: 1h, template: check, nodeSelector: {pool: a}}}\npools: {a: {matchExpressions: [{key: pool, operator: In, values: [a, b]}, {key: x, operator: Exists}], conditions: [DCGMDiagFailed]}}", "", ""},
		"a validation without proof":   {"repair: {validate: {template: check}}\npools: {a: {conditions: [GPUXidError]}}", validated, "line 10: spec.repair.validate.template: no node of a validation reports DCGMDiagFailed, which proves template check: no check passes; add it to the checks of a pool"},
		"a first check without proof":  {"firstCheck: {template: check}\npools: {a: {conditions: [GPUXidError]}}", "", "line 9: spec.firstCheck.template: no node of the first check reports DCGMDiagFailed, which proves template check: no check passes; add it to the checks of a pool"},
		"a path to validate with":      {"repair: {validate: {template: check, args: [-level, /dev/nvidia0]}}", validated, "line 10: spec.repair.validate.args[1]: " + refused("/dev/nvidia0")},
		"a word to reset with":         {"repair: {actions: {ResetGPU: [{template: a}, {template: check, args: [-x=y]}]}}", "", "line 9: spec.repair.actions.ResetGPU[1].args[0]: " + refused("-x=y")},
		"a variable to reboot with":    {"repair: {actions: {Reboot: [{template: check, args: [-node=$(NODE)]}]}}", "", "line 9: spec.repair.actions.Reboot[0].args[0]: " + refused("-node=$(NODE)")},
		"an option of a sweep":         {"sweeps: {weekly: {every: 1h, template: check, args: [-a_b]}}", "", "line 9: spec.sweeps[weekly].args[0]: " + refused("-a_b")},
		"an option of a first check":   {"firstCheck: {conditions: GPUXidError, template: check, args: [--]}", "", "line 9: spec.firstCheck.args[0]: " + refused("--")},
		"options that are admitted":    {"sweeps: {weekly: {every: 1h, template: check, args: [-level, 3, --level=3, -timeout=30m, 1.5h, -gpu=0000:1b:00,0000:4e:00]}}", "", ""},
	} {
		if got := strings.Join(parse(t, withRepair(test.spec, test.rule)).Warnings, "\n"); got != test.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}

// Who removes the comment signs of the shipped policy gets a repair that works.
func TestTheExampleOfTheShippedPolicyIsValid(t *testing.T) {
	text, err := os.ReadFile(shipped)
	if err != nil {
		t.Fatal(err)
	}
	before, example, ok := strings.Cut(string(text), "\n  # repair:\n")
	example, after, end := strings.Cut(example, "\n  rules:\n")
	if !ok || !end {
		t.Fatalf("%s has no example of repair", shipped)
	}
	example = regexp.MustCompile(`(?m)^  # `).ReplaceAllString(example, "  ")
	p := parse(t, before+"\n  repair:\n"+example+"\n  rules:\n"+after)
	if p.Repair == nil || len(p.Repair.Actions.ResetGPU) != 2 || p.Repair.Validate == nil || len(p.Sweeps) != 1 || p.FirstCheck == nil {
		t.Errorf("%+v, %+v, %+v", p.Repair, p.Sweeps, p.FirstCheck)
	}
	if unchanged := parse(t, string(text)); unchanged.Repair != nil || unchanged.Sweeps != nil || unchanged.FirstCheck != nil {
		t.Error("the shipped policy repairs, sweeps or checks")
	}
}
