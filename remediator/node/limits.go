package node

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Peer is what the limits need to know of another node. Nodes that are nobody's business here are no peers.
type Peer struct {
	Labels map[string]string
	// Out is set while the node is out of service: quarantined, cordoned or not Ready.
	Out bool
	// Rule has quarantined it; empty when none has.
	Rule string
	// Began are the quarantines that its record remembers.
	Began []Began
	// Waits is set while a due cause is held back that stands and is not only observed.
	Waits bool
	// Turned says since when each condition that a rule matches has been as it is.
	Turned map[corev1.NodeConditionType]time.Time
}

// Began is the beginning of a quarantine.
type Began struct {
	Rule string
	At   time.Time
}

// BreakerState is set while the breaker is open. It is kept in a ConfigMap.
type BreakerState struct {
	OpenedAt time.Time `json:"openedAt"`
}

// peerOf sums a node up.
func peerOf(p *policy.Policy, n *corev1.Node) Peer {
	peer := Peer{Labels: n.Labels, Out: n.Spec.Unschedulable, Turned: map[corev1.NodeConditionType]time.Time{}}
	for _, c := range n.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status != corev1.ConditionTrue {
			peer.Out = true
		}
		if _, _, ok := p.Match(n.Labels, c); ok {
			peer.Turned[c.Type] = c.LastTransitionTime.Time
		}
	}
	record, err := RecordOf(n)
	switch {
	case err != nil:
		peer.Out = true // it may well be quarantined, so it counts
		return peer
	case record == nil:
		return peer
	case record.Phase == Quarantined:
		peer.Out, peer.Rule = true, record.Taint.Rule
	case record.Phase == Suspect:
		peer.Waits = slices.ContainsFunc(record.Causes, func(c Cause) bool {
			rule, ok := p.Rule(c.Rule)
			_, stands := peer.Turned[c.Condition]
			return c.Due && stands && ok && !rule.Observe
		})
	}
	for _, q := range append([]Quarantine{record.Quarantine}, record.Last...) {
		if q.Taint != nil {
			peer.Began = append(peer.Began, Began{q.Taint.Rule, q.QuarantinedAt})
		}
	}
	return peer
}

// heldBack tells why the problem may not quarantine the node now; nil when it may.
func (d *decider) heldBack(p problem) *Blocked {
	if why := d.correlated(p); why != "" {
		d.wake(d.now.Add(recheck))
		return &Blocked{p.rule.Name, BlockedBySuspicion, fmt.Sprintf("%s, but %s", describe(p), why)}
	}
	for _, b := range []struct {
		of     string
		budget policy.Budget
	}{{p.rule.Name, p.rule.Budget}, {anyRule, d.policy.Budget}} {
		if used, limit := d.used(b.budget, b.of); used >= limit {
			d.wake(d.now.Add(retryBlocked))
			return &Blocked{p.rule.Name, BlockedByBudget, fmt.Sprintf("%s, but %d nodes are out of service and the budget%s is %d",
				describe(p), used, budgetOf(b.of, b.budget), limit)}
		}
	}
	if why := d.broken(); why != "" {
		return &Blocked{p.rule.Name, BlockedByBreaker, fmt.Sprintf("%s, but %s", describe(p), why)}
	}
	return nil
}

func budgetOf(rule string, b policy.Budget) string {
	of := ""
	if rule != anyRule {
		of = " of rule " + rule
	}
	if b.Scope != "" {
		of += " by " + b.Scope
	}
	return of
}

// used counts the nodes that use a budget up, and says how many may. A rule's own budget counts what it did; that of all
// rules counts every node that is out of service, whoever took it out.
func (d *decider) used(b policy.Budget, rule string) (used, limit int) {
	nodes := 1
	for _, p := range d.Peers {
		if !d.shares(b.Scope, p) {
			continue
		}
		nodes++
		out := p.Out
		if rule != anyRule {
			out = p.Rule == rule
		}
		if out || b.Window > 0 && slices.ContainsFunc(p.Began, func(began Began) bool {
			return (rule == anyRule || began.Rule == rule) && d.now.Sub(began.At) < b.Window
		}) {
			used++
		}
	}
	return used, b.Limit(nodes)
}

