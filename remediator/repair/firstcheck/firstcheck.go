// Package firstcheck decides by conditions alone whether a new node is healthy, and returns what it is still missing.
package firstcheck

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Late is how long a node may wait for its first check before an alert fires.
const Late = 15 * time.Minute

// Waits reports whether a node waits for its first check: it has the taint, and the policy selects it.
func Waits(p *policy.Policy, n *corev1.Node) bool {
	f := p.FirstCheck
	return f != nil && f.Nodes.Matches(labels.Set(n.Labels)) &&
		slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == f.Taint })
}

// Conditions returns the types that must be healthy on a new node, in order. For `all` these are what the pools of the node report and
// a rule may quarantine it for; without a pool, what any rule names.
func Conditions(p *policy.Policy, n *corev1.Node) []string {
	reported, known := p.Reported(n.Labels)
	var names []string
	for _, name := range p.FirstCheck.Conditions {
		if name != policy.AllConditions {
			names = append(names, name)
			continue
		}
		for _, r := range p.Rules {
			condition := string(r.Condition)
			counts := !r.AlertOnly && r.Condition != corev1.NodeReady && !causes.IsVerdict(r.Condition) && r.Nodes.Matches(labels.Set(n.Labels))
			if counts && (!known || slices.Contains(reported, condition)) {
				names = append(names, condition)
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Gap is a condition for which a new node does not count as healthy.
type Gap struct {
	Condition string
	// Why is what it shows instead; empty: there is no report of this boot.
	Why string
}

// Gaps returns what keeps a new node from counting as healthy, in the order of the conditions; none: nothing does.
//
// The Node Problem Detector writes a condition of ours when its plugin has answered, and not before (skip_initial_status). Conditions of
// others may be False from the start, without an answer: they count once they had a heartbeat a minute later.
func Gaps(p *policy.Policy, n *corev1.Node, q *causes.Record, now time.Time) (gaps []Gap) {
	since := bootSince(n, q, now)
	for _, name := range Conditions(p, n) {
		c, exists := node.ConditionOf(n, corev1.NodeConditionType(name))
		limit, named := p.UnknownAfter(c.Type)
		if !named {
			limit = policy.DefaultUnknownAfter
		}
		rule, _, matched := p.Match(n.Labels, c)
		heartbeat := c.LastHeartbeatTime.Time
		switch {
		case !exists:
			gaps = append(gaps, Gap{Condition: name})
		case matched && !rule.AlertOnly, !matched && c.Status == corev1.ConditionTrue, c.Status == corev1.ConditionUnknown:
			why := fmt.Sprintf("%s is %s: %s", name, c.Status, causes.Clip(c.Message, conditions.MaxMessage))
			gaps = append(gaps, Gap{name, why})
		case limit == policy.Never:
		case heartbeat.Before(since) || now.Sub(heartbeat) > limit || causes.FromFuture(heartbeat, now):
			gaps = append(gaps, Gap{Condition: name})
		case heartbeat.Before(c.LastTransitionTime.Add(SettleTime(c.Type))):
			gaps = append(gaps, Gap{Condition: name})
		}
	}
	return gaps
}

// Text returns in a sentence what a new node is missing; empty: nothing.
func Text(p *policy.Policy, n *corev1.Node, gaps []Gap) string {
	var missing []string
	for _, l := range gaps {
		if l.Why != "" {
			return l.Why
		}
		missing = append(missing, l.Condition)
	}
	if len(missing) == 0 {
		return ""
	}
	text := "no report of this boot yet of " + causes.Clip(strings.Join(missing, ", "), conditions.MaxMessage)
	if _, known := p.Reported(n.Labels); !known && slices.Contains(p.FirstCheck.Conditions, policy.AllConditions) {
		text += "; no pool of spec.pools has the node, so every condition that a rule names is waited for"
	}
	return text
}

// WaitsLong returns for how long a node has waited for a first check that does not begin, and what it is missing, once that takes longer
// than [Late]; zero: it does not wait, or not for long. q is the record of its quarantine, which may be nil.
func WaitsLong(p *policy.Policy, n *corev1.Node, q *causes.Record, underWay bool, now time.Time) (time.Duration, []Gap) {
	waited := now.Sub(n.CreationTimestamp.Time)
	if !Waits(p, n) || underWay || node.Excluded(n) || waited < Late || n.CreationTimestamp.IsZero() ||
		q != nil && q.NodeUID == n.UID && q.Phase == causes.Quarantined {
		return 0, nil
	}
	return waited, Gaps(p, n, q, now)
}

// Verdict returns the conditions by which plugins report what a Job of the template finds.
func Verdict(t *corev1.PodTemplate) []string {
	var names []string
	for name := range strings.SplitSeq(t.Annotations[conditions.AnnotationVerdict], ",") {
		if name = strings.TrimSpace(name); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// Unproven reports that nothing on a node reports a condition that proves a template: the node does not have it, and no pool of the node
// does; empty: each is reported. The remediator writes the verdicts of preflight itself.
func Unproven(p *policy.Policy, n *corev1.Node, t *corev1.PodTemplate) string {
	reported, _ := p.Reported(n.Labels)
	for _, name := range Verdict(t) {
		_, has := node.ConditionOf(n, corev1.NodeConditionType(name))
		if !has && !conditions.IsVerdict(name) && !slices.Contains(reported, name) {
			return fmt.Sprintf("%[1]s proves template %s, and no check of the node reports it; add %[1]s to the checks of its pool "+
				"(docs/templates.md), or name another template", name, t.Name)
		}
	}
	return ""
}

// bootSince is a time at which the node was in its present boot, in whole seconds, as heartbeats are. A node that was just created has
// not been seen by anybody before.
func bootSince(n *corev1.Node, q *causes.Record, now time.Time) time.Time {
	since := n.CreationTimestamp.Time
	if q != nil && q.NodeUID == n.UID && q.Boot.ID == n.Status.NodeInfo.BootID {
		since = Later(since, q.Boot.Seen)
	} else if ready, ok := node.ConditionOf(n, corev1.NodeReady); ok && ready.Status == corev1.ConditionTrue &&
		!causes.FromFuture(ready.LastTransitionTime.Time, now) {
		since = Later(since, ready.LastTransitionTime.Time)
	}
	return since.Truncate(time.Second)
}

// Later returns the later of two times.
func Later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// SettleTime is how long a condition must have been healthy. The Node Problem Detector writes the conditions of a monitor as False when it
// starts, before any plugin has answered, unless the monitor has skip_initial_status, as all of ours have.
func SettleTime(t corev1.NodeConditionType) time.Duration {
	if conditions.Ours(string(t)) {
		return 0
	}
	return time.Minute
}
