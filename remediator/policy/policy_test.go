package policy

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const head = "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\n"

// oneRule puts the fields of one rule, each on its own line, into a policy.
func oneRule(fields string) string {
	return head + "spec:\n  maxNodes: 1\n  rules:\n    gpu:\n      " + strings.ReplaceAll(fields, "\n", "\n      ")
}

func parse(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParseFillsInDefaults(t *testing.T) {
	p := parse(t, oneRule("match: {condition: GPUXidError, repair: [Reboot]}"))
	r := p.Rules[0]
	got := []any{p.MaxNodes, r.Name, r.Status, r.For, r.ClearAfter, r.UnknownAfter, r.Taint, r.Priority, r.AlertOnly, r.RestartJobs}
	want := []any{
		1, "gpu", corev1.ConditionTrue, time.Duration(0), 10 * time.Minute, 11 * time.Minute,
		corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule}, 0, false, false,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseReadsEveryField(t *testing.T) {
	p := parse(t, head+`
metadata: {name: ours}
spec:
  maxNodes: 7
  rules:
    disk:
      match: {condition: ReadonlyFilesystem, status: "False", repair: [Replace], message: "sd[ab]", nodeSelector: {pool: gpu}}
      for: 1m
      clearAfter: 2h
      unknownAfter: 5m
      taint: {key: example.com/faulty, value: disk, effect: NoExecute}
      restartJobs: true
      priority: 3
`)
	r := p.Rules[0]
	got := []any{
		p.MaxNodes, r.Condition, r.Status, r.Repair, r.Message.String(), r.Nodes.String(), r.For, r.ClearAfter,
		r.UnknownAfter, r.Taint, r.RestartJobs, r.Priority,
	}
	want := []any{
		7, corev1.NodeConditionType("ReadonlyFilesystem"), corev1.ConditionFalse, []conditions.Repair{conditions.Replace}, "sd[ab]",
		"pool=gpu", time.Minute, 2 * time.Hour, 5 * time.Minute,
		corev1.Taint{Key: "example.com/faulty", Value: "disk", Effect: corev1.TaintEffectNoExecute}, true, 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseNamesRuleFieldAndValue(t *testing.T) {
	const ours = "match: {condition: GPUXidError, repair: [Reboot]}\n"
	tests := map[string]struct{ policy, want string }{
		"unknown field of a rule": {oneRule(ours + "taintt: {}"), `unknown field "spec.rules.gpu.taintt"`},
		"unknown field of match":  {oneRule("match: {condition: GPUXidError, repair: [Reboot], reason: x}"), `unknown field "spec.rules.gpu.match.reason"`},
		"unknown field on top":    {oneRule(ours) + "\nstatus: {}", `unknown field "status"`},
		"a rule set twice":        {oneRule(ours) + "\n    gpu: {}", `key "gpu" already set`},
		"two documents":           {oneRule(ours) + "\n---\n" + oneRule(ours), "more than one YAML document"},
		"nothing":                 {"", `apiVersion: Unsupported value: ""`},
		"another apiVersion":      {strings.Replace(oneRule(ours), "v1alpha1", "v1", 1), `apiVersion: Unsupported value: "pitcrew.dev/v1": supported values: "pitcrew.dev/v1alpha1"`},
		"another kind":            {strings.Replace(oneRule(ours), "Remediation", "Network", 1), `kind: Unsupported value: "NetworkPolicy"`},
		"no maxNodes":             {head + "spec: {}", "spec.maxNodes: Required value"},
		"negative maxNodes":       {head + "spec: {maxNodes: -1}", "spec.maxNodes: Invalid value: -1"},
		"maxNodes in percent":     {head + "spec: {maxNodes: 10%}", "maxNodes"},
		"rule name":               {head + "spec: {maxNodes: 1, rules: {A b: {match: {condition: GPUXidError, repair: [Reboot]}}}}", `spec.rules[A b]: Invalid value: "A b"`},
		"no condition":            {oneRule("match: {repair: [Reboot]}"), `spec.rules[gpu].match.condition: Invalid value: ""`},
		"no class":                {oneRule("match: {condition: GPUXidError}"), "spec.rules[gpu].match.repair: Required value"},
		"unknown class":           {oneRule("match: {condition: GPUXidError, repair: [Reboot, Explode]}"), `spec.rules[gpu].match.repair[1]: Invalid value: "Explode"`},
		"status Unknown":          {oneRule("match: {condition: Ready, repair: [Inspect], status: Unknown}"), `spec.rules[gpu].match.status: Invalid value: "Unknown"`},
		"ours with status False":  {oneRule(`match: {condition: GPUXidError, repair: [Reboot], status: "False"}`), `spec.rules[gpu].match.status: Invalid value: "False": must be True`},
		"foreign, two classes":    {oneRule("match: {condition: KernelDeadlock, repair: [Inspect, Reboot]}"), "spec.rules[gpu].match.repair: Invalid value: [\"Inspect\",\"Reboot\"]: must be exactly one class"},
		"pattern":                 {oneRule("match: {condition: GPUXidError, repair: [Reboot], message: '['}"), `spec.rules[gpu].match.message: Invalid value: "["`},
		"selector key":            {oneRule("match: {condition: GPUXidError, repair: [Reboot], nodeSelector: {a b: c}}"), `spec.rules[gpu].match.nodeSelector[a b]: Invalid value: "a b"`},
		"selector value":          {oneRule("match: {condition: GPUXidError, repair: [Reboot], nodeSelector: {a: 'b c'}}"), `spec.rules[gpu].match.nodeSelector[a]: Invalid value: "b c"`},
		"for":                     {oneRule(ours + "for: soon"), `spec.rules[gpu].for: Invalid value: "soon"`},
		"negative clearAfter":     {oneRule(ours + "clearAfter: -1m"), `spec.rules[gpu].clearAfter: Invalid value: "-1m"`},
		"unknownAfter zero":       {oneRule(ours + "unknownAfter: 0s"), `spec.rules[gpu].unknownAfter: Invalid value: "0s"`},
		"taint key":               {oneRule(ours + "taint: {key: a b}"), `spec.rules[gpu].taint.key: Invalid value: "a b"`},
		"taint value":             {oneRule(ours + "taint: {value: a b}"), `spec.rules[gpu].taint.value: Invalid value: "a b"`},
		"taint effect":            {oneRule(ours + "taint: {effect: Drain}"), `spec.rules[gpu].taint.effect: Unsupported value: "Drain"`},
		"the maintenance taint":   {oneRule(ours + "taint: {key: pitcrew.dev/maintenance}"), `spec.rules[gpu].taint.key: Invalid value: "pitcrew.dev/maintenance"`},
		"alertOnly with a taint":  {oneRule(ours + "alertOnly: true\ntaint: {key: a}"), `spec.rules[gpu].taint: Invalid value: "a"`},
		"alertOnly with restart":  {oneRule(ours + "alertOnly: true\nrestartJobs: true"), "spec.rules[gpu].restartJobs: Invalid value: true"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p, err := Parse([]byte(test.policy))
			if err == nil || p != nil {
				t.Fatalf("Parse = %+v, %v, want an error", p, err)
			}
			if !strings.Contains(err.Error(), test.want) {
				t.Errorf("got  %v\nwant %s", err, test.want)
			}
		})
	}
}

func TestParseNamesEverythingThatIsWrong(t *testing.T) {
	_, err := Parse([]byte(oneRule("match: {condition: GPUXidError, repair: [Explode]}\nfor: soon")))
	for _, want := range []string{"match.repair[0]", "spec.rules[gpu].for"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want it to name %s", err, want)
		}
	}
}

func TestMatch(t *testing.T) {
	p := parse(t, head+`
spec:
  maxNodes: 1
  rules:
    b-all: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}}
    c-lost: {match: {condition: GPUXidError, repair: [Reboot], message: "Xid 79"}, priority: 1}
    a-pool: {match: {condition: GPUXidError, repair: [ResetGPU], nodeSelector: {pool: test}}, alertOnly: true}
    ready: {match: {condition: AcceleratorReady, status: "False", repair: [Inspect]}}
`)
	tests := map[string]struct {
		condition corev1.NodeCondition
		labels    map[string]string
		rule      string
		class     conditions.Repair
	}{
		"the class of our message": {
			condition: corev1.NodeCondition{Type: "GPUXidError", Status: "True", Message: "ResetGPU gpu a: Xid 95 x"},
			rule:      "b-all", class: conditions.ResetGPU,
		},
		"priority before name": {
			condition: corev1.NodeCondition{Type: "GPUXidError", Status: "True", Message: "Reboot gpu a: Xid 79 x"},
			rule:      "c-lost", class: conditions.Reboot,
		},
		"name before name, on nodes that are selected": {
			condition: corev1.NodeCondition{Type: "GPUXidError", Status: "True", Message: "ResetGPU gpu a: Xid 95 x"},
			labels:    map[string]string{"pool": "test"}, rule: "a-pool", class: conditions.ResetGPU,
		},
		"a class of no rule": {condition: corev1.NodeCondition{Type: "GPUXidError", Status: "True", Message: "Replace gpu a: Xid 64 x"}},
		"a message of ours that does not parse": {
			condition: corev1.NodeCondition{Type: "GPUXidError", Status: "True", Message: "Reboot"},
		},
		"healthy": {condition: corev1.NodeCondition{Type: "GPUXidError", Status: "False", Message: "ResetGPU gpu a: Xid 95 x"}},
		"unknown": {condition: corev1.NodeCondition{Type: "GPUXidError", Status: "Unknown", Message: "ResetGPU gpu a: Xid 95 x"}},
		"positive polarity, class of the rule": {
			condition: corev1.NodeCondition{Type: "AcceleratorReady", Status: "False", Message: "Reboot gpu a: not our grammar"},
			rule:      "ready", class: conditions.Inspect,
		},
		"another condition": {condition: corev1.NodeCondition{Type: "KernelDeadlock", Status: "True"}},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			r, class, ok := p.Match(test.labels, test.condition)
			if r.Name != test.rule || class != test.class || ok != (test.rule != "") {
				t.Errorf("Match = %q, %v, %v, want %q, %v", r.Name, class, ok, test.rule, test.class)
			}
		})
	}
}
