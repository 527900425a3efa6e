package health

import (
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
)

// A policy that the remediator has not read three minutes after its change is a problem, and so is one that only this command knows
// to be invalid, unless the remediator applies it.
func TestThePolicyInForceCounts(t *testing.T) {
	changed := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	for _, test := range []struct {
		name    string
		after   time.Duration
		invalid string
		applied *conditions.Applied
		want    cli.Level
		seen    string
	}{
		{"in force", time.Hour, "", &conditions.Applied{Policy: "new"}, cli.IsOK, "valid, hash new"},
		{"an older remediator", time.Hour, "", nil, cli.IsOK, "whether the remediator has read it is not known"},
		{"just changed", time.Minute, "", &conditions.Applied{Policy: "old"}, cli.IsWarning, "not read by the remediator yet; hash old stays in force"},
		{"never read", time.Hour, "", &conditions.Applied{Policy: "old"}, cli.IsProblem, "has not read it; hash old stays in force"},
		{"just corrected", time.Minute, "", &conditions.Applied{Policy: "old", Invalid: "line 3"}, cli.IsWarning, "not read by the remediator yet; hash old stays in force"},
		{"invalid", time.Hour, "line 3", &conditions.Applied{Policy: "old", Invalid: "line 3"}, cli.IsProblem, "invalid, changed 60m ago: line 3; hash old stays in force"},
		{"none since the start", time.Hour, "line 3", &conditions.Applied{Invalid: "line 3"}, cli.IsProblem, "none is in force: nothing is quarantined or released"},
		{"a newer policy than this command knows", time.Hour, "line 3", &conditions.Applied{Policy: "new"}, cli.IsWarning, "hash new is in force, but this command cannot read it: line 3"},
		{"a newer policy than the remediator knows", time.Hour, "", &conditions.Applied{Policy: "old", Invalid: "line 9"}, cli.IsProblem, "the remediator refuses hash new, changed 60m ago: line 9; hash old stays in force"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := &cli.Target{Namespace: "pitcrew", Now: func() time.Time { return changed.Add(test.after) }}
			h := &Inspection{}
			h.Policy = policyHealth{ConfigMap: "pitcrew-policy", Hash: "new", Invalid: test.invalid, ChangedAt: changed}
			h.applied = test.applied
			if f := policyState(c, h); f.Level != test.want || !strings.Contains(f.Seen, test.seen) {
				t.Errorf("%+v", f)
			}
		})
	}
}
