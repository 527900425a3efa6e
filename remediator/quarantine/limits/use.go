package limits

import (
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Use is how much of a budget is used up.
type Use struct {
	// Budget names it: "policy", "soft" or the name of a rule.
	Budget string `json:"budget"`
	// Scope is the label that divides it, and Value the value of this part.
	Scope string `json:"scope,omitempty"`
	Value string `json:"value,omitempty"`
	Used  int    `json:"used"`
	Limit int    `json:"limit"`
	// Nodes use it up, by name.
	Nodes []UsedBy `json:"nodes,omitempty"`
}

// UsedBy is a node that uses up a place of a budget.
type UsedBy struct {
	Node string `json:"node"`
	// Why is what makes it count, for example [Cordoned].
	Why string `json:"why"`
}

// Uses lists the limited budgets of a policy, as [ExceededBudget] counts them: that of the policy, that of its soft
// quarantines and those of its rules. All but that of the policy are left out while no node uses them, and so are the parts
// of a scope. peers are all nodes that are none of the excluded ones.
func Uses(p *policy.Policy, peers Peers, now time.Time) []Use {
	var uses []Use
	names := onReady(p)
	add := func(name string, b budget) {
		for _, value := range b.values(peers, now) {
			labels := map[string]string{b.Scope: value}
			if b.Scope == "" || value == "" {
				labels = nil
			}
			used, nodes := b.count(labels, peers, now)
			if used == 0 && (name != policyBudget || b.Scope != "") {
				continue
			}
			uses = append(uses, Use{name, b.Scope, value, used, b.Limit(nodes), b.nodes(labels, peers, now)})
		}
	}
	if !p.Budget.IsUnlimited() {
		add(policyBudget, budget{Budget: p.Budget, onReady: names})
		add("soft", budget{Budget: p.Budget, soft: true, onReady: names})
	}
	for _, r := range p.Rules {
		if !r.AlertOnly && !r.Budget.IsUnlimited() {
			add(r.Name, budget{Budget: r.Budget, rule: r.Name, onReady: names})
		}
	}
	return uses
}

// policyBudget is the name of the policy's budget in [Use].
const policyBudget = "policy"

// values are those of the budget's scope that may have a use; a single empty one without a scope.
func (b budget) values(peers Peers, now time.Time) []string {
	if b.Scope == "" {
		return []string{""}
	}
	var values []string
	for p := range peers.notable(now.Add(-max(b.Window, GoneFor))) {
		values = append(values, p.Labels[b.Scope])
	}
	slices.Sort(values)
	return slices.Compact(values)
}
