package policy

import (
	"fmt"
	"regexp"
	"testing"

	"github.com/pitcrew-dev/pitcrew/remediator/goldentest"
)

// What 19f658c showed as a policy is one, with the same rules: what its chart rendered by default with each preset, and with the values on
// its pages and in its examples, and the policies on its pages, completed as in TestThePoliciesOfThePagesAreValid.
func TestGoldenPolicies(t *testing.T) {
	shown := goldentest.Read(t, "policies/shown", func(t *testing.T) map[string]string {
		t.Fatal("only the chart and the pages of 19f658c make it")
		return nil
	})
	rules := map[string][]string{}
	for name, text := range shown {
		p, err := Parse([]byte(text))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, r := range p.Rules {
			rules[name] = append(rules[name], inShort(&r))
		}
	}
	goldentest.Answer(t, "policies/shown", rules)
}

// inShort is what a rule acts on, and what it does.
func inShort(r *Rule) string {
	does := r.Taint.ToString()
	switch {
	case r.AlertOnly:
		does = "alert"
	case r.Observe:
		does = "observe " + does
	}
	if r.Isolate {
		does += fmt.Sprintf(" on at most %d devices", r.MaxDevices)
	}
	if r.RestartJobs {
		does += fmt.Sprintf(", restart after %s", r.CheckpointGrace)
	}
	if r.Validate {
		does += ", validate"
	}
	fault := fmt.Sprintf("%s %v %v %q", r.Condition, r.Status, r.Repair, r.Nodes)
	for _, pattern := range []*regexp.Regexp{r.Reason, r.Message} {
		if pattern != nil {
			fault += " /" + pattern.String() + "/"
		}
	}
	return fmt.Sprintf("%s: %s for %s: %s until clear for %s", r.Name, fault, r.For, does, r.ClearAfter)
}
