// Package limits decides whether one more node may be taken out of service: budgets, the breaker, and faults that come to
// many nodes together. It is pure.
package limits

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// anyRule means all rules together.
const anyRule = ""

// Peer is what the limits need to know about another node.
type Peer struct {
	// Labels are the node's; the scopes of budgets and correlation are among them.
	Labels map[string]string
	// OutOfService is set while the node is quarantined, cordoned or not Ready.
	OutOfService bool
	// Rule has quarantined it; empty when none has.
	Rule string
	// Starts are those of the quarantines that its record remembers.
	Starts []Start
	// Waiting is set while a due problem that is enforced has not quarantined the node.
	Waiting bool
	// ProblemSince is the lastTransitionTime of each condition that matches a rule.
	ProblemSince map[corev1.NodeConditionType]time.Time
}

// Start is the start of a quarantine.
type Start struct {
	// Rule decided on the taint.
	Rule string
	At   time.Time
}

// sharesScope tells whether a peer and the node have the same value of a label, or neither has it. All nodes share the
// empty scope, the cluster.
func (p Peer) sharesScope(scope string, labels map[string]string) bool {
	return scope == "" || p.Labels[scope] == labels[scope]
}

// ExceededBudget describes the budget that has no room for one more quarantine by the rule: that of the rule, or that of the
// policy. It is empty when both have room. labels are those of the node.
func ExceededBudget(p *policy.Policy, rule policy.Rule, labels map[string]string, peers []Peer, now time.Time) string {
	for _, b := range []struct {
		of     string
		budget policy.Budget
	}{{rule.Name, rule.Budget}, {anyRule, p.Budget}} {
		if used, limit := budgetUse(b.budget, b.of, labels, peers, now); used >= limit {
			return fmt.Sprintf("%d nodes are out of service and the budget%s is %d", used, budgetName(b.of, b.budget), limit)
		}
	}
	return ""
}

func budgetName(rule string, b policy.Budget) string {
	of := ""
	if rule != anyRule {
		of = " of rule " + rule
	}
	if b.Scope != "" {
		of += " by " + b.Scope
	}
	return of
}

// budgetUse counts the peers that use up a budget, and returns how many may. A rule's own budget counts what it quarantined;
// that of all rules counts every node that is out of service, for whatever reason.
func budgetUse(b policy.Budget, rule string, labels map[string]string, peers []Peer, now time.Time) (used, limit int) {
	nodes := 1
	for _, p := range peers {
		if !p.sharesScope(b.Scope, labels) {
			continue
		}
		nodes++
		out := p.OutOfService
		if rule != anyRule {
			out = p.Rule == rule
		}
		if out || b.Window > 0 && slices.ContainsFunc(p.Starts, func(s Start) bool {
			return (rule == anyRule || s.Rule == rule) && now.Sub(s.At) < b.Window
		}) {
			used++
		}
	}
	return used, b.Limit(nodes)
}
