package causes

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// Recheck is how often a condition that is not current (stale, or older than the boot) is read again: that it is current
// again may show in its heartbeat alone, which causes no reconcile.
const Recheck = time.Minute

// IsVerdict reports whether the remediator writes the condition itself. Its heartbeat is the time of the verdict, and one
// that cleared a node stays as it is.
func IsVerdict(t corev1.NodeConditionType) bool {
	return conditions.IsVerdict(string(t))
}

// staleConditions are the conditions of a node that a rule names, when none of them has a current heartbeat.
type staleConditions struct {
	Types []string
	// newest is the newest of their heartbeats; zero: there was none.
	newest time.Time
}

// checkHeartbeats finds out whether any detector still updates the node's conditions. A verdict does not count: it does
// not show whether the detectors run.
func checkHeartbeats(p *policy.Policy, n *corev1.Node, next *Schedule) staleConditions {
	var stale staleConditions
	updated := false
	for _, c := range n.Status.Conditions {
		limit, named := p.UnknownAfter(c.Type)
		if !named || limit == policy.Never {
			continue
		}
		heartbeat := c.LastHeartbeatTime.Time
		until, ahead := heartbeat.Add(limit), FromFuture(heartbeat, next.Now)
		if !ahead {
			next.RequeueAt(until.Add(time.Second))
		}
		if IsVerdict(c.Type) {
			continue
		}
		stale.Types = append(stale.Types, string(c.Type))
		if heartbeat.After(stale.newest) {
			stale.newest = heartbeat
		}
		updated = updated || !ahead && !next.Now.After(until)
	}
	if updated || node.Maintained(n, next.Now) {
		return staleConditions{}
	}
	return stale
}

// Message names the heartbeats that are missing, and since when, or that are from the future. On a node that does not answer its
// detectors report nothing, too, and that proves nothing about them.
func (s staleConditions) Message(p *policy.Policy, n *corev1.Node, now time.Time) string {
	if FromFuture(s.newest, now) {
		return fmt.Sprintf("the newest heartbeat of %s is %s in the future, so nothing is decided about the node; is its clock right?",
			Clip(strings.Join(s.Types, ", "), conditions.MaxMessage), duration.HumanDuration(s.newest.Sub(now)))
	}
	text := "no heartbeat of " + Clip(strings.Join(s.Types, ", "), conditions.MaxMessage)
	if !s.newest.IsZero() {
		text += " for " + duration.HumanDuration(now.Sub(s.newest))
	}
	if why := Unhandled(p, n, now); why != "" {
		return why + "; " + text
	}
	return text + ", so nothing is decided about the node; is node-problem-detector running there?"
}

// FromFuture reports whether a time is further ahead of now than clocks differ, see [conditions.MaxClockSkew].
func FromFuture(at, now time.Time) bool { return at.After(now.Add(conditions.MaxClockSkew)) }

// bootSeen is a time at which the node was in its current boot, as early as is known; zero when nothing is known. There is
// no field of a Node that holds the time of its boot:
//   - With a record, we know when we first saw the boot id. That is late by our own downtime and by the kubelet's first
//     report, so a condition of the new boot may be passed over until its next heartbeat.
//   - Without one, a node that rebooted has usually become Ready again since. That can also be a mere network cut, after
//     which a condition is passed over until its next heartbeat, too.
//
// A time of the node that is no possible one is ignored. It would make every later heartbeat one from before the boot.
func bootSeen(n *corev1.Node, r *Record, now time.Time) time.Time {
	if r != nil {
		return r.Boot.Seen
	}
	for _, c := range n.Status.Conditions {
		ready := c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		if at := c.LastTransitionTime.UTC(); ready && !at.Before(time.Time{}) && !FromFuture(at, now) {
			return at
		}
	}
	return time.Time{}
}

// isCurrent reports whether a condition is about the node as it is now. One whose heartbeat is old has lost its
// writer. One from before the boot is about a machine that has changed since, see [bootSeen].
//
// Heartbeats have a resolution of one second. A node clock that is wrong by more than [conditions.MaxClockSkew] makes its
// conditions stale. One that is ahead by less lets a condition from before the boot pass if the boot took no longer.
func isCurrent(c corev1.NodeCondition, rule policy.Rule, bootSeen, now time.Time) bool {
	if rule.UnknownAfter == policy.Never && !rule.IsFault(c.Status) {
		// Its writer sends nothing after a reboot, and a boot breaks nothing.
		return true
	}
	span, ok := CurrentWithin(c, rule, bootSeen)
	return ok && span.Contains(now)
}

