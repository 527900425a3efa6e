package quarantine

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/units"
)

// problem is a condition that matches a rule.
type problem struct {
	condition corev1.NodeCondition
	rule      policy.Rule
	class     conditions.Repair
	// role is that of the faults in a broken link of the node's domain, and link what was found about that; the zero value is nothing.
	role limits.LinkRole
	link Link
	// isNew is set if faults have come since a manual release. The message has them alone.
	isNew bool
	// reach is what a quarantine for the problem keeps pods off; gpus are the addresses of the GPUs of one that may reach only those.
	reach isolate.Reach
	gpus  []string
}

func (p problem) isActionable() bool { return !p.rule.AlertOnly }

func (p problem) isEnforced() bool { return p.isActionable() && !p.rule.Observe }

func (p problem) isObserved() bool { return p.isActionable() && p.rule.Observe }

// strength orders problems by what is done about them.
func (p problem) strength() int {
	return strength(p.class, p.rule.Taint.Effect, p.reach.Extent != isolate.WholeNode, p.rule.RestartJobs)
}

// strength orders decisions by what they do: whether the node leaves service, or single GPUs of it, the class, then what the taint
// keeps away, then whether jobs are restarted.
func strength(class conditions.Repair, effect corev1.TaintEffect, isolates, restartsJobs bool) int {
	effects := []corev1.TaintEffect{corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}
	order := len(effects)*int(class) + slices.Index(effects, effect)
	every := len(effects) * int(conditions.Replace+1)
	switch {
	case limits.IsSoft(effect):
	case isolates:
		order += every
	default:
		order += 2 * every
	}
	order *= 2
	if restartsJobs {
		order++
	}
	return order
}

// assessment is what the conditions of a node mean now, by the rules of a policy.
type assessment struct {
	policy     *policy.Policy
	node       *corev1.Node
	now        time.Time
	maintained bool
	bootSeen   time.Time
	// leadingSince is [Observation.LeadingSince].
	leadingSince time.Time
	// settle is how long a victim waits for the origin of its faults; zero: not.
	settle time.Duration
	// problems are the current conditions that match a rule.
	problems map[corev1.NodeConditionType]problem
	stale    staleConditions
}

// assess reads the conditions of a node. r is its record in the current boot, or nil.
func assess(p *policy.Policy, n *corev1.Node, r *Record, next *schedule) assessment {
	a := assessment{
		policy: p, node: n, now: next.now, maintained: node.Maintained(n, next.now), bootSeen: bootSeen(n, r, next.now),
		problems: map[corev1.NodeConditionType]problem{},
		stale:    checkHeartbeats(p, n, next),
	}
	if since, known := node.UpgradeSince(n); known {
		next.requeueAt(since.Add(node.UpgradeStepLimit))
	}
	for _, c := range n.Status.Conditions {
		found := r.manualRelease().newFaults(c)
		c.Message = cmp.Or(found, c.Message)
		rule, class, ok := p.Match(n.Labels, c)
		switch {
		case !ok, c.Type == corev1.NodeReady && whyNotReadyIsNoFault(p, n, r, c, a.now) != "":
		case a.isCurrent(c, rule):
			if r.needsReplacement(string(c.Type), c.Message, a.now) {
				class = conditions.Replace
			}
			a.problems[c.Type] = r.held(problem{condition: c, rule: rule, class: class, role: units.RoleOf(c), isNew: found != ""})
		default:
			next.requeueAt(a.now.Add(recheck))
		}
	}
	return a
}

// isCurrent is [isCurrent], but false while the node is maintained: its conditions reflect the maintenance then.
func (a *assessment) isCurrent(c corev1.NodeCondition, rule policy.Rule) bool {
	return !a.maintained && isCurrent(c, rule, a.bootSeen, a.now)
}

// sorted lists the problems in the order of their condition types.
func (a *assessment) sorted() []problem {
	var list []problem
	for _, p := range a.problems {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b problem) int { return strings.Compare(string(a.condition.Type), string(b.condition.Type)) })
	return list
}

// since is the time of the condition's last transition by the node, in UTC; zero while that time is still to come. A timer
// restarts at it if it is later than what the record says: the transition came between two decisions, or while nothing could
// be written. An earlier time changes nothing, because the node chooses it.
func (a *assessment) since(c corev1.NodeCondition) time.Time {
	if at := c.LastTransitionTime.Time; !at.After(a.now) {
		return at.UTC()
	}
	return time.Time{}
}

