package policy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const head = "apiVersion: pitcrew.dev/v1alpha1\nkind: RemediationPolicy\n"

// oneRule puts the fields of one rule, each on its own line, into a policy.
func oneRule(fields string) string {
	return head + "spec:\n  mode: enforce\n  budget: {maxNodes: 1}\n  rules:\n    gpu:\n      " + strings.ReplaceAll(fields, "\n", "\n      ")
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
	got := []any{
		p.Budget, p.Breaker, p.Correlated, r.Name, r.Status, r.For, r.ClearAfter, r.UnknownAfter, r.Taint, r.Priority, r.AlertOnly, r.RestartJobs,
		r.Budget, r.Flaps,
	}
	want := []any{
		Budget{MaxNodes: 1, MaxPercent: 100, ParkedAfter: 7 * 24 * time.Hour}, (*Breaker)(nil), (*Correlated)(nil), "gpu", []corev1.ConditionStatus{corev1.ConditionTrue}, time.Duration(0), 10 * time.Minute, 11 * time.Minute,
		corev1.Taint{Key: "pitcrew.dev/unhealthy", Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule}, 0, false, false,
		Unlimited, Flaps{},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestParseReadsEveryField(t *testing.T) {
	p := parse(t, head+`
metadata: {name: ours}
spec:
  mode: observe
  budget: {maxNodes: 7, maxPercent: 10, scope: topology.kubernetes.io/zone, window: 1h, parkedAfter: 48h}
  breaker: {maxNodes: 5, window: 5m, coolDown: 30m, pace: 2m}
  correlated: {maxPercent: 50, minNodes: 3, window: 2m, scopes: [rack]}
  rules:
    disk:
      match: {condition: ReadonlyFilesystem, status: "False", repair: [Replace], reason: "^Bad", message: "sd[ab]", nodeSelector: {pool: gpu}}
      mode: enforce
      for: 1m
      clearAfter: 2h
      unknownAfter: 5m
      taint: {key: example.com/faulty, value: disk, effect: NoExecute}
      restartJobs: true
      budget: {maxNodes: 0, scope: rack}
      flaps: {max: 3, window: 24h}
      priority: 3
`)
	r := p.Rules[0]
	got := []any{
		p.Budget, *p.Breaker, *p.Correlated, r.Condition, r.Status, r.Repair, r.Reason.String(), r.Message.String(), r.Nodes.String(),
		r.Observe, r.For, r.ClearAfter, r.UnknownAfter, r.Taint, r.RestartJobs, r.Budget, r.Flaps, r.Priority,
	}
	want := []any{
		Budget{7, 10, "topology.kubernetes.io/zone", time.Hour, 48 * time.Hour}, Breaker{5, 5 * time.Minute, 30 * time.Minute, 2 * time.Minute},
		Correlated{50, 3, 2 * time.Minute, []string{"", "rack"}},
		corev1.NodeConditionType("ReadonlyFilesystem"), []corev1.ConditionStatus{corev1.ConditionFalse}, []conditions.Repair{conditions.Replace}, "^Bad", "sd[ab]",
		"pool=gpu", false, time.Minute, 2 * time.Hour, 5 * time.Minute,
		corev1.Taint{Key: "example.com/faulty", Value: "disk", Effect: corev1.TaintEffectNoExecute}, true,
		Budget{0, 100, "rack", 0, DefaultParkedAfter}, Flaps{3, 24 * time.Hour}, 3,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestARuleObservesUntilItIsSwitchedOn(t *testing.T) {
	for name, test := range map[string]struct {
		spec, rule string
		want       bool
	}{
		"no mode is set":       {"", "", true},
		"the policy observes":  {"mode: observe", "", true},
		"the policy enforces":  {"mode: enforce", "", false},
		"one rule switched on": {"mode: observe", "mode: enforce", false},
		"one switched off":     {"mode: enforce", "mode: observe", true},
	} {
		p := parse(t, head+"spec:\n  "+test.spec+"\n  budget: {maxNodes: 1}\n  rules:\n    gpu:\n      match: {condition: GPUXidError, repair: [Reboot]}\n      "+test.rule)
		if p.Rules[0].Observe != test.want {
			t.Errorf("%s: observes %v, want %v", name, p.Rules[0].Observe, test.want)
		}
	}
}

func TestTheTaintCanBeKonduktors(t *testing.T) {
	p := parse(t, oneRule(`match: {condition: GPUXidError, repair: [Reboot]}
taint: {key: trainy.konduktor.ai/faulty, value: "true"}`))
	if got := p.Rules[0].Taint.ToString(); got != "trainy.konduktor.ai/faulty=true:NoSchedule" {
		t.Error(got)
	}
}

func TestHandOff(t *testing.T) {
	const match = "match: {condition: GPUXidError, repair: [Reboot]}"
	repair := corev1.Taint{Key: "example.com/repair", Effect: corev1.TaintEffectNoSchedule}
	hard := corev1.Taint{Key: "example.com/repair", Value: "hard", Effect: corev1.TaintEffectNoSchedule}
	for name, test := range map[string]struct {
		all, rule string
		want      HandOff
	}{
		"the node is kept unless somebody says otherwise": {"", "", HandOff{Annotations: KeepNode}},
		"all rules say otherwise":                         {"handOff: {keepNode: false}", "", HandOff{}},
		"one rule says otherwise":                         {"", "handOff: {keepNode: false}", HandOff{}},
		"one rule keeps it":                               {"handOff: {keepNode: false}", "handOff: {keepNode: true}", HandOff{Annotations: KeepNode}},
		"a rule adds to all": {"handOff: {keepNode: false, labels: {a: b}, annotations: {c: d}, taints: [{key: example.com/repair}]}", "handOff: {labels: {a: e, f: g}}",
			HandOff{Labels: map[string]string{"a": "e", "f": "g"}, Annotations: map[string]string{"c": "d"}, Taints: []corev1.Taint{repair}}},
		"a rule's taint replaces that of all": {"handOff: {keepNode: false, taints: [{key: example.com/repair}]}", "handOff: {taints: [{key: example.com/repair, value: hard}]}",
			HandOff{Taints: []corev1.Taint{hard}}},
	} {
		p := parse(t, head+"spec:\n  budget: {maxNodes: 1}\n  "+test.all+"\n  rules:\n    gpu:\n      "+match+"\n      "+test.rule)
		if diff := cmp.Diff(test.want, p.Rules[0].HandOff, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

func TestLimit(t *testing.T) {
	for _, test := range []struct {
		budget Budget
		nodes  int
		want   int
	}{
		{Unlimited, 1000, 1000},
		{Budget{MaxNodes: 3, MaxPercent: 100}, 1000, 3},
		{Budget{MaxNodes: 100, MaxPercent: 10}, 288, 28},
		{Budget{MaxNodes: 100, MaxPercent: 10}, 3, 1}, // a small pool can be helped, too
		{Budget{MaxNodes: 0, MaxPercent: 10}, 3, 0},
	} {
		if got := test.budget.Limit(test.nodes); got != test.want {
			t.Errorf("%+v of %d nodes is %d, want %d", test.budget, test.nodes, got, test.want)
		}
	}
}

func TestReloadKeepsTheLastGoodPolicy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "policy.yaml")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	good := oneRule("match: {condition: GPUXidError, repair: [Reboot]}")
	write(good)
	f, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	reload := func(wantChanged, wantError bool, priority int) {
		t.Helper()
		changed, err := f.Reload()
		if changed != wantChanged || (err != nil) != wantError || f.Policy().Rules[0].Priority != priority {
			t.Errorf("Reload = %v, %v; priority %d", changed, err, f.Policy().Rules[0].Priority)
		}
	}
	reload(false, false, 0)
	write(good + "\n      priority: 7")
	reload(true, false, 7)
	reload(false, false, 7)
	write(good + "\n      priority: high")
	reload(false, true, 7)
	reload(false, true, 7)
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	reload(false, true, 7)
	write(good + "\n      priority: 8")
	reload(true, false, 8)
	if _, err := Open(path + "x"); err == nil {
		t.Error("a file that is not there was opened")
	}
}

func TestParseNamesRuleFieldAndValue(t *testing.T) {
	const ours = "match: {condition: GPUXidError, repair: [Reboot]}\n"
	tests := map[string]struct{ policy, want string }{
		"unknown field of a rule": {oneRule(ours + "taintt: {}"), "line 9: field taintt not found"},
		"unknown field of match":  {oneRule("match:\n  condition: GPUXidError\n  reasons: x"), "line 10: field reasons not found"},
		"unknown field on top":    {oneRule(ours) + "\nstatus: {}", "line 10: field status not found"},
		"a rule set twice":        {oneRule(ours) + "\n    gpu: {}", `line 10: mapping key "gpu" already defined at line 7`},
		"two documents":           {oneRule(ours) + "\n---\n" + oneRule(ours), "more than one YAML document"},
		"nothing":                 {"", `line 1: apiVersion: Unsupported value: ""`},
		"another apiVersion":      {strings.Replace(oneRule(ours), "v1alpha1", "v1", 1), `apiVersion: Unsupported value: "pitcrew.dev/v1": supported values: "pitcrew.dev/v1alpha1"`},
		"another kind":            {strings.Replace(oneRule(ours), "Remediation", "Network", 1), `kind: Unsupported value: "NetworkPolicy"`},
		"no budget":               {head + "spec: {}", "line 3: spec.budget: Required value"},
		"an empty budget":         {head + "spec: {budget: {scope: rack}}", "spec.budget: Required value"},
		"parkedAfter of a rule":   {oneRule("match: {condition: GPUXidError, repair: [Reboot]}\nbudget: {maxNodes: 1, parkedAfter: 1h}"), "spec.rules[gpu].budget.parkedAfter: Forbidden"},
		"parkedAfter of nothing":  {head + "spec: {budget: {maxNodes: 1, parkedAfter: 0s}}", "line 3: spec.budget.parkedAfter: Invalid value: \"0s\": must be longer than 0s"},
		"negative maxNodes":       {head + "spec:\n  budget:\n    maxNodes: -1", "line 5: spec.budget.maxNodes: Invalid value: -1"},
		"maxNodes in percent":     {head + "spec: {budget: {maxNodes: 10%}}", "line 3: cannot unmarshal !!str `10%` into int"},
		"maxPercent":              {head + "spec: {budget: {maxPercent: 0}}", "spec.budget.maxPercent: Invalid value: 0"},
		"maxPercent above all":    {head + "spec: {budget: {maxPercent: 101}}", "spec.budget.maxPercent: Invalid value: 101"},
		"scope":                   {head + "spec: {budget: {maxNodes: 1, scope: a b}}", `spec.budget.scope: Invalid value: "a b"`},
		"window":                  {head + "spec: {budget: {maxNodes: 1, window: 1}}", `spec.budget.window: Invalid value: "1"`},
		"mode":                    {head + "spec: {mode: off, budget: {maxNodes: 1}}", `spec.mode: Unsupported value: "off"`},
		"mode of a rule":          {oneRule(ours + "mode: on"), `line 9: spec.rules[gpu].mode: Unsupported value: "on"`},
		"breaker without pace":    {head + "spec: {budget: {maxNodes: 1}, breaker: {maxNodes: 1, window: 1m, coolDown: 1m}}", "spec.breaker.pace: Required value"},
		"breaker without nodes":   {head + "spec: {budget: {maxNodes: 1}, breaker: {window: 1m, coolDown: 1m, pace: 1m}}", "spec.breaker.maxNodes: Invalid value: 0"},
		"correlated, one node":    {head + "spec: {budget: {maxNodes: 1}, correlated: {maxPercent: 50, minNodes: 1, window: 1m}}", "spec.correlated.minNodes: Invalid value: 1"},
		"correlated, scope":       {head + "spec: {budget: {maxNodes: 1}, correlated: {maxPercent: 50, minNodes: 3, window: 1m, scopes: [a, b c]}}", `spec.correlated.scopes[1]: Invalid value: "b c"`},
		"flaps without window":    {oneRule(ours + "flaps: {max: 3}"), "spec.rules[gpu].flaps.window: Required value"},
		"more flaps than kept":    {oneRule(ours + "flaps: {max: 7, window: 1h}"), "spec.rules[gpu].flaps.max: Invalid value: 7"},
		"a reserved name":         {strings.Replace(oneRule(ours), "gpu:", "by-hand:", 1), "spec.rules[by-hand]: Invalid value"},
		"reason":                  {oneRule("match: {condition: GPUXidError, repair: [Reboot], reason: '['}"), `spec.rules[gpu].match.reason: Invalid value: "["`},
		"rule name":               {head + "spec: {budget: {maxNodes: 1}, rules: {A b: {match: {condition: GPUXidError, repair: [Reboot]}}}}", `spec.rules[A b]: Invalid value: "A b"`},
		"no condition":            {oneRule("match: {repair: [Reboot]}"), `spec.rules[gpu].match.condition: Invalid value: ""`},
		"no class":                {oneRule("match: {condition: GPUXidError}"), "spec.rules[gpu].match.repair: Required value"},
		"unknown class":           {oneRule("match: {condition: GPUXidError, repair: [Reboot, Explode]}"), `line 8: spec.rules[gpu].match.repair[1]: Invalid value: "Explode"`},
		"ours with status False":  {oneRule(`match: {condition: GPUXidError, repair: [Reboot], status: "False"}`), `spec.rules[gpu].match.status: Invalid value: ["False"]: must be True`},
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
		"alertOnly with a taint":  {oneRule(ours + "alertOnly: true\ntaint: {key: a}"), "spec.rules[gpu].taint: Forbidden"},
		"alertOnly with handOff":  {oneRule(ours + "alertOnly: true\nhandOff: {labels: {a: b}}"), "spec.rules[gpu].handOff: Forbidden"},
		"handOff label":           {oneRule(ours + "handOff: {labels: {a: 'b c'}}"), `spec.rules[gpu].handOff.labels[a]: Invalid value: "b c"`},
		"handOff key":             {oneRule(ours + "handOff: {annotations: {a b: c}}"), `spec.rules[gpu].handOff.annotations[a b]: Invalid value: "a b"`},
		"handOff of ours":         {oneRule(ours + "handOff: {labels: {pitcrew.dev/status: fine}}"), "must not be in the domain pitcrew.dev, which is Pitcrew's own"},
		"handOff too long":        {oneRule(ours + "handOff: {annotations: {a: " + strings.Repeat("x", 257) + "}}"), `spec.rules[gpu].handOff.annotations[a]: Invalid value: "257 bytes"`},
		"handOff without taint":   {oneRule(ours + "handOff: {taints: [{value: a}]}"), `spec.rules[gpu].handOff.taints[0].key: Invalid value: ""`},
		"handOff, same taint":     {oneRule(ours + "taint: {key: a}\nhandOff: {taints: [{key: a}]}"), "is a taint of handOff, too"},
		"alertOnly with mode":     {oneRule(ours + "alertOnly: true\nmode: enforce"), "spec.rules[gpu].mode: Forbidden"},
		"alertOnly with budget":   {oneRule(ours + "alertOnly: true\nbudget: {maxNodes: 1}"), "spec.rules[gpu].budget: Forbidden"},
		"alertOnly with flaps":    {oneRule(ours + "alertOnly: true\nflaps: {max: 2, window: 1h}"), "spec.rules[gpu].flaps: Forbidden"},
		"alertOnly with restart":  {oneRule(ours + "alertOnly: true\nrestartJobs: true"), "spec.rules[gpu].restartJobs: Forbidden"},
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
  budget: {maxNodes: 1}
  rules:
    b-all: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}}
    c-lost: {match: {condition: GPUXidError, repair: [Reboot], message: "Xid 79"}, priority: 1}
    a-pool: {match: {condition: GPUXidError, repair: [ResetGPU], nodeSelector: {pool: test}}, alertOnly: true}
    ready: {match: {condition: AcceleratorReady, status: "False", repair: [Inspect], reason: "^Nvidia"}}
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
			condition: corev1.NodeCondition{Type: "AcceleratorReady", Status: "False", Reason: "NvidiaXID79Error", Message: "Reboot gpu a: not our grammar"},
			rule:      "ready", class: conditions.Inspect,
		},
		"another reason":    {condition: corev1.NodeCondition{Type: "AcceleratorReady", Status: "False", Reason: "NeuronError"}},
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

func TestThePolicyChecksNodesThatARuleMayQuarantine(t *testing.T) {
	p := parse(t, head+`spec:
  budget: {maxNodes: 1}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot], nodeSelector: {pool: gpu}}}
    clock: {match: {condition: ClockSkewed, repair: [Inspect]}, alertOnly: true}
    dead: {match: {condition: Ready, status: "False", repair: [Inspect]}}
`)
	for name, test := range map[string]struct {
		pool, condition string
		want            bool
	}{
		"a healthy node":               {"gpu", "GPUXidError", true},
		"a node of another pool":       {"cpu", "GPUXidError", false},
		"a condition that only alerts": {"gpu", "ClockSkewed", false},
		"a condition of no rule":       {"gpu", "DiskPressure", false},
		"what every node has":          {"gpu", "Ready", false},
	} {
		n := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeConditionType(test.condition), Status: corev1.ConditionFalse}}}}
		n.Labels = map[string]string{"pool": test.pool}
		if got := p.Checks(n); got != test.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}
