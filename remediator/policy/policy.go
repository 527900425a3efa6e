// Package policy says what the remediator does about a NodeCondition: one strictly decoded YAML file, no CRD.
// The file's shape (apiVersion, kind, metadata, spec) would fit one, should it ever be needed.
package policy

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Policy is a policy file, checked and with its defaults filled in.
type Policy struct {
	// MaxNodes is how many nodes may be quarantined at the same time.
	MaxNodes int
	// Rules, the first that matches a condition first: by priority, then by name.
	Rules []Rule
}

// Rule says what to do about one NodeCondition.
type Rule struct {
	Name string

	// Condition and Status are the NodeCondition type and the status that mean a problem.
	Condition corev1.NodeConditionType
	Status    corev1.ConditionStatus
	// Repair lists the classes the rule is for. A rule for a foreign condition has exactly one: the class that is
	// assumed, since only our own messages name one.
	Repair []conditions.Repair
	// Message, when set, must match the condition's message.
	Message *regexp.Regexp
	// Nodes selects the nodes the rule is for.
	Nodes labels.Selector
	// Priority decides between rules that match the same condition; larger first.
	Priority int

	// For is how long the condition must stand before anything is done.
	For time.Duration
	// ClearAfter is how long the condition must be healthy and fresh before the node is released.
	ClearAfter time.Duration
	// UnknownAfter is the age of the condition's heartbeat from which on it says nothing at all.
	UnknownAfter time.Duration

	// AlertOnly rules leave the node as it is.
	AlertOnly bool
	// Taint is what a quarantine puts on the node.
	Taint corev1.Taint
	// RestartJobs restarts the opted-in jobs that have pods on the node while the quarantine stands.
	RestartJobs bool
}

// Rule finds a rule by its name.
func (p *Policy) Rule(name string) (Rule, bool) {
	i := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}, false
	}
	return p.Rules[i], true
}

// Match finds the rule that decides about a condition of a node with the given labels, and the repair class. A
// condition of ours whose message does not follow the grammar has no class and matches no rule: it is not known
// what the node needs.
func (p *Policy) Match(nodeLabels map[string]string, c corev1.NodeCondition) (Rule, conditions.Repair, bool) {
	for _, r := range p.Rules {
		if r.Condition != c.Type || r.Status != c.Status || !r.Nodes.Matches(labels.Set(nodeLabels)) {
			continue
		}
		if r.Message != nil && !r.Message.MatchString(c.Message) {
			continue
		}
		if class := r.class(c); slices.Contains(r.Repair, class) {
			return r, class, true
		}
	}
	return Rule{}, 0, false
}

func (r Rule) class(c corev1.NodeCondition) conditions.Repair {
	if !conditions.Ours(string(c.Type)) {
		return r.Repair[0]
	}
	m, err := conditions.ParseMessage(c.Message)
	if err != nil {
		return 0
	}
	return m.Repair
}
