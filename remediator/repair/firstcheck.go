package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// FirstChecked reports whether a node waits for its first check: it has the taint, and the policy selects it.
func FirstChecked(p *policy.Policy, n *corev1.Node) bool {
	f := p.FirstCheck
	return f != nil && f.Nodes.Matches(labelsOf(n)) && slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == f.Taint })
}

// beginFirstCheck takes the taint of new nodes away, or begins the check under load before that.
func (d *decider) beginFirstCheck() {
	f := d.policy.FirstCheck
	if why := d.held(); why != "" {
		d.waits("held", "first check waits: %s", why)
		return
	}
	if !node.IsReady(d.facts.Node) {
		d.waits("ready", "first check waits until the node is Ready")
		return
	}
	if why := d.unproved(); why != "" {
		d.waits("conditions", "first check waits: %s", why)
		return
	}
	if f.Template == "" {
		if d.step.Needs.Any() {
			return
		}
		d.record.Checked = &Checked{At: d.now, BootID: d.facts.Node.Status.NodeInfo.BootID}
		d.step.untaint = f.Taint
		d.event(corev1.EventTypeNormal, NodeChecked, "first check has passed: %s", strings.Join(d.firstConditions(), ", "))
		return
	}
	if retry := d.retryAt(FirstCheck, ""); d.now.Before(retry) && !d.requested(RequestCheck) {
		d.requeueAt(retry)
		return
	}
	d.openCheck(Visit{Kind: FirstCheck}, f.Check)
}

// firstConditions are the types that must be healthy on a new node.
func (d *decider) firstConditions() []string {
	var names []string
	for _, name := range d.policy.FirstCheck.Conditions {
		if name != policy.AllConditions {
			names = append(names, name)
			continue
		}
		for _, r := range d.policy.Rules {
			if !r.AlertOnly && r.Condition != corev1.NodeReady && !quarantine.IsVerdict(r.Condition) && r.Nodes.Matches(labelsOf(d.facts.Node)) {
				names = append(names, string(r.Condition))
			}
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// unproved says what keeps a new node from being taken for healthy; empty: nothing does.
//
// The Node Problem Detector writes a condition of ours when its plugin has answered, and not before (skip_initial_status). Conditions of
// others may be False from the start, without an answer: they count once they had a heartbeat a minute later.
func (d *decider) unproved() string {
	n := d.facts.Node
	since := bootSince(n, d.facts.Quarantine, d.now)
	var missing []string
	for _, name := range d.firstConditions() {
		c, exists := node.ConditionOf(n, corev1.NodeConditionType(name))
		limit, named := d.policy.UnknownAfter(c.Type)
		if !named {
			limit = policy.DefaultUnknownAfter
		}
		rule, _, matched := d.policy.Match(n.Labels, c)
		heartbeat := c.LastHeartbeatTime.Time
		switch {
		case !exists:
			missing = append(missing, name)
		case matched && !rule.AlertOnly, !matched && c.Status == corev1.ConditionTrue:
			return fmt.Sprintf("%s is %s: %s", name, c.Status, quarantine.Clip(c.Message, conditions.MaxMessage))
		case c.Status == corev1.ConditionUnknown:
			return fmt.Sprintf("%s is Unknown: %s", name, quarantine.Clip(c.Message, conditions.MaxMessage))
		case limit == policy.Never:
		case heartbeat.Before(since) || d.now.Sub(heartbeat) > limit || quarantine.FromFuture(heartbeat, d.now):
			missing = append(missing, name)
		case heartbeat.Before(c.LastTransitionTime.Add(settleTime(c.Type))):
			missing = append(missing, name)
		}
	}
	if len(missing) > 0 {
		return "no report of this boot yet of " + quarantine.Clip(strings.Join(missing, ", "), conditions.MaxMessage)
	}
	return ""
}

// bootSince is a time at which the node was in its present boot, in whole seconds, as heartbeats are. A node that was just created has
// not been seen by anybody before.
func bootSince(n *corev1.Node, q *quarantine.Record, now time.Time) time.Time {
	since := n.CreationTimestamp.Time
	if q != nil && q.NodeUID == n.UID && q.Boot.ID == n.Status.NodeInfo.BootID {
		since = later(since, q.Boot.Seen)
	} else if ready, ok := node.ConditionOf(n, corev1.NodeReady); ok && ready.Status == corev1.ConditionTrue && !quarantine.FromFuture(ready.LastTransitionTime.Time, now) {
		since = later(since, ready.LastTransitionTime.Time)
	}
	return since.Truncate(time.Second)
}
