package policy

import "testing"

// Each text breaks after four good lines. The error names the line of the mistake and what was expected there.
func TestATextThatIsNoYAMLIsRefusedWithTheLineOfTheMistake(t *testing.T) {
	const good = head + "spec:\n  budget: {maxNodes: 1}\n"
	for name, test := range map[string]struct{ text, want string }{
		"a field between two levels": {good + "  rules:\n    gpu:\n      match:\n        condition: GPUXidError\n     clearAfter: 10m\n",
			`line 9: "clearAfter" is indented by 5 spaces; expected 4 as line 6 (gpu) or 6 as line 7 (match) or 8 as line 8 (condition)`},
		"a field less deep than the others": {good + "  rules:\n    gpu:\n        match:\n          condition: GPUXidError\n      clearAfter: 10m\n\n    other: {}\n",
			`line 9: "clearAfter" is indented by 6 spaces; expected 4 as line 6 (gpu) or 8 as line 7 (match) or 10 as line 8 (condition)`},
		"after a comment and a flow": {good + "  rules:\n    gpu:\n      match: {condition: GPUXidError,\n        repair: [Reboot]}\n   # a comment\n     for: 1m\n",
			`line 10: "for" is indented by 5 spaces; expected 4 as line 6 (gpu) or 6 as line 7 (match) or 8 as line 8 (repair)`},
		"a part with one space": {good + " rules:\n    gpu: {}\n", `line 5: "rules" is indented by 1 spaces; expected 0 as line 3 (spec) or 2 as line 4 (budget)`},
		"a part without any":    {good + "rules:\n  gpu: {}\n", "line 5: field rules not found in the file; it is a field of spec: indent it"},
		"deeper than a value": {good + "  rules:\n    gpu:\n      for: 1m\n        clearAfter: 10m\n",
			`line 8: "clearAfter" is indented by 8 spaces, but line 7 (for) has a value already; expected 6 as line 7`},
		"the first line":                {"  apiVersion: x\nkind: y\n", `line 2: "kind" is indented by 0 spaces; expected 2 as line 1 (apiVersion)`},
		"a list item":                   {good + "  jobKinds:\n    - kind: a\n   - kind: b\n", `line 7: "- kind" is indented by 3 spaces; expected 0 as line 3 (spec) or 2 as line 5 (jobKinds) or 4 as line 6 (- kind)`},
		"a tab":                         {good + "  rules:\n  \tgpu: {}\n", "line 6: the line is indented with a tab: indent it with spaces"},
		"no colon":                      {good + "  rules:\n    gpu:\n      match\n        condition: GPUXidError\n", `line 7: expected a colon and a space after "match"`},
		"no colon before a value":       {good + "  rules:\n    gpu:\n      for 1m\n      clearAfter: 10m\n", `line 7: expected a colon and a space after "for"`},
		"no space after the colon":      {good + "  rules:\n    gpu:\n      for:1m\n      clearAfter: 10m\n", `line 7: expected a space after the colon in "for:1m"`},
		"a key twice":                   {good + "  budget: {maxNodes: 2}\n", `line 5: mapping key "budget" already defined at line 4`},
		"an open quote":                 {good + "  rules:\n    gpu:\n      message: \"Xid\n      for: 1m\n", "line 7: the quote that opens here is not closed"},
		"an open bracket":               {good + "  rules:\n    gpu:\n      match: {condition: GPUXidError\n      for: 1m\n", "line 7: the bracket that opens here is not closed, or what follows in it lacks a comma"},
		"a colon in a value":            {good + "  rules:\n    gpu:\n      message: Xid: 79\n", "line 7: a value with a colon and a space in it must be in quotes"},
		"a value with a reserved start": {good + "  rules:\n    gpu:\n      message: @x\n", `line 7: a value that begins with "@" must be in quotes`},
		"no name":                       {good + "  rules:\n    gpu:\n      message: |\n      text\n", "line 8: expected a name and a colon followed by a space, as in `mode: observe`, and not \"text\""},
		"a second document":             {good + "---\nspec: {}\n", "line 5: more than one YAML document"},
		"a list instead of a mapping":   {good + "  rules:\n  - gpu: {}\n", "line 6: spec.rules: is a list; write a mapping"},
	} {
		if _, err := Parse([]byte(test.text)); err == nil || err.Error() != test.want {
			t.Errorf("%s:\n got %v\nwant %s", name, err, test.want)
		}
	}
}
