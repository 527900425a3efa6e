// Package limits decides whether one more node may be taken out of service: budgets, the breaker, and faults that come to
// many nodes together. It is pure.
package limits

import (
	"cmp"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// The values of [Peer.Why] and of [Use.Nodes].
const (
	Quarantined = "quarantined"
	Cordoned    = "cordoned"
	NotReady    = "not Ready"
	// Gone is a node that was deleted or replaced after a quarantine began, or is skipped since, or whose record was removed.
	Gone = "gone"
	// Recent is a node that is back in service, within the window of a budget.
	Recent = "quarantined before"
)

// Peer is what the limits need to know about another node.
type Peer struct {
	// Name is the node's.
	Name string
	// Labels are the node's; the scopes of budgets and correlation are among them.
	Labels map[string]string
	// OutOfService is set while the node is quarantined, cordoned or not Ready. A soft quarantine alone does not count.
	OutOfService bool
	// Why is what took the node out of service.
	Why string
	// ParkedSince is since when a node that is not quarantined has been cordoned or not Ready; zero when that is not known.
	ParkedSince time.Time
	// Unchecked is set for a node without the hardware that the policy checks.
	Unchecked bool
	// Gone is set for what is remembered of a node that is no peer any more.
	Gone bool
	// Rule has quarantined it; empty when none has.
	Rule string
	// Soft is set while the node is quarantined and the taint leaves it in service, see [IsSoft].
	Soft bool
	// Starts are those of the quarantines that its record remembers, and those in [Memory].
	Starts []Start
	// Waiting is when due problems that are enforced and have not taken the node out of service are current, one span for each.
	Waiting []Span
	// HeldFor is the node whose broken link has made the faults for which the node is quarantined; empty: it is quarantined for its own.
	// While that node is quarantined, both use up one place of a budget.
	HeldFor string
	// Domain is the node's, as far as it is known, and Link its role there.
	Domain Domain
	Link   LinkFault
	// Failed is when the first and when the last of two witnesses of the node began to say that it has failed, see [policy.Incidents]; the
	// zero value: they do not.
	Failed Span
	// ProblemSince is the lastTransitionTime of each condition that matches a rule.
	ProblemSince map[corev1.NodeConditionType]time.Time
	// Claims are [node.Claims] of the node.
	Claims []node.Claim
}

// AddProblem notes a condition that matches a rule.
func (p *Peer) AddProblem(c corev1.NodeCondition) {
	if p.ProblemSince == nil { // most nodes have none
		p.ProblemSince = map[corev1.NodeConditionType]time.Time{}
	}
	p.ProblemSince[c.Type] = c.LastTransitionTime.Time
}

// Start is the start of a quarantine.
type Start struct {
	// Rule decided on the taint.
	Rule string
	At   time.Time
	// Soft is set when the taint left the node in service.
	Soft bool
	// Gone is set when no record on a node has it.
	Gone bool
	// Proven is set when more than the annotation of a node, which its kubelet can write, tells of it: [Memory], or the taint.
	Proven bool
	// Incident is the domain as one of whose failed nodes the node was quarantined; the zero value: for itself. Only [Memory] tells of it.
	Incident Domain
}

// isWithin reports whether the start was within a time before now. A start in the future was never: whoever forges one could
// else use up a limit until then.
func (s Start) isWithin(window time.Duration, now time.Time) bool {
	age := now.Sub(s.At)
	return age >= -conditions.MaxClockSkew && age < window
}

// IsSoft reports whether a taint leaves the node in service: the scheduler only prefers others.
func IsSoft(effect corev1.TaintEffect) bool { return effect == corev1.TaintEffectPreferNoSchedule }

// sharesScope reports whether a peer and the node have the same value of a label, or neither has it. All nodes share the
// empty scope, the cluster.
func (p *Peer) sharesScope(scope string, labels map[string]string) bool {
	return scope == "" || p.Labels[scope] == labels[scope]
}

// Held is the quarantine that a node has already; the zero value is none.
type Held struct {
	// Rule decided on its taint.
	Rule string
	// Soft is set when the taint leaves the node in service.
	Soft bool
}

// TakesOut reports whether the quarantine by a rule would take the node out of service.
func (h Held) TakesOut(r policy.Rule) bool {
	return (h.Rule == "" || h.Soft) && !IsSoft(r.Taint.Effect)
}

// budget is one budget of a policy: that of a rule, that of all soft quarantines or, with neither, that of all others.
type budget struct {
	policy.Budget
	rule string
	// soft is set, too, for that of a rule with a soft taint.
	soft bool
	// forNotReady is set when a node asks for the place that is not Ready.
	forNotReady bool
	// onReady names the policy's rules on Ready.
	onReady []string
}

// onReady names the rules about nodes that are not Ready.
func onReady(p *policy.Policy) (names []string) {
	for _, r := range p.Rules {
		if r.Condition == corev1.NodeReady {
			names = append(names, r.Name)
		}
	}
	return names
}

// asked are the budgets in which a quarantine by the rule needs a place that the node does not have yet.
func asked(p *policy.Policy, held Held, rule policy.Rule) (list []budget) {
	names := onReady(p)
	own := !rule.Budget.IsUnlimited()
	if own && held.Rule != rule.Name {
		list = append(list, budget{Budget: rule.Budget, rule: rule.Name, soft: IsSoft(rule.Taint.Effect), onReady: names})
	}
	switch {
	case held.TakesOut(rule):
		list = append(list, budget{Budget: p.Budget, forNotReady: rule.Condition == corev1.NodeReady, onReady: names})
	case held.Rule == "" && !own:
		list = append(list, budget{Budget: p.Budget, soft: true, onReady: names})
	}
	return slices.DeleteFunc(list, func(b budget) bool { return b.IsUnlimited() })
}

// ExceededBudget describes the budget that has no room for a quarantine by the rule of a node with labels, and names the
// nodes that use it up. It is empty when all have room: the budget of the rule and that of the policy. held is the
// quarantine that the node has already.
func ExceededBudget(p *policy.Policy, held Held, rule policy.Rule, labels map[string]string, peers Peers, now time.Time) string {
	for _, b := range asked(p, held, rule) {
		used, nodes := b.count(labels, peers, now)
		limit := b.Limit(nodes + 1)
		if used < limit {
			continue
		}
		return fmt.Sprintf("%d nodes %s and the budget%s is %d%s", used, b.verb(), b.name(), limit, listed(b.nodes(labels, peers, now)))
	}
	return ""
}

func (b budget) verb() string {
	if b.soft {
		return "are to be avoided"
	}
	return "are out of service"
}

func (b budget) name() string {
	of := ""
	switch {
	case b.rule != "":
		of = " of rule " + b.rule
	case b.soft:
		of = " of nodes to be avoided"
	}
	if b.Scope != "" {
		of += " by " + b.Scope
	}
	return of
}

// maxListed is how many nodes a message names.
const maxListed = 5

// listed names nodes for a message.
func listed(nodes []UsedBy) string {
	var names []string
	for _, n := range nodes {
		if n.Node != "" {
			names = append(names, n.Node+" ("+n.Why+")")
		}
	}
	if len(names) == 0 {
		return ""
	}
	more := ""
	if n := len(names) - maxListed; n > 0 {
		names, more = names[:maxListed], fmt.Sprintf(" and %d more", n)
	}
	return ": " + strings.Join(names, ", ") + more
}

// count counts the peers that use up the budget in the scope of labels, and the nodes that the limit is a share of: those with
// checked hardware or, where nothing is known of any node's hardware, all.
func (b budget) count(labels map[string]string, peers Peers, now time.Time) (used, nodes int) {
	all := peers.in(b.Scope, labels)
	nodes = all.checked
	if all.checked == 0 {
		nodes = all.unchecked
	}
	for p := range b.users(labels, peers, now) {
		used++
		if p.Gone || p.Unchecked && all.checked > 0 {
			nodes++
		}
	}
	return used, nodes
}

// nodes names the peers that use up the budget in the scope of labels.
func (b budget) nodes(labels map[string]string, peers Peers, now time.Time) (list []UsedBy) {
	for p, why := range b.users(labels, peers, now) {
		list = append(list, UsedBy{p.Name, why})
	}
	slices.SortFunc(list, func(a, b UsedBy) int { return cmp.Compare(a.Node, b.Node) })
	return list
}

// users are the peers that use up the budget in the scope of labels, and why. Of the nodes of one unit it is one.
func (b budget) users(labels map[string]string, peers Peers, now time.Time) iter.Seq2[*Peer, string] {
	return func(yield func(*Peer, string) bool) {
		var counted []Domain
		for p := range peers.notable(now.Add(-max(b.Window, GoneFor))) {
			if !p.sharesScope(b.Scope, labels) || peers.unit.covers(p) || p.HeldFor != "" && peers.IsQuarantined(p.HeldFor) {
				continue
			}
			why, incident := b.use(p, now)
			if incident != (Domain{}) {
				if slices.Contains(counted, incident) {
					continue
				}
				counted = append(counted, incident)
				why += ", with others of " + incident.String()
			}
			if why != "" && !yield(p, why) {
				return
			}
		}
	}
}

// use is why a peer uses up a place of the budget; empty when it does not. incident is that which has the place, if one has. A rule's
// own budget counts what it quarantined; that of all rules counts every node that is out of service, for whatever reason, unless it is
// parked.
func (b budget) use(p *Peer, now time.Time) (why string, incident Domain) {
	switch {
	case b.rule != "" && p.Rule == b.rule, b.rule == "" && b.soft && p.Soft:
		return Quarantined, p.incident()
	case b.isOfOtherHardware(p, p.Rule):
	case b.forNotReady && p.Why == NotReady:
		// To quarantine a node that is out of service already takes nothing away, so others in that state do not hold it back.
	case b.rule == "" && !b.soft && p.OutOfService && (!p.Unchecked || p.Why == Quarantined) && !b.isParked(p, now):
		return cmp.Or(p.Why, Quarantined), p.incident()
	}
	return b.useOfStarts(p, now)
}

// useOfStarts is [budget.use] of a peer that uses up a place by its earlier quarantines alone.
func (b budget) useOfStarts(p *Peer, now time.Time) (why string, incident Domain) {
	for _, s := range p.Starts {
		if b.rule != "" && s.Rule != b.rule || b.rule == "" && s.Soft != b.soft {
			continue
		}
		if b.isOfOtherHardware(p, s.Rule) || s.Gone && slices.Contains(b.onReady, s.Rule) {
			continue // the machine was lost before, and whoever replaces it gives another
		}
		if s.Gone && s.isWithin(max(b.Window, GoneFor), now) {
			return Gone, s.Incident
		}
		if s.isWithin(b.Window, now) {
			return Recent, s.Incident
		}
	}
	return "", Domain{}
}

// isOfOtherHardware reports whether a rule on Ready has quarantined a node without checked hardware, and the place is asked for by a
// rule about that hardware: without the quarantine, the node would not count.
func (b budget) isOfOtherHardware(p *Peer, rule string) bool {
	return b.rule == "" && !b.forNotReady && p.Unchecked && slices.Contains(b.onReady, rule)
}

func (b budget) isParked(p *Peer, now time.Time) bool {
	return !p.ParkedSince.IsZero() && b.ParkedAfter > 0 && now.Sub(p.ParkedSince) >= b.ParkedAfter
}
