// Package policy says what the remediator does about a NodeCondition: one strictly decoded YAML file, no CRD.
// The file's shape (apiVersion, kind, metadata, spec) would fit one, should it ever be needed.
package policy

import (
	"math"
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// Policy is a policy file, checked and with its defaults filled in.
type Policy struct {
	// Budget bounds all rules together; every node that is out of service counts, whoever took it out.
	Budget Budget
	// Breaker is nil when none is wanted.
	Breaker *Breaker
	// Correlated is nil when simultaneous faults are taken at their word.
	Correlated *Correlated
	// Restart limits the restarts of jobs.
	Restart Restart
	// JobKinds are the kinds of jobs that can be restarted beside those that are built in.
	JobKinds []JobKind
	// Output says in which other forms the state of nodes is shown.
	Output Output
	// Webhooks are told what becomes of nodes.
	Webhooks []Webhook
	// Rules, the first that matches a condition first: by priority, then by name.
	Rules []Rule
}

// ByHand is what stands for the rule of a quarantine that a person ordered; no rule may be called so.
const ByHand = "by-hand"

// MaxFlaps is the largest [Flaps.Max]: as many closed quarantines as a record remembers, and the open one.
const MaxFlaps = 6

// Budget bounds how many nodes may be out of service: the smaller of both limits, but one node at least, so that a pool
// of three can be helped, too. Only MaxNodes 0 allows none.
type Budget struct {
	MaxNodes, MaxPercent int
	// Scope is a label; nodes with the same value, or without the label, share a budget. Empty: the cluster shares one.
	Scope string
	// Window, when not zero, also counts nodes that were quarantined within it and are back in service.
	Window time.Duration
}

// Output are marks on every node in the form of other projects.
type Output struct {
	// AWS are the labels and the annotation of the AWS GPU cluster health check suite.
	AWS bool
}

// Unlimited lets every node go.
var Unlimited = Budget{MaxNodes: math.MaxInt, MaxPercent: 100}

// Limit is how many nodes of a scope of so many nodes may be out of service.
func (b Budget) Limit(nodes int) int { return min(b.MaxNodes, max(1, nodes*b.MaxPercent/100)) }

// Breaker stops new quarantines, and nothing else, when too many begin.
type Breaker struct {
	// MaxNodes is how many may begin within Window.
	MaxNodes int
	Window   time.Duration
	// CoolDown is how long an open breaker lets nothing through. Then it lets one through every Pace until nothing waits.
	CoolDown, Pace time.Duration
}

// Correlated takes faults that come to many nodes together for a fault of the detector or of what the nodes share.
type Correlated struct {
	// More than MaxPercent of a scope, and at least MinNodes, that turned within Window of one another are suspicious.
	MaxPercent, MinNodes int
	Window               time.Duration
	// Scopes are labels: rack, leaf switch, NVLink domain. The empty one, always there, is the cluster.
	Scopes []string
}

// Flaps makes the Max-th time that a fault comes to a node within Window a quarantine at once, which only a person ends; zero:
// never. A fault that went before its rule's For had passed counts, too.
type Flaps struct {
	Max    int
	Window time.Duration
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
	// Reason and Message, when set, must match those of the condition.
	Reason, Message *regexp.Regexp
	// Nodes selects the nodes the rule is for.
	Nodes labels.Selector
	// Priority decides between rules that match the same condition; larger first.
	Priority int

	// For is how long the condition must stand before anything is done.
	For time.Duration
	// ClearAfter is how long the condition must be healthy and fresh before the node is released.
	ClearAfter time.Duration
	// UnknownAfter is the age of the condition's heartbeat from which on it says nothing at all; or [Never].
	UnknownAfter time.Duration

	// Observe rules say and record what they would do, and leave everything else as it is.
	Observe bool
	// Budget bounds the nodes that this rule has quarantined.
	Budget Budget
	// Flaps says when coming and going is enough.
	Flaps Flaps

	// AlertOnly rules leave the node as it is.
	AlertOnly bool
	// Taint is what a quarantine puts on the node.
	Taint corev1.Taint
	// HandOff is what it puts there besides, that of all rules included.
	HandOff HandOff
	// RestartJobs restarts the opted-in jobs that have pods on the node while the quarantine stands.
	RestartJobs bool
	// CheckpointGrace is how long such a job is given to save its state before it is stopped.
	CheckpointGrace time.Duration
}

// Never is the UnknownAfter of a condition whose writer sends no heartbeats: what it said last is believed for ever.
const Never time.Duration = math.MaxInt64

// Rule finds a rule by its name.
func (p *Policy) Rule(name string) (Rule, bool) {
	i := slices.IndexFunc(p.Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		return Rule{}, false
	}
	return p.Rules[i], true
}

// UnknownAfter is the age from which on a heartbeat of the condition says nothing to any rule; false: no rule names it.
func (p *Policy) UnknownAfter(condition corev1.NodeConditionType) (limit time.Duration, named bool) {
	for _, r := range p.Rules {
		if r.Condition == condition {
			limit, named = max(limit, r.UnknownAfter), true
		}
	}
	return limit, named
}

// Match finds the rule that decides about a condition of a node with the given labels, and the repair class. A
// condition of ours whose message does not follow the grammar has no class and matches no rule: it is not known
// what the node needs.
func (p *Policy) Match(nodeLabels map[string]string, c corev1.NodeCondition) (Rule, conditions.Repair, bool) {
	for _, r := range p.Rules {
		if r.Condition != c.Type || r.Status != c.Status || !r.Nodes.Matches(labels.Set(nodeLabels)) {
			continue
		}
		if !matches(r.Reason, c.Reason) || !matches(r.Message, c.Message) {
			continue
		}
		if class := r.class(c); slices.Contains(r.Repair, class) {
			return r, class, true
		}
	}
	return Rule{}, 0, false
}

func matches(pattern *regexp.Regexp, text string) bool {
	return pattern == nil || pattern.MatchString(text)
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
