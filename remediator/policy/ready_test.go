package policy

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// withReady is a policy with one rule, which has the given fields of match, and with or without the guard against common causes.
func withReady(match, more string, guarded bool) string {
	guard := ""
	if guarded {
		guard = "  correlated: {maxPercent: 50, minNodes: 4, window: 2m}\n"
	}
	return head + "spec:\n  budget: {maxNodes: 1}\n" + guard + "  rules:\n    r:\n      match: {repair: [Inspect], " + match + "}\n" + more
}

func TestARuleMayNameTheStatusesOfANodeThatIsNotReady(t *testing.T) {
	for name, test := range map[string]struct {
		status string
		want   []corev1.ConditionStatus
	}{
		"one value":     {`status: Unknown`, []corev1.ConditionStatus{"Unknown"}},
		"a list of one": {`status: ["False"]`, []corev1.ConditionStatus{"False"}},
		"a list":        {`status: [Unknown, "False"]`, []corev1.ConditionStatus{"Unknown", "False"}},
		"values that YAML 1.1 takes for a boolean": {`status: [Unknown, False]`, []corev1.ConditionStatus{"Unknown", "False"}},
		"a null in the list":                       {`status: [~, Unknown]`, []corev1.ConditionStatus{"Unknown"}},
	} {
		r := parse(t, withReady("condition: Ready, "+test.status, "", true)).Rules[0]
		if !slices.Equal(r.Status, test.want) {
			t.Errorf("%s: %q, want %q", name, r.Status, test.want)
		}
		if r.UnknownAfter != Never {
			t.Errorf("%s: a heartbeat becomes too old after %s", name, r.UnknownAfter)
		}
	}
}

func TestAnEmptyStatusIsTheDefault(t *testing.T) {
	for _, status := range []string{`status: ""`, "status: ~"} {
		if r := parse(t, withReady("condition: KernelDeadlock, "+status, "", false)).Rules[0]; !slices.Equal(r.Status, []corev1.ConditionStatus{"True"}) {
			t.Errorf("%s: %q", status, r.Status)
		}
	}
}

func TestWhatNoRuleOnAStatusMayBeIsRefused(t *testing.T) {
	const ready = "condition: Ready, "
	for name, test := range map[string]struct {
		match, more string
		guarded     bool
		want        string
	}{
		"Unknown of another condition": {`condition: KernelDeadlock, status: [Unknown, "False"]`, "", true,
			`line 8: spec.rules[r].match.status: Invalid value: ["Unknown","False"]: must not have Unknown, which is no fault but no information`},
		"Unknown of one of ours": {"condition: GPUXidError, status: Unknown", "", true, "must be True: only then does the message of GPUXidError name a class"},
		"two of one of ours":     {`condition: GPUXidError, status: ["True", "False"]`, "", true, "must be True: only then does the message of GPUXidError name a class"},
		"True of Ready":          {ready + `status: ["True", Unknown]`, "", true, "must be Unknown or False, or both: a node that is Ready has no fault"},
		"no status of Ready":     {ready, "", true, "must be Unknown or False, or both: a node that is Ready has no fault"},
		"Unknown and no guard":   {ready + "status: Unknown", "", false, `spec.rules[r].match.status: Invalid value: ["Unknown"]: needs spec.correlated`},
		"unknownAfter":           {ready + "status: Unknown", "      unknownAfter: 5m\n", true, "line 9: spec.rules[r].unknownAfter: Forbidden: is always never for condition Ready"},
		"two classes":            {"condition: Ready, status: Unknown, repair: [Inspect, Reboot]", "", true, "already defined"},
		"an empty list":          {"condition: KernelDeadlock, status: []", "", true, "into a value or a list of at least one (spec.rules[r].match.status)"},
		"a list of nothing":      {"condition: KernelDeadlock, status: [~]", "", true, "into a value or a list of at least one (spec.rules[r].match.status)"},
		"checkpointGrace":        {ready + "status: Unknown", "      restartJobs: true\n      checkpointGrace: 10m\n", true, "spec.rules[r].checkpointGrace: Forbidden: has no effect for condition Ready"},
		"no status":              {ready + "status: Gone", "", true, `spec.rules[r].match.status: Unsupported value: "Gone": supported values: "True", "False", "Unknown"`},
		"no status in a list":    {ready + "status: [Unknown, gone]", "", true, `spec.rules[r].match.status[1]: Unsupported value: "gone"`},
		"a mapping":              {ready + "status: {a: b}", "", true, "cannot unmarshal !!map into a list (spec.rules[r].match.status)"},
	} {
		if got := strings.Join(lines(t, withReady(test.match, test.more, test.guarded)), "\n"); !strings.Contains(got, test.want) {
			t.Errorf("%s: got %s, want %s", name, got, test.want)
		}
	}
}

func TestARuleOnReadyThatOnlyReportsOrSeesNoUnknownNeedsNoGuard(t *testing.T) {
	parse(t, withReady("condition: Ready, status: Unknown", "      alertOnly: true\n", false))
	parse(t, withReady(`condition: Ready, status: "False"`, "", false))
}

func TestEachOfSeveralStatusesMatches(t *testing.T) {
	p := parse(t, withReady(`condition: Ready, status: [Unknown, "False"]`, "", true))
	for status, want := range map[corev1.ConditionStatus]bool{"Unknown": true, "False": true, "True": false} {
		if _, _, ok := p.Match(nil, corev1.NodeCondition{Type: corev1.NodeReady, Status: status}); ok != want {
			t.Errorf("%s matches: %v", status, ok)
		}
	}
}
