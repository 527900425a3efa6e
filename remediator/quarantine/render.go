package quarantine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/notices"
)

// decider is one run of [Decide]: the situation as it becomes, and the result so far.
type decider struct {
	situation
	next   causes.Schedule
	result Decision
}

// render makes a choice true of the record and of the node, and reports whether it ends a phase of the record, so that the next one is
// reached in the same run.
func (d *decider) render(c choice) (goesOn bool) {
	d.note(c.wait)
	switch c.do {
	case open:
		d.record = causes.OpenNext(d.record, d.observed.Node, d.conditions.BootSeen, d.now)
	case forget:
		d.record = d.record.WithoutCurrent()
	case restore:
		d.restore()
	case taintAnew:
		old := d.record.Taint.String()
		d.setTaint(c.worst)
		d.result.Started = c.start(d.now)
		d.record.Taint.Restored = true
		d.event(corev1.EventTypeWarning, causes.TaintRestored, "taint %s was missing, and %s; %s; tainted %s",
			old, c.why, causes.Describe(c.worst), d.record.Taint)
	case releaseNode:
		d.release(c.release)
	case quarantineNode:
		d.quarantine(c)
		return false
	case upgrade:
		d.upgrade(c)
		return false
	case stay:
		return false
	}
	return true
}

// note adds what a choice waits for to the result.
func (d *decider) note(w wait) {
	if w.blocked != nil {
		d.result.Blocked = w.blocked
	}
	d.result.BlockedToo = append(d.result.BlockedToo, w.too...)
	d.result.Limited = d.result.Limited || w.limited
	d.result.WaitsForOthers = d.result.WaitsForOthers || w.forOthers
	if w.opened != nil {
		d.result.SetBreaker = w.opened
	}
	d.next.RequeueAt(w.until...)
}

func (d *decider) updateNotices() {
	notices.Update(d.record, d.policy, d.observed.Delivered, d.confirmed, d.observed.Seen, &d.next)
}

func (d *decider) event(kind, reason, format string, args ...any) {
	d.result.Events = append(d.result.Events, causes.Event{Type: kind, Reason: reason, Message: fmt.Sprintf(format, args...)})
}

// quarantine makes a suspicion a quarantine. Only the causes that stand and are enforced are causes of that.
func (d *decider) quarantine(c choice) {
	r, worst := d.record, c.worst
	r.Causes = slices.DeleteFunc(r.Causes, func(c causes.Cause) bool {
		p, isProblem := d.conditions.Problems[c.Condition]
		if !isProblem { // its condition is not current just now
			p.Rule, _ = d.conditions.RuleOf(&c)
		}
		return !p.IsEnforced() || !c.HealthySince.IsZero()
	})
	r.Phase, r.QuarantinedAt = causes.Quarantined, d.now
	d.setTaint(worst)
	d.result.Started = c.start(d.now)
	r.ManualReleaseOnly = r.HasFlapped(worst, d.now)
	if r.IsIsolated() {
		d.event(corev1.EventTypeWarning, causes.DeviceIsolated, "%s; %s%s", causes.Describe(worst), r.IsolatedBy(), r.ManualOnly(worst))
		return
	}
	d.event(corev1.EventTypeWarning, causes.NodeQuarantined, "%s; tainted %s%s%s%s%s",
		causes.Describe(worst), r.Taint, r.AndCordoned(), worst.NotIsolated(), ofIncident(c.incident), r.ManualOnly(worst))
}

// upgrade puts the taint of a problem that needs more in place of that of the quarantine.
func (d *decider) upgrade(c choice) {
	r, worst := d.record, c.worst
	// An upgrade makes nothing of a quarantine that was only claimed.
	decided := d.isDecided() || d.provenPlace().Rule != ""
	d.setTaint(worst)
	d.decided = decided
	if c.held.TakesOut(worst.Rule) {
		d.result.Started = cmp.Or(c.start(d.now), d.result.Started)
	}
	if r.IsIsolated() {
		d.event(corev1.EventTypeWarning, causes.DeviceIsolated, "%s; %s", causes.Describe(worst), r.IsolatedBy())
		return
	}
	d.event(corev1.EventTypeWarning, causes.QuarantineUpgraded, "%s; tainted %s%s%s%s",
		causes.Describe(worst), r.Taint, r.AndCordoned(), worst.NotIsolated(), ofIncident(c.incident))
}

