package policy

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// What the pages show of a policy is one.
func TestThePoliciesOfThePagesAreValid(t *testing.T) {
	block := regexp.MustCompile("(?s)```yaml\n(spec:\n.*?)```")
	const rule = "  rules:\n    gpu-xid:\n"
	const match = "      match: {condition: GPUXidError, repair: [Reboot]}\n"
	for _, page := range []string{"handoff.md", "policy.md", "webhooks.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		shown := block.FindAllSubmatch(text, -1)
		for _, m := range shown {
			spec := string(m[1])
			if !strings.Contains(spec, "\n  budget:") {
				spec = strings.Replace(spec, "spec:\n", "spec:\n  budget: {maxNodes: 1}\n", 1)
			}
			switch {
			case !strings.Contains(spec, "\n  rules:"):
				spec += rule + match
			case !strings.Contains(spec, "match:"):
				spec = strings.Replace(spec, rule, rule+match, 1)
			}
			if _, err := Parse([]byte(head + spec)); err != nil {
				t.Errorf("%s: %v\n%s", page, err, spec)
			}
		}
		if len(shown) == 0 {
			t.Errorf("%s shows no policy", page)
		}
	}
}
