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
	const rules = "  budget: {maxNodes: 1}\n  rules:\n    gpu-xid:\n      match: {condition: GPUXidError, repair: [Reboot]}\n"
	for _, page := range []string{"handoff.md", "webhooks.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		if err != nil {
			t.Fatal(err)
		}
		shown := block.FindAllSubmatch(text, -1)
		for _, m := range shown {
			spec := string(m[1])
			if strings.Contains(spec, "  rules:\n    gpu-xid:\n") {
				spec = strings.Replace(spec, "  rules:\n    gpu-xid:\n", rules, 1)
			} else {
				spec += rules
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
