package status

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/cli"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/health"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

// addBudgets counts what the budgets of the policy in file, or of the remediator's, have room for. It returns that policy; nil: it is
// not known. breaker may be nil.
func addBudgets(
	c *cli.Target, f *Fleet, h *health.Inspection, nodes []corev1.Node, breaker *corev1.ConfigMap, file string,
) (*policy.Policy, error) {
	p := h.Parsed
	if file != "" {
		opened, err := policy.Open(file)
		if err != nil {
			return nil, err
		}
		p = opened.Policy()
	}
	if p == nil {
		f.BudgetsUnknown = h.Why
	} else {
		now := c.Now().UTC()
		f.Budgets = limits.Uses(p, simulate.Peers(p, nodes, breaker, now), now)
	}
	f.addFacts(f.budgetFacts()...)
	return p, nil
}

// budgetFacts are the lines about the budgets.
func (f *Fleet) budgetFacts() []cli.Finding {
	const label = "budget"
	if f.BudgetsUnknown != "" {
		return []cli.Finding{cli.NotKnown(label, f.BudgetsUnknown)}
	}
	var facts []cli.Finding
	for _, u := range f.Budgets {
		name := u.Budget
		if u.Scope != "" {
			name += fmt.Sprintf(", %s=%s", u.Scope, u.Value)
		}
		var nodes []string
		for _, n := range u.Nodes {
			nodes = append(nodes, n.Node+" ("+n.Why+")")
		}
		fact := cli.Good(label, "%s: %d/%d nodes", name, u.Used, u.Limit)
		if len(nodes) > 0 {
			fact.Seen += ": " + strings.Join(nodes, ", ")
		}
		if u.Used >= u.Limit {
			fact.Level = cli.IsWarning
		}
		facts = append(facts, fact)
	}
	return facts
}