// conditionOf is the condition of a cause, as the node has it now.
func (a *assessment) conditionOf(c *Cause) (condition corev1.NodeCondition, exists bool) {
	i := slices.IndexFunc(a.node.Status.Conditions, func(n corev1.NodeCondition) bool { return n.Type == c.Condition })
	if i < 0 {
		return corev1.NodeCondition{}, false
	}
	return a.node.Status.Conditions[i], true
}

// updateCauses brings the causes of the record up to date: which conditions are causes and since when, whose broken links they come from,
// what they reach, and which are due.
func (d *decider) updateCauses() {
	d.updateEarlierRelease()
	r := d.record
	if r == nil || r.closed() {
		return
	}
	d.conditions.updateCauses(r, &d.next)
	if r.Phase == Released {
		r.dropCleared(&d.conditions, &d.next)
		return
	}
	d.judgeLinks()
	findReach(&d.conditions, r, d.observed.devices())
	if r.Phase == Suspect {
		dropOver(r, &d.conditions, &d.next)
	} else {
		d.checkCordon()
		d.updateIsolation()
		r.Causes = slices.DeleteFunc(r.Causes, func(c Cause) bool { return !c.Due && !c.HealthySince.IsZero() })
		for i := range r.Causes {
			d.next.requeueAt(d.conditions.clearsAt(&r.Causes[i]))
		}
	}
	if !d.conditions.markDue(r, problem.isEnforced, &d.next) && r.Phase == Suspect {
		d.conditions.markDue(r, problem.isObserved, &d.next)
	}
}

// dropOver drops the causes of a suspicion that are over. Those whose flaps still count are kept for these.
func dropOver(r *Record, a *assessment, next *schedule) {
	r.Causes = slices.DeleteFunc(r.Causes, func(c Cause) bool {
		p, isProblem := a.problems[c.Condition]
		rule, hasRule := a.ruleOf(&c)
		if !hasRule || isProblem && !p.isActionable() {
			return true
		}
		if c.HealthySince.IsZero() {
			return false
		}
		until := c.flapsUntil(rule.Flaps, a.now)
		next.requeueAt(until)
		return until.IsZero()
	})
	if r.hasOnlyFlapTimes() {
		r.Isolation = nil
	}
}

// updateCauses brings the causes of a record up to date with the conditions. A changed message restarts no timer.
func (a *assessment) updateCauses(r *Record, next *schedule) {
	for i := range r.Causes {
		if c := &r.Causes[i]; c.Rule != policy.ByHand { // no condition belongs to a manual quarantine
			a.updateCause(r, c, next)
		}
	}
	if !r.ManualReleaseActive {
		a.addCauses(r)
	}
}

func (a *assessment) updateCause(r *Record, c *Cause, next *schedule) {
	p, isProblem := a.problems[c.Condition]
	isOver := isProblem && r.isCovered(p) || r.Phase != Suspect && a.isOnlyWorthAnAlert(c)
	switch {
	case isProblem && !isOver:
		a.updateFault(r, c, p)
	case isOver, a.isHealthy(c, r.ManualReleaseActive):
		next.requeueAt(a.currentUntil(c))
		a.updateHealth(r, c)
	default:
		if r.Phase != Suspect { // a suspect's cause that is healthy is kept for its flaps alone
			c.HealthySince = time.Time{}
		}
		next.requeueAt(a.now.Add(recheck))
	}
}

// updateFault updates a cause whose fault stands.
func (a *assessment) updateFault(r *Record, c *Cause, p problem) {
	began := a.since(p.condition)
	a.updateLink(c, p)
	switch {
	case !c.HealthySince.IsZero():
		began = a.now
	case p.isReady():
		began = c.FirstSeen // between Unknown and False the node was not Ready either
	}
	// A fault that is due during a quarantine waits for nothing any more, but for a node that is away again: that must last anew
	// unless it has made the quarantine.
	waits := r.Phase == Suspect || !c.Due || p.isReady() && r.Taint.Rule != p.rule.Name
	if waits && began.After(c.FirstSeen) {
		c.FirstSeen, c.Due = began, r.returnedEarly(p, a.now)
	}
	// A rule that only observes must not keep a quarantine that another rule has made. And what was released is what a worse fault is
	// compared with.
	keeps := r.Phase == Quarantined && p.rule.Observe || r.ManualReleaseActive && r.exceeds(p)
	if !keeps {
		c.update(p, a.node.Status.NodeInfo.BootID)
	}
	c.HealthySince = time.Time{}
}

