package policy

import (
	"strings"
	"testing"
)

func TestCordon(t *testing.T) {
	const cordon, no = "handOff: {cordon: true}", "handOff: {cordon: false}"
	const reason = "Pitcrew: GPUXidError (rule gpu)"
	for name, test := range map[string]struct {
		all, rule string
		want      bool
		reason    string
	}{
		"by default a node is not cordoned": {"", "", false, ""},
		"all rules cordon":                  {cordon, "", true, reason},
		"one rule cordons":                  {"", cordon, true, reason},
		"one rule does not":                 {cordon, no, false, ""},
		"all rules do not":                  {no, "", false, ""},
		"a reason of the user's own":        {cordon, "handOff: {annotations: {" + CordonReason + ": broken}}", true, "broken"},
		"a soft taint does not cordon":      {cordon, "taint: {effect: PreferNoSchedule}", false, ""},
		"a rule that only alerts does not":  {cordon, "alertOnly: true", false, ""},
	} {
		p := parse(t, head+"spec:\n  budget: {maxNodes: 1}\n  "+test.all+"\n  rules:\n    gpu:\n      match: {condition: GPUXidError, repair: [Reboot]}\n      "+test.rule)
		h := p.Rules[0].HandOff
		if h.Cordons() != test.want || h.Annotations[CordonReason] != test.reason {
			t.Errorf("%s: cordons %v, reason %q", name, h.Cordons(), h.Annotations[CordonReason])
		}
		if !test.want && h.Cordon != nil {
			t.Errorf("%s: cordon is %v, and not left out", name, *h.Cordon)
		}
	}
}

func TestTheReasonOfACordonFitsIntoAnAnnotation(t *testing.T) {
	long := strings.Repeat("x", 63)
	p := parse(t, head+"spec:\n  budget: {maxNodes: 1}\n  handOff: {cordon: true}\n  rules:\n    "+long+":\n      match: {condition: "+
		strings.Repeat("example-", 31)+"x.com/"+long+", repair: [Reboot]}\n      taint: {value: x}")
	if reason := p.Rules[0].HandOff.Annotations[CordonReason]; len(reason) != MaxAnnotation {
		t.Errorf("%d bytes: %s", len(reason), reason)
	}
}

func TestASoftTaintWithACordonIsRefused(t *testing.T) {
	_, err := Parse([]byte(oneRule("match: {condition: GPUXidError, repair: [Reboot]}\ntaint: {effect: PreferNoSchedule}\nhandOff: {cordon: true}")))
	const want = "spec.rules[gpu].handOff.cordon: Invalid value: true: takes the node out of service, which a taint of effect PreferNoSchedule does not"
	if err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
}

func TestARuleOnTheConditionOfOurRepairsIsRefused(t *testing.T) {
	spec := func(output string) string {
		return head + "spec:\n  budget: {maxNodes: 1}\n  output: {maintenance: " + output + "}\n  rules:\n    m:\n      match: {condition: MaintenanceInProgress, repair: [Inspect]}"
	}
	if _, err := Parse([]byte(spec("true"))); err == nil || !strings.Contains(err.Error(), "output.maintenance writes for a repair") {
		t.Error(err)
	}
	if p := parse(t, spec("false")); p.Output.Maintenance {
		t.Errorf("output %+v", p.Output)
	}
}

func TestARuleOnWhatIsShownToSoperatorIsRefused(t *testing.T) {
	spec := func(output, condition string) string {
		return head + "spec:\n  budget: {maxNodes: 1}\n  output: {soperator: " + output + "}\n  rules:\n    nebius:\n      match: {condition: " + condition + ", repair: [Replace]}"
	}
	if _, err := Parse([]byte(spec("true", SoperatorCondition))); err == nil || !strings.Contains(err.Error(), "a quarantine, which would never end") {
		t.Error(err)
	}
	for output, condition := range map[string]string{"true": "OtherIssues", "false": SoperatorCondition} {
		if p := parse(t, spec(output, condition)); p.Output.Soperator != (output == "true") {
			t.Errorf("output %+v", p.Output)
		}
	}
}
