package main

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/simulate"
)

// addBudgets counts what the budgets of the policy in file, or of the remediator's, have room for. It returns that policy; nil: it is
// not known. breaker may be nil.
func (c *target) addBudgets(f *fleet, h *inspection, nodes []corev1.Node, breaker *corev1.ConfigMap, file string) (*policy.Policy, error) {
	p := h.policy
	if file != "" {
		opened, err := policy.Open(file)
		if err != nil {
			return nil, err
		}
		p = opened.Policy()
	}
	if p == nil {
		f.BudgetsUnknown = h.why
	} else {
		now := c.now().UTC()
		f.Budgets = limits.Uses(p, simulate.Peers(p, nodes, breaker, now), now)
	}
	f.addFacts(f.budgetFacts()...)
	return p, nil
}

// budgetFacts are the lines about the budgets.
func (f *fleet) budgetFacts() []finding {
	const label = "budget"
	if f.BudgetsUnknown != "" {
		return []finding{notKnown(label, f.BudgetsUnknown)}
	}
	var facts []finding
	for _, u := range f.Budgets {
		name := u.Budget
		if u.Scope != "" {
			name += fmt.Sprintf(", %s=%s", u.Scope, u.Value)
		}
		var nodes []string
		for _, n := range u.Nodes {
			nodes = append(nodes, n.Node+" ("+n.Why+")")
		}
		fact := good(label, "%s: %d/%d nodes", name, u.Used, u.Limit)
		if len(nodes) > 0 {
			fact.Seen += ": " + strings.Join(nodes, ", ")
		}
		if u.Used >= u.Limit {
			fact.Level = isWarning
		}
		facts = append(facts, fact)
	}
	return facts
}