// updateHealth updates a cause that is healthy, or over.
func (a *assessment) updateHealth(r *Record, c *Cause) {
	if !c.HealthySince.IsZero() {
		condition, _ := a.conditionOf(c)
		if began := a.since(condition); began.After(c.HealthySince) {
			c.HealthySince = began
		}
		return
	}
	c.HealthySince = a.now
	if rule, ok := a.ruleOf(c); ok && r.Phase == Suspect {
		c.recordFlap(rule.Flaps, a.now)
	}
	if c.Repair == conditions.ResetGPU {
		r.recordRepair(c, a.now)
	}
}

// addCauses adds the problems that are no cause yet.
func (a *assessment) addCauses(r *Record) {
	for _, p := range a.sorted() {
		wanted := p.isEnforced() || p.isObserved() && r.Phase == Suspect
		if wanted && !r.hasCause(p.condition.Type) && !r.isReleased(p) && len(r.Causes) < maxCauses {
			c := Cause{Condition: p.condition.Type, FirstSeen: a.now, Due: r.returnedEarly(p, a.now)}
			c.update(p, a.node.Status.NodeInfo.BootID)
			a.updateLink(&c, p)
			r.Causes = append(r.Causes, c)
		}
	}
}

// isOnlyWorthAnAlert reports whether what is left of a cause is a milder finding that the policy only reports. What the cause
// needed was done then: a finding is reported in the worst class that stands. Such a condition may never become healthy.
func (a *assessment) isOnlyWorthAnAlert(c *Cause) bool {
	p, isProblem := a.problems[c.Condition]
	return isProblem && p.rule.AlertOnly && p.class < c.Repair
}

// alertOnlyCauses names what is left of the causes of a record and is only worth an alert, as the end of a sentence.
func (a *assessment) alertOnlyCauses(r *Record) string {
	text := ""
	for i := range r.Causes {
		if a.isOnlyWorthAnAlert(&r.Causes[i]) {
			p := a.problems[r.Causes[i].Condition]
			text += fmt.Sprintf("; what remains is only worth an alert (rule %s: %s)",
				p.rule.Name, Clip(p.condition.Message, conditions.MaxMessage/4))
		}
	}
	return Clip(text, conditions.MaxMessage)
}

// exceeds reports whether a problem is one that a manual release does not cover.
func (r *Record) exceeds(p problem) bool { return p.isEnforced() && !r.covers(p) }

// covers reports whether the release of a quarantine covers a problem: it is no worse, and its condition shows no new fault. Who releases
// a node for other faults does not expect it to die.
func (q *Quarantine) covers(p problem) bool {
	// A release without a person is only for the faults of a broken link that is repaired.
	if (p.isReady() || q.ReleasedBy == ByPitcrew) && !q.hasCause(p.condition.Type) {
		return false
	}
	if p.isReady() {
		return true
	}
	return p.class <= q.Worst() && !p.isNew
}

// isReleased reports whether a manual release that still holds covers a problem. Another fault has begun a suspicion over it.
func (r *Record) isReleased(p problem) bool {
	q := r.manualRelease()
	return r.Phase != Released && q != nil && q.covers(p)
}

// returnedEarly reports whether the problem is back before its condition was healthy for clearAfter again, counted from the
// release. Its rule's `for` has passed once already. A node that is away again gets the whole time: the guard against common causes
// needs it to see the others.
func (r *Record) returnedEarly(p problem, now time.Time) bool {
	if r.Phase != Suspect || len(r.Last) == 0 || p.isReady() {
		return false
	}
	last := r.Last[0]
	return last.hasCause(p.condition.Type) && now.Sub(last.ReleasedAt) < p.rule.ClearAfter
}

// update takes over the class and message of the condition, unless the class is milder than one seen before in the same
// boot. Replace stays across boots, because a boot cannot repair it.
func (c *Cause) update(p problem, bootID string) {
	if p.isReady() && c.HealthySince.IsZero() && c.BootID != "" {
		bootID = c.BootID // that in which the node was Ready last
	}
	sameBoot := c.BootID == bootID || c.Repair == conditions.Replace
	again := c.BootID != bootID || !c.HealthySince.IsZero()
	c.BootID, c.RepairRecorded = bootID, false
	if p.class < c.Repair && sameBoot {
		return
	}
	c.Rule = p.rule.Name
	if p.class != c.Repair || again {
		c.Repair = p.class
		c.Message = Clip(p.condition.Message, conditions.MaxMessage)
	}
}