// shares tells whether a peer is in the same scope as the node.
func (d *decider) shares(scope string, p Peer) bool {
	return scope == "" || p.Labels[scope] == d.Node.Labels[scope]
}

// correlated says why a fault is rather one of the detector, or of what the nodes share. It needs no memory: the nodes
// themselves show since when they have been faulty, so the suspicion lasts until their conditions change.
func (d *decider) correlated(p problem) string {
	guard := d.policy.Correlated
	if guard == nil {
		return ""
	}
	self := p.condition.LastTransitionTime.Time
	for _, scope := range guard.Scopes {
		if _, labelled := d.Node.Labels[scope]; scope != "" && !labelled {
			continue
		}
		nodes, turned := 1, []time.Time{self}
		for _, peer := range d.Peers {
			if !d.shares(scope, peer) {
				continue
			}
			nodes++
			if at, ok := peer.Turned[p.condition.Type]; ok && at.Sub(self).Abs() <= guard.Window {
				turned = append(turned, at)
			}
		}
		if count := together(turned, self, guard.Window); count >= guard.MinNodes && count*100 > nodes*guard.MaxPercent {
			where := "the cluster"
			if scope != "" {
				where = scope + "=" + d.Node.Labels[scope]
			}
			return fmt.Sprintf("%d of %d nodes of %s turned within %s: the detector or what they share is suspected", count, nodes, where, guard.Window)
		}
	}
	return ""
}

// together is the largest number of times within one window that has self in it.
func together(times []time.Time, self time.Time, window time.Duration) int {
	slices.SortFunc(times, time.Time.Compare)
	most, first := 0, 0
	for last, at := range times {
		for at.Sub(times[first]) > window {
			first++
		}
		if !times[first].After(self) && !at.Before(self) {
			most = max(most, last-first+1)
		}
	}
	return most
}

// broken opens the breaker when too many quarantines began, and says why an open one lets nothing through. Half-open, it
// lets one node through every Pace: by what that node is like then, so that no backlog is worked off.
func (d *decider) broken() string {
	b := d.policy.Breaker
	if b == nil {
		return ""
	}
	began, latest := d.began(b.Window)
	if d.Breaker == nil {
		if began < b.MaxNodes {
			return ""
		}
		d.SetBreaker = &BreakerState{OpenedAt: d.now}
		d.wake(d.now.Add(b.CoolDown))
		return fmt.Sprintf("%d quarantines began within %s: the breaker opens", began, b.Window)
	}
	next := d.Breaker.OpenedAt.Add(b.CoolDown)
	if paced := latest.Add(b.Pace); paced.After(next) {
		next = paced
	}
	if d.now.Before(next) {
		d.wake(next)
		d.wake(d.now.Add(retryBlocked)) // a person may close it
		return "the breaker is open"
	}
	return ""
}

// closeBreaker closes a breaker that has cooled down once no node waits for it.
func (d *decider) closeBreaker() {
	b := d.policy.Breaker
	if d.Breaker == nil || b == nil || d.now.Before(d.Breaker.OpenedAt.Add(b.CoolDown)) {
		return
	}
	if d.Blocked != nil && slices.Contains([]string{BlockedByBudget, BlockedByBreaker, BlockedBySuspicion}, d.Blocked.Reason) {
		return
	}
	began, _ := d.began(b.Window)
	waits := slices.ContainsFunc(d.Peers, func(p Peer) bool { return p.Waits })
	if began < b.MaxNodes && !waits {
		d.SetBreaker = &BreakerState{}
	}
}

// began counts the quarantines of the last window, and says when the latest of all began.
func (d *decider) began(window time.Duration) (count int, latest time.Time) {
	for _, p := range d.Peers {
		for _, b := range p.Began {
			if d.now.Sub(b.At) < window {
				count++
			}
			if b.At.After(latest) {
				latest = b.At
			}
		}
	}
	return count, latest
}