// restore puts the taint of the quarantine back.
func (d *decider) restore() {
	taint := d.record.Taint
	taint.Restored, taint.PreExisting = true, false
	if d.record.IsIsolated() {
		d.record.Isolation.PendingSince = d.now
	} else {
		d.changes.Taints = append(d.changes.Taints, taint.NodeTaint())
	}
	d.event(corev1.EventTypeWarning, causes.TaintRestored,
		"taint %s was removed during the quarantine and has been put back; remove it again to release the node", taint)
}

// start is the start of a quarantine now; nil: a victim has the place of its origin.
func (c *choice) start(now time.Time) *limits.Start {
	if c.worst.Link.Origin != "" {
		return nil
	}
	start := &limits.Start{Rule: c.worst.Rule.Name, At: now, Soft: limits.IsSoft(c.worst.Rule.Taint.Effect)}
	if c.incident != nil {
		start.Incident = c.incident.Domain
	}
	return start
}

// setTaint puts the problem's taint on the node, and what its rule hands off, in place of earlier ones of ours. A taint
// outside our domain that is there already belongs to others and outlives the quarantine.
func (d *decider) setTaint(p causes.Problem) {
	t := &causes.Taint{
		Key: p.Rule.Taint.Key, Value: p.Rule.Taint.Value, Effect: p.Rule.Taint.Effect,
		Rule: p.Rule.Name, Repair: p.Class, Since: d.now, HeldFor: p.Link.Origin,
	}
	d.decided = true
	if d.record.Taint != nil {
		t.Restored = d.record.Taint.Restored
		d.removeTaint()
	}
	if p.Reach.Extent == isolate.SomeDevices {
		d.record.Taint = t
		d.isolate()
		return
	}
	d.record.Isolation = nil
	t.PreExisting = causes.HasTaint(d.changes.Taints, t) && !strings.HasPrefix(t.Key, conditions.Domain+"/")
	if !t.PreExisting {
		d.changes.Taints = append(slices.DeleteFunc(d.changes.Taints, t.Matches), t.NodeTaint())
	}
	d.record.Taint = t
	want := p.Rule.HandOff
	if d.record.Uncordoned {
		want = want.WithoutCordon()
	}
	d.record.HandOff = d.changes.AddHandOff(want).WithCordonOf(d.record.HandOff, d.known)
}

// removeTaint removes what the record's quarantine has put on the node. What no known policy puts there stays, whatever the
// record claims, and that is said.
func (d *decider) removeTaint() {
	if d.record.Phase != causes.Quarantined {
		return
	}
	if left := d.record.RemoveFrom(&d.changes, d.known); len(left) > 0 {
		d.event(corev1.EventTypeWarning, causes.QuarantineBlocked,
			"the record names what no known policy puts on a node, and it is left as it is: %s",
			causes.Clip(strings.Join(left, ", "), conditions.MaxMessage))
	}
}

// checkCordon gives up our cordon when others have undone it, or have uncordoned the node and cordoned it again. Unlike a taint, a
// cordon is never lost in the patch of a list, so one time is enough. A cordon that others have set beside us outlives the release.
func (d *decider) checkCordon() {
	if !d.changes.HasLostCordon(d.record.HandOff) {
		return
	}
	d.record.HandOff = d.changes.DropCordon(d.record.HandOff, d.known)
	d.record.Uncordoned = true
	if d.changes.Unschedulable {
		return // it is the cordon of others
	}
	d.event(corev1.EventTypeNormal, causes.UncordonedByHand,
		"the cordon was undone during the quarantine, so the quarantine does not cordon the node again; it keeps taint %s", d.record.Taint)
}