// Clip cuts a text to a number of bytes, and never within a character. It bounds what the messages of others add to
// annotations, Events and ConfigMaps.
func Clip(text string, maxBytes int) string {
	return strings.ToValidUTF8(text[:min(len(text), maxBytes)], "?")
}

// isHealthy reports whether the condition of a cause is current and not a problem.
func (a *assessment) isHealthy(c *Cause, manualRelease bool) bool {
	condition, exists := a.conditionOf(c)
	if !exists {
		// A monitor that was removed never reports that its fault has cleared. That ends no quarantine, but a manual release
		// must not wait for it.
		return manualRelease
	}
	rule, ok := a.ruleOf(c)
	switch {
	case !ok, rule.IsFault(condition.Status), condition.Status == corev1.ConditionUnknown, !a.isCurrent(condition, rule):
		return false
	case c.Condition == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
		return false // a rule may be about one of the two other statuses
	}
	return true
}

// currentUntil is just after the time from which the condition of a cause is stale; zero: that is not known.
func (a *assessment) currentUntil(c *Cause) time.Time {
	condition, exists := a.conditionOf(c)
	rule, ok := a.ruleOf(c)
	if p, isProblem := a.problems[c.Condition]; isProblem {
		rule, ok = p.rule, true
	}
	if !exists || !ok {
		return time.Time{}
	}
	return condition.LastHeartbeatTime.Add(rule.UnknownAfter + time.Second)
}

// ruleOf is the rule of a cause or, if the policy has renamed it, the first one for the condition.
func (a *assessment) ruleOf(c *Cause) (policy.Rule, bool) {
	if rule, ok := a.policy.Rule(c.Rule); ok {
		return rule, true
	}
	i := slices.IndexFunc(a.policy.Rules, func(r policy.Rule) bool { return r.Condition == c.Condition && !r.AlertOnly })
	if i < 0 {
		return policy.Rule{}, false
	}
	return a.policy.Rules[i], true
}

// clearsAt is when a cause will have been healthy for its rule's clearAfter; zero: it is not healthy, or has no rule.
func (a *assessment) clearsAt(c *Cause) time.Time {
	rule, ok := a.ruleOf(c)
	if !ok || c.HealthySince.IsZero() {
		return time.Time{}
	}
	return c.HealthySince.Add(rule.ClearAfter)
}

// hasCleared reports whether the cause has been healthy for its rule's clearAfter.
func (a *assessment) hasCleared(c *Cause) bool {
	at := a.clearsAt(c)
	return !at.IsZero() && !a.now.Before(at)
}

// dueAt is when a cause with a problem is due; not after now: it is.
//
// Unknown is written about a node that does not reach the API server, and an outage of the API server itself looks the same. So
// every kubelet gets the rule's `for` to report again from the time from which this process leads: an outage ends the process,
// which cannot renew its lease.
func (a *assessment) dueAt(r *Record, c *Cause, p problem) time.Time {
	due := c.FirstSeen.Add(p.rule.For)
	if c.Due || !p.isReady() && r.hasFlapped(p, a.now) {
		due = a.now
	}
	if heard := a.leadingSince.Add(p.rule.For); p.condition.Status == corev1.ConditionUnknown && heard.After(due) {
		due = heard
	}
	if settled := c.FirstSeen.Add(a.settle); c.Link.IsOpen() && settled.After(due) {
		due = settled
	}
	return due
}

// worst is the problem that decides: of the causes of r that are due and that filter accepts, the one about which most is done.
func (a *assessment) worst(r *Record, filter func(problem) bool) (worst problem, found bool) {
	for i := range r.Causes {
		c := &r.Causes[i]
		p, isProblem := a.problems[c.Condition]
		if !isProblem || !filter(p) || r.isCovered(p) || a.now.Before(a.dueAt(r, c, p)) {
			continue
		}
		stronger := cmp.Or(cmp.Compare(p.strength(), worst.strength()), cmp.Compare(p.rule.Priority, worst.rule.Priority)) > 0
		if stronger || !found {
			worst, found = p, true
		}
	}
	return worst, found
}

// markDue marks the causes of r that filter accepts and that are due, and reports whether one is.
func (a *assessment) markDue(r *Record, filter func(problem) bool, next *schedule) (found bool) {
	for i := range r.Causes {
		c := &r.Causes[i]
		p, isProblem := a.problems[c.Condition]
		if !isProblem || !filter(p) || r.isCovered(p) {
			continue
		}
		if due := a.dueAt(r, c, p); a.now.Before(due) {
			next.requeueAt(due)
			continue
		}
		c.Due, found = true, true
	}
	return found
}
