package quarantine

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// recheck is how often a condition that is not current (stale, or older than the boot) is read again: that it is current
// again may show in its heartbeat alone, which causes no reconcile.
const recheck = time.Minute

// IsVerdict tells whether the remediator writes the condition itself. Its heartbeat is the time of the verdict, and one
// that cleared a node stays as it is.
func IsVerdict(t corev1.NodeConditionType) bool {
	return conditions.IsVerdict(string(t))
}

// staleConditions are the conditions of a node that a rule names, when none of them has a current heartbeat.
type staleConditions struct {
	types []string
	// newest is the newest of their heartbeats; zero: there was none.
	newest time.Time
}

// checkHeartbeats finds out whether any detector still updates the node's conditions. A verdict does not count: it does
// not show whether the detectors run.
func checkHeartbeats(p *policy.Policy, n *corev1.Node, next *schedule) staleConditions {
	var stale staleConditions
	updated := false
	for _, c := range n.Status.Conditions {
		limit, named := p.UnknownAfter(c.Type)
		if !named || limit == policy.Never {
			continue
		}
		heartbeat := c.LastHeartbeatTime.Time
		until, ahead := heartbeat.Add(limit), FromFuture(heartbeat, next.now)
		if !ahead {
			next.requeueAt(until.Add(time.Second))
		}
		if IsVerdict(c.Type) {
			continue
		}
		stale.types = append(stale.types, string(c.Type))
		if heartbeat.After(stale.newest) {
			stale.newest = heartbeat
		}
		updated = updated || !ahead && !next.now.After(until)
	}
	if updated || node.Maintained(n, next.now) {
		return staleConditions{}
	}
	return stale
}

// message names the heartbeats that are missing, and since when, or that are from the future. On a node that does not answer its
// detectors are silent, too, and that says nothing about them.
func (s staleConditions) message(p *policy.Policy, n *corev1.Node, now time.Time) string {
	if FromFuture(s.newest, now) {
		return fmt.Sprintf("the newest heartbeat of %s is %s in the future, so nothing is decided about the node; is its clock right?",
			Clip(strings.Join(s.types, ", "), conditions.MaxMessage), duration.HumanDuration(s.newest.Sub(now)))
	}
	text := "no heartbeat of " + Clip(strings.Join(s.types, ", "), conditions.MaxMessage)
	if !s.newest.IsZero() {
		text += " for " + duration.HumanDuration(now.Sub(s.newest))
	}
	if why := Unhandled(p, n, now); why != "" {
		return why + "; " + text
	}
	return text + ", so nothing is decided about the node; is node-problem-detector running there?"
}

// FromFuture tells whether a time is further ahead of now than clocks differ, see [conditions.MaxClockSkew].
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

// isCurrent tells whether a condition is about the node as it is now. One whose heartbeat is old has lost its
// writer. One from before the boot is about a machine that has changed since, see [bootSeen].
//
// Heartbeats have a resolution of one second. A node clock that is wrong by more than [conditions.MaxClockSkew] makes its
// conditions stale. One that is ahead by less lets a condition from before the boot pass if the boot took no longer.
func isCurrent(c corev1.NodeCondition, rule policy.Rule, bootSeen, now time.Time) bool {
	if rule.UnknownAfter == policy.Never && !rule.IsFault(c.Status) {
		// Its writer sends nothing after a reboot, and a boot breaks nothing.
		return true
	}
	span, ok := currentWithin(c, rule, bootSeen)
	return ok && span.Contains(now)
}

// currentWithin is when a condition that matches a rule is current, see [isCurrent]; false: never. It depends on no clock.
//
// Ready always is. Without a kubelet nobody sends a heartbeat, and that is the fault. And it is of the boot that the node shows:
// the kubelet writes both together.
func currentWithin(c corev1.NodeCondition, rule policy.Rule, bootSeen time.Time) (span limits.Span, ok bool) {
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

// AwaitsHeartbeat says that a condition for which a rule acts, or its health, counts only with its next heartbeat, because the node came
// back after the last one; empty: none does.
func AwaitsHeartbeat(p *policy.Policy, n *corev1.Node, now time.Time) string {
	r, err := RecordOf(n)
	if err != nil {
		return ""
	}
	a := newDecider(p, Observation{Node: n, Record: r}, now).conditions
	if a.maintained {
		return ""
	}
	for _, c := range n.Status.Conditions {
		rule, _, ok := p.Match(n.Labels, c)
		isCause := r != nil && r.Phase == Quarantined && r.hasCause(c.Type)
		if !ok && isCause {
			rule, ok = a.ruleOf(&Cause{Condition: c.Type})
		}
		isAfterBoot := !c.LastHeartbeatTime.Time.Before(a.bootSeen.Truncate(time.Second))
		if !ok || rule.AlertOnly || c.Type == corev1.NodeReady || isAfterBoot || a.isCurrent(c, rule) {
			continue
		}
		return fmt.Sprintf("waiting for a heartbeat of %s: the last one, at %s, is from before the node came back at %s",
			c.Type, c.LastHeartbeatTime.UTC().Format(time.RFC3339), a.bootSeen.UTC().Format(time.RFC3339))
	}
	return ""
}
