package policy

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

func TestLikelyMistakesAreWarnings(t *testing.T) {
	rule := func(name, fields string) string { return "    " + name + ": {" + fields + "}\n" }
	const (
		xid      = "match: {condition: GPUXidError, repair: [Reboot, Replace]}"
		compete  = "matches the same as rule a in line 6, which acts instead, because its name comes first; give one of them a higher priority or another match"
		unlikely = "is a condition of no check of Pitcrew and of no other component that it knows; did you mean "
	)
	for name, test := range map[string]struct {
		rules string
		want  []string
	}{
		"a misspelt condition":      {rule("a", "match: {condition: GPUXidErr, repair: [Reboot]}"), []string{`line 6: spec.rules[a].match.condition: "GPUXidErr" ` + unlikely + "GPUXidError?"}},
		"one of another component":  {rule("a", "match: {condition: ReadonlyFilesytem, repair: [Reboot]}"), []string{`line 6: spec.rules[a].match.condition: "ReadonlyFilesytem" ` + unlikely + "ReadonlyFilesystem?"}},
		"a verdict":                 {rule("a", "match: {condition: SlowNodes, repair: [Inspect]}"), []string{`line 6: spec.rules[a].match.condition: "SlowNodes" ` + unlikely + "SlowNode?"}},
		"one that a user writes":    {rule("a", "match: {condition: AcmeFanBroken, repair: [Reboot]}"), nil},
		"a number of another Xid":   {rule("a", "match: {condition: NvidiaXID64Error, repair: [Reboot]}"), nil},
		"the same rule twice":       {rule("b", xid) + rule("a", xid), []string{`line 6: spec.rules[b]: ` + strings.Replace(compete, "line 6", "line 7", 1)}},
		"with other actions":        {rule("a", xid) + rule("b", xid+", alertOnly: true"), []string{"line 7: spec.rules[b]: " + compete}},
		"in one of their classes":   {rule("a", xid) + rule("b", "match: {condition: GPUXidError, repair: [Replace]}"), []string{"line 7: spec.rules[b]: " + compete}},
		"with another priority":     {rule("a", xid) + rule("b", xid+", priority: 1"), nil},
		"for other classes":         {rule("a", xid) + rule("b", "match: {condition: GPUXidError, repair: [Inspect]}"), nil},
		"for another message":       {rule("a", xid) + rule("b", "match: {condition: GPUXidError, repair: [Reboot], message: x}"), nil},
		"for another reason":        {rule("a", xid) + rule("b", "match: {condition: GPUXidError, repair: [Reboot], reason: x}"), nil},
		"for other nodes":           {rule("a", xid) + rule("b", "match: {condition: GPUXidError, repair: [Reboot], nodeSelector: {pool: b}}"), nil},
		"for another condition":     {rule("a", xid) + rule("b", "match: {condition: GPUMemoryError, repair: [Reboot]}"), nil},
		"for another status":        {rule("a", "match: {condition: X, repair: [Reboot]}") + rule("b", `match: {condition: X, status: "False", repair: [Reboot]}`), nil},
		"two in the order of lines": {rule("z", "match: {condition: SlowNodes, repair: [Inspect]}") + rule("a", "match: {condition: GPUXidErr, repair: [Reboot]}"), []string{"line 6: spec.rules[z].match.condition: \"SlowNodes\" " + unlikely + "SlowNode?", "line 7: spec.rules[a].match.condition: \"GPUXidErr\" " + unlikely + "GPUXidError?"}},
	} {
		p := parse(t, head+"spec:\n  budget: {maxNodes: 1}\n  rules:\n"+test.rules)
		if diff := cmp.Diff(test.want, p.Warnings); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
}

// A condition that the list lacks would be a typo of another one.
func TestTheShippedPoliciesHaveNoWarningAndNoUnknownCondition(t *testing.T) {
	for _, file := range []string{"policy.yaml", "policy-third-party.yaml"} {
		text, err := os.ReadFile("../../manifests/" + file)
		if err != nil {
			t.Fatal(err)
		}
		p := parse(t, string(text))
		if len(p.Warnings) > 0 {
			t.Errorf("%s: %q", file, p.Warnings)
		}
		for _, r := range p.Rules {
			if !conditions.Ours(string(r.Condition)) && !slices.Contains(thirdParty, string(r.Condition)) {
				t.Errorf("%s has condition %s, which thirdParty lacks", file, r.Condition)
			}
		}
	}
}