// removeUnexplained removes the taints that only a quarantine of ours sets and that the record does not explain. They were
// brought back after a release: `kubectl taint` and others write the whole list, and theirs may be an old one. A person
// quarantines a node with `kubectl pitcrew quarantine`, which writes a record.
func (d *decider) removeUnexplained() {
	var removed []string
	d.changes.Taints = slices.DeleteFunc(d.changes.Taints, func(t corev1.Taint) bool {
		ours := t.Key == conditions.TaintUnhealthy || mayBeQuarantine(t) &&
			slices.ContainsFunc(d.policy.Rules, func(r policy.Rule) bool { return r.Taint.MatchTaint(&t) })
		if !ours || d.record.Explains(t) {
			return false
		}
		removed = append(removed, t.ToString())
		return true
	})
	if len(removed) > 0 {
		d.event(corev1.EventTypeNormal, causes.NodeReleased,
			"taint %s was on the node without a quarantine and was removed; a writer with an old copy of the taints may have brought it back",
			strings.Join(removed, ", "))
	}
	if (d.record == nil || d.record.Phase != causes.Quarantined) && d.changes.RemoveStrayCordon(d.known) {
		d.event(corev1.EventTypeNormal, causes.NodeReleased, "the remediator had cordoned the node and no quarantine is on it; uncordoned")
	}
}

// restartJobs asks for the restart of the node's jobs, and to check for further ones: the scheduler may have bound a pod to the node before
// it saw the taint.
func (d *decider) restartJobs() {
	name, waits := d.restartRule()
	for _, w := range waits {
		d.note(w)
	}
	if d.result.RestartRule, d.result.RestartJobs = name, name != ""; name == "" {
		return
	}
	for _, delay := range restartDelays {
		d.next.RequeueAt(d.record.Taint.Since.Add(delay))
	}
}

// staleness reports that no detector updates the conditions of the node; nil: one does. If a rule acts on the node because it is not Ready,
// that its detectors report nothing is no news.
func staleness(a *causes.Assessment) *causes.Blocked {
	ready, isProblem := a.Problems[corev1.NodeReady]
	if len(a.Stale.Types) == 0 || isProblem && ready.IsActionable() {
		return nil
	}
	return &causes.Blocked{Reason: causes.BlockedByStale, Message: a.Stale.Message(a.Policy, a.Node, a.Now)}
}

// healthForAWS is what the labels and annotations of the AWS suite are to show of the node; nil: they stay as they are.
func (d *decider) healthForAWS() *handoff.Health {
	if !d.policy.Output.AWS {
		return &handoff.Health{Off: true}
	}
	if d.conditions.Maintained {
		return nil
	}
	visits := d.observed.visitsOf(d.record)
	health := &handoff.Health{Checks: d.conditions.Checks(), Advice: visits.Advice, AdvisedAt: visits.AdvisedAt}
	if d.record != nil && d.record.Phase == causes.Quarantined && !d.record.IsIsolated() {
		health.Quarantined, health.Repair = true, d.record.Worst()
	}
	return health
}

// ofIncident reports that the node is quarantined as a part of an incident, if it is.
func ofIncident(i *limits.Incident) string {
	if i == nil {
		return ""
	}
	return fmt.Sprintf("; one of %d nodes or more of %s that have failed together, which use up one place of each limit", i.Nodes, i.Domain)
}

// restartDelays are the times after the taint at which the node's pods are listed again: the scheduler may have bound a pod
// to the node before it saw the taint.
var restartDelays = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// NextPodCheck is when the pods of a node are due to be listed again that was tainted at a time, at the latest after most.
func NextPodCheck(since, now time.Time, most time.Duration) time.Time {
	next := now.Add(most)
	for _, delay := range restartDelays {
		if at := since.Add(delay); at.After(now) && at.Before(next) {
			next = at
		}
	}
	return next
}