// CurrentWithin is when a condition that matches a rule is current, see [isCurrent]; false: never. It depends on no clock.
//
// Ready always is. Without a kubelet no heartbeat comes, and that is the fault. And it is of the boot that the node shows:
// the kubelet writes both together.
func CurrentWithin(c corev1.NodeCondition, rule policy.Rule, bootSeen time.Time) (span limits.Span, ok bool) {
	if c.Type == corev1.NodeReady {
		return limits.Span{}, true
	}
	heartbeat := c.LastHeartbeatTime.Time
	if rule.UnknownAfter == policy.Never && c.LastTransitionTime.After(heartbeat) {
		heartbeat = c.LastTransitionTime.Time
	}
	span.From = heartbeat.Add(-conditions.MaxClockSkew)
	if rule.UnknownAfter != policy.Never {
		span.Until = heartbeat.Add(rule.UnknownAfter)
	}
	return span, !heartbeat.Before(bootSeen.Truncate(time.Second))
}

// DescribeNotReady returns since when a node is not Ready, and why as far as its condition Ready tells.
func DescribeNotReady(c corev1.NodeCondition) string {
	since := c.LastTransitionTime.UTC().Format(time.RFC3339)
	return fmt.Sprintf("Ready is %s since %s (%s)", c.Status, since, Clip(c.Message, conditions.MaxMessage/4))
}

// Unhandled reports that a node is not Ready and no rule acts on that, and why; empty for any other node.
func Unhandled(p *policy.Policy, n *corev1.Node, now time.Time) string {
	c, ok := node.NotReady(n)
	if !ok {
		return ""
	}
	if rule, _, ok := p.Match(n.Labels, c); !ok || rule.AlertOnly {
		return DescribeNotReady(c) + ", and no rule of the policy acts on that"
	}
	r, err := RecordOf(n)
	if err != nil {
		return ""
	}
	if why := whyNotReadyIsNoFault(p, n, r, node.HoldingClaims(n, now), c, now); why != "" {
		return DescribeNotReady(c) + why
	}
	return ""
}

// whyNotReadyIsNoFault explains, as the end of a sentence, why a node that is not Ready is left alone; empty: it is not. Such a node
// hangs no job, and quarantines of all that a cluster has would use up the limits. A quarantine that stands goes on.
func whyNotReadyIsNoFault(
	p *policy.Policy, n *corev1.Node, r *Record, claims []node.Claim, ready corev1.NodeCondition, now time.Time,
) string {
	if r == nil || r.Closed() || !r.HasCause(corev1.NodeReady) {
		since := node.NotReadySince(n, ready)
		switch {
		case node.NeverReady(n, ready):
			return ", as it has been since it was created, so the node is taken for one that has yet to start"
		case !since.IsZero() && now.Sub(since) >= p.Budget.ParkedAfter:
			return ", longer than budget.parkedAfter, so the node is taken for switched off"
		}
	}
	if r != nil && r.Phase == Quarantined {
		return ""
	}
	if key := node.DeletionTaint(n); key != "" {
		return "; the node has taint " + key + ", so this is taken for planned work"
	}
	if n.Spec.Unschedulable { // our own cordon ends with the quarantine
		return "; the node was cordoned by someone else, so this is taken for planned work"
	}
	if why := node.Excuse(claims, ready.Type, ready.LastTransitionTime.Time); why != "" {
		return "; " + why + ", so this is taken for planned work"
	}
	return ""
}

// IsReady reports whether the problem is that the node is not Ready.
func (p Problem) IsReady() bool { return p.Condition.Type == corev1.NodeReady }

// Checks are the conditions that the policy names, as the AWS suite shows them.
func (a *Assessment) Checks() []handoff.Check {
	var checks []handoff.Check
	for _, c := range a.Node.Status.Conditions {
		limit, named := a.Policy.UnknownAfter(c.Type)
		if !named {
			continue
		}
		check := handoff.Check{Condition: c.Type, Outcome: handoff.Pass}
		p, isProblem := a.Problems[c.Type]
		switch {
		case isProblem && p.IsActionable():
			check.Outcome, check.Repair = handoff.Fail, p.Class
		case isProblem:
			check.Outcome = handoff.Warn
		case c.Status == corev1.ConditionUnknown || a.Now.Sub(c.LastHeartbeatTime.Time) > limit || FromFuture(c.LastHeartbeatTime.Time, a.Now):
			check.Outcome = handoff.Skip
		}
		checks = append(checks, check)
	}
	return checks
}
