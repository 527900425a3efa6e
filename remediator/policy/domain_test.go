package policy

import (
	"strings"
	"testing"
	"time"
)

func TestDomains(t *testing.T) {
	const spec = head + "spec:\n  budget: {maxNodes: 1}\n  domains: "
	p, err := Parse([]byte(spec + "[{label: nvidia.com/gpu.clique, window: 30s}, {label: rack, settle: 10s}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []Domain{{"nvidia.com/gpu.clique", 3 * time.Second, 30 * time.Second, nil}, {"rack", 10 * time.Second, 2 * time.Minute, nil}}
	for i, d := range want {
		if got, configured := p.Domain(d.Label); p.Domains[i] != d || !configured || got != d {
			t.Errorf("domain %d is %+v and by its label %+v, want %+v", i, p.Domains[i], got, d)
		}
	}
	if got, configured := p.Domain(""); configured {
		t.Errorf("no label has %+v", got)
	}
	for text, want := range map[string]string{
		"[{settle: 1s}]":                 "line 5: spec.domains[0].label: Required value",
		"[{label: a b}]":                 `line 5: spec.domains[0].label: Invalid value: "a b"`,
		"[{label: rack}, {label: rack}]": `line 5: spec.domains[1].label: Duplicate value: "rack"`,
		"[{label: rack, settle: 0s}]":    "line 5: spec.domains[0].settle: Invalid value",
		"[{label: rack, window: soon}]":  `line 5: spec.domains[0].window: Invalid value: "soon"`,
		"[{label: rack, minimum: 1}]":    "line 5: field minimum not found in spec.domains[0]",
		"{label: nvidia.com/gpu.clique}": "line 5: cannot unmarshal !!map into a list (spec.domains)",
		"nvidia.com/gpu.clique":          "line 5: cannot unmarshal !!str `nvidia.com` into a list (spec.domains)",
	} {
		if got := lines(t, spec+text+"\n"); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

func TestIncidentsOfDomains(t *testing.T) {
	const spec = head + "spec:\n  budget: {maxNodes: 1}\n  domains: [{label: rack, incidents: "
	const ports = "}]\n  rules: {ports: {match: {condition: HCAPortDown, repair: [Inspect]}}}\n"
	for text, want := range map[string]*Incidents{
		"{}":                          {MinNodes: 4, MaxNodes: 72},
		"{minNodes: 2, maxNodes: 18}": {MinNodes: 2, MaxNodes: 18},
	} {
		p, err := Parse([]byte(spec + text + ports))
		if err != nil {
			t.Fatal(err)
		}
		if got := p.Domains[0].Incidents; got == nil || *got != *want || len(p.Warnings) > 0 {
			t.Errorf("%s is %+v, with warnings %q", text, got, p.Warnings)
		}
	}
	for text, want := range map[string]string{
		"{minNodes: 1}":              "line 5: spec.domains[0].incidents.minNodes: Invalid value: 1",
		"{minNodes: 5, maxNodes: 4}": "line 5: spec.domains[0].incidents.minNodes: Invalid value: 5: must be at most maxNodes, which is 4",
	} {
		if got := lines(t, spec+text+ports); len(got) != 1 || !strings.HasPrefix(got[0], want) {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
	for name, rules := range map[string]string{"no rule": "", "a rule that only alerts": "  rules: {ports: {match: {condition: HCAPortDown, repair: [Inspect]}, alertOnly: true}}\n"} {
		p, err := Parse([]byte(spec + "{}}]\n" + rules))
		if err != nil {
			t.Fatal(err)
		}
		if want := "line 5: spec.domains[0].incidents: no rule acts on HCAPortDown"; len(p.Warnings) != 1 || !strings.HasPrefix(p.Warnings[0], want) {
			t.Errorf("%s: %q", name, p.Warnings)
		}
	}
}
