package status

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

func TestBudgetsAreUsedOfLimitWithNames(t *testing.T) {
	f := Fleet{Budgets: []limits.Use{
		{Budget: "policy", Used: 2, Limit: 3, Nodes: []limits.UsedBy{{Node: "n1", Why: limits.Quarantined}, {Node: "n2", Why: limits.Cordoned}}},
		{Budget: "soft", Scope: "rack", Value: "r1\x1b[2J", Limit: 1},
	}}
	var out strings.Builder
	cli.PrintFacts(&out, append(f.budgetFacts(), (&Fleet{BudgetsUnknown: "no\npolicy"}).budgetFacts()...), false)
	const want = "BUDGET      policy: 2/3 nodes: n1 (quarantined), n2 (cordoned)\n" +
		"            soft, rack=r1�[2J: 0/1 nodes\n" +
		"            not known: no policy\n"
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
}
