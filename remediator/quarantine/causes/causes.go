// Package causes has the record of a quarantine, and finds out what the conditions of a node mean by a policy: which of them are its
// causes, since when, and what is said about them. It is pure.
package causes

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

// Problem is a condition that matches a rule.
type Problem struct {
	Condition corev1.NodeCondition
	Rule      policy.Rule
	Class     conditions.Repair
	// Role is that of the faults in a broken link of the node's domain, and link what was found about that; the zero value is nothing.
	Role limits.LinkRole
	Link Link
	// isNew is set if faults have come since a manual release. The message has them alone.
	isNew bool
	// Reach is what a quarantine for the problem keeps pods off; gpus are the addresses of the GPUs of one that may reach only those.
	Reach isolate.Reach
	Gpus  []string
}

func (p Problem) IsActionable() bool { return !p.Rule.AlertOnly }

func (p Problem) IsEnforced() bool { return p.IsActionable() && !p.Rule.Observe }

func (p Problem) IsObserved() bool { return p.IsActionable() && p.Rule.Observe }

// Strength orders problems by what is done about them.
func (p Problem) Strength() int {
	return Strength(p.Class, p.Rule.Taint.Effect, p.Reach.Extent != isolate.WholeNode, p.Rule.RestartJobs)
}

// Strength orders decisions by what they do: whether the node leaves service, or single GPUs of it, the class, then what the taint
// keeps away, then whether jobs are restarted.
func Strength(class conditions.Repair, effect corev1.TaintEffect, isolates, restartsJobs bool) int {
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

// Assessment is what the conditions of a node mean now, by the rules of a policy.
type Assessment struct {
	Policy     *policy.Policy
	Node       *corev1.Node
	Now        time.Time
	Maintained bool
	BootSeen   time.Time
	// LeadingSince is since when this process leads.
	LeadingSince time.Time
	// Settle is how long a victim waits for the origin of its faults; zero: not.
	Settle time.Duration
	// Problems are the current conditions that match a rule.
	Problems map[corev1.NodeConditionType]Problem
	Stale    staleConditions
}

// Assess reads the conditions of a node. r is its record in the current boot, or nil; claims are those of others that maintain the node.
func Assess(p *policy.Policy, n *corev1.Node, r *Record, claims []node.Claim, next *Schedule) Assessment {
	a := Assessment{
		Policy: p, Node: n, Now: next.Now, Maintained: node.Maintained(n, next.Now), BootSeen: bootSeen(n, r, next.Now),
		Problems: map[corev1.NodeConditionType]Problem{},
		Stale:    checkHeartbeats(p, n, next),
	}
	if since, known := node.UpgradeSince(n); known {
		next.RequeueAt(since.Add(node.UpgradeStepLimit))
	}
	for _, claim := range node.Claims(n) {
		next.RequeueAt(claim.From)
		next.RequeueAt(claim.Until)
	}
	for _, c := range n.Status.Conditions {
		found := r.ManualRelease().NewFaults(c)
		c.Message = cmp.Or(found, c.Message)
		rule, class, ok := p.Match(n.Labels, c)
		switch {
		case !ok, c.Type == corev1.NodeReady && whyNotReadyIsNoFault(p, n, r, claims, c, a.Now) != "",
			node.Excuse(claims, c.Type, c.LastTransitionTime.Time) != "":
		case a.IsCurrent(c, rule):
			if r.needsReplacement(string(c.Type), c.Message, a.Now) {
				class = conditions.Replace
			}
			a.Problems[c.Type] = r.held(Problem{Condition: c, Rule: rule, Class: class, Role: units.RoleOf(c), isNew: found != ""})
		default:
			next.RequeueAt(a.Now.Add(Recheck))
		}
	}
	return a
}

// IsCurrent is [isCurrent], but false while the node is maintained: its conditions reflect the maintenance then.
func (a *Assessment) IsCurrent(c corev1.NodeCondition, rule policy.Rule) bool {
	return !a.Maintained && isCurrent(c, rule, a.BootSeen, a.Now)
}

// Sorted lists the problems in the order of their condition types.
func (a *Assessment) Sorted() []Problem {
	var list []Problem
	for _, p := range a.Problems {
		list = append(list, p)
	}
	slices.SortFunc(list, func(a, b Problem) int { return strings.Compare(string(a.Condition.Type), string(b.Condition.Type)) })
	return list
}

// since is the time of the condition's last transition by the node, in UTC; zero while that time is still to come. A timer
// restarts at it if it is later than what the record says: the transition came between two decisions, or while nothing could
// be written. An earlier time changes nothing, because the node chooses it.
func (a *Assessment) since(c corev1.NodeCondition) time.Time {
	if at := c.LastTransitionTime.Time; !at.After(a.Now) {
		return at.UTC()
	}
	return time.Time{}
}

// ConditionOf is the condition of a cause, as the node has it now.
func (a *Assessment) ConditionOf(c *Cause) (condition corev1.NodeCondition, exists bool) {
	i := slices.IndexFunc(a.Node.Status.Conditions, func(n corev1.NodeCondition) bool { return n.Type == c.Condition })
	if i < 0 {
		return corev1.NodeCondition{}, false
	}
	return a.Node.Status.Conditions[i], true
}

// DropOver drops the causes of a suspicion that are over. Those whose flaps still count are kept for these.
func DropOver(r *Record, a *Assessment, next *Schedule) {
	r.Causes = slices.DeleteFunc(r.Causes, func(c Cause) bool {
		p, isProblem := a.Problems[c.Condition]
		rule, hasRule := a.RuleOf(&c)
		if !hasRule || isProblem && !p.IsActionable() {
			return true
		}
		if c.HealthySince.IsZero() {
			return false
		}
		until := c.flapsUntil(rule.Flaps, a.Now)
		next.RequeueAt(until)
		return until.IsZero()
	})
	if r.hasOnlyFlapTimes() {
		r.Isolation = nil
	}
}

// UpdateCauses brings the causes of a record up to date with the conditions. A changed message restarts no timer.
func (a *Assessment) UpdateCauses(r *Record, next *Schedule) {
	for i := range r.Causes {
		if c := &r.Causes[i]; c.Rule != policy.ByHand { // no condition belongs to a manual quarantine
			a.updateCause(r, c, next)
		}
	}
	if !r.ManualReleaseActive {
		a.addCauses(r)
	}
}

func (a *Assessment) updateCause(r *Record, c *Cause, next *Schedule) {
	p, isProblem := a.Problems[c.Condition]
	isOver := isProblem && r.IsCovered(p) || r.Phase != Suspect && a.isOnlyWorthAnAlert(c)
	switch {
	case isProblem && !isOver:
		a.updateFault(r, c, p)
	case isOver, a.isHealthy(c, r.ManualReleaseActive):
		next.RequeueAt(a.currentUntil(c))
		a.updateHealth(r, c)
	default:
		if r.Phase != Suspect { // a suspect's cause that is healthy is kept for its flaps alone
			c.HealthySince = time.Time{}
		}
		next.RequeueAt(a.Now.Add(Recheck))
	}
}

// updateFault updates a cause whose fault stands.
func (a *Assessment) updateFault(r *Record, c *Cause, p Problem) {
	began := a.since(p.Condition)
	a.updateLink(c, p)
	switch {
	case !c.HealthySince.IsZero():
		began = a.Now
	case p.IsReady():
		began = c.FirstSeen // between Unknown and False the node was not Ready either
	}
	// A fault that is due during a quarantine waits for nothing any more, but for a node that is away again: that must last again
	// unless it has made the quarantine.
	waits := r.Phase == Suspect || !c.Due || p.IsReady() && r.Taint.Rule != p.Rule.Name
	if waits && began.After(c.FirstSeen) {
		c.FirstSeen, c.Due = began, r.returnedEarly(p, a.Now)
	}
	// A rule that only observes must not keep a quarantine that another rule has made. And what was released is what a worse fault is
	// compared with.
	keeps := r.Phase == Quarantined && p.Rule.Observe || r.ManualReleaseActive && r.Exceeds(p)
	if !keeps {
		c.update(p, a.Node.Status.NodeInfo.BootID)
	}
	c.HealthySince = time.Time{}
}

// updateHealth updates a cause that is healthy, or over.
func (a *Assessment) updateHealth(r *Record, c *Cause) {
	if !c.HealthySince.IsZero() {
		condition, _ := a.ConditionOf(c)
		if began := a.since(condition); began.After(c.HealthySince) {
			c.HealthySince = began
		}
		return
	}
	c.HealthySince = a.Now
	if rule, ok := a.RuleOf(c); ok && r.Phase == Suspect {
		c.recordFlap(rule.Flaps, a.Now)
	}
	if c.Repair == conditions.ResetGPU {
		r.RecordRepair(c, a.Now)
	}
}

// addCauses adds the problems that are no cause yet.
func (a *Assessment) addCauses(r *Record) {
	for _, p := range a.Sorted() {
		wanted := p.IsEnforced() || p.IsObserved() && r.Phase == Suspect
		if wanted && !r.HasCause(p.Condition.Type) && !r.isReleased(p) && len(r.Causes) < MaxCauses {
			c := Cause{Condition: p.Condition.Type, FirstSeen: a.Now, Due: r.returnedEarly(p, a.Now)}
			c.update(p, a.Node.Status.NodeInfo.BootID)
			a.updateLink(&c, p)
			r.Causes = append(r.Causes, c)
		}
	}
}

// isOnlyWorthAnAlert reports whether what is left of a cause is a milder finding that the policy only reports. What the cause
// needed was done then: a finding is reported in the worst class that stands. Such a condition may never become healthy.
func (a *Assessment) isOnlyWorthAnAlert(c *Cause) bool {
	p, isProblem := a.Problems[c.Condition]
	return isProblem && p.Rule.AlertOnly && p.Class < c.Repair
}

// AlertOnlyCauses names what is left of the causes of a record and is only worth an alert, as the end of a sentence.
func (a *Assessment) AlertOnlyCauses(r *Record) string {
	text := ""
	for i := range r.Causes {
		if a.isOnlyWorthAnAlert(&r.Causes[i]) {
			p := a.Problems[r.Causes[i].Condition]
			text += fmt.Sprintf("; what remains is only worth an alert (rule %s: %s)",
				p.Rule.Name, Clip(p.Condition.Message, conditions.MaxMessage/4))
		}
	}
	return Clip(text, conditions.MaxMessage)
}

// Exceeds reports whether a problem is one that a manual release does not cover.
func (r *Record) Exceeds(p Problem) bool { return p.IsEnforced() && !r.covers(p) }

// covers reports whether the release of a quarantine covers a problem: it is no worse, and its condition shows no new fault. Who releases
// a node for other faults does not expect it to die.
func (q *Quarantine) covers(p Problem) bool {
	// A release without a person is only for the faults of a broken link that is repaired.
	if (p.IsReady() || q.ReleasedBy == ByPitcrew) && !q.HasCause(p.Condition.Type) {
		return false
	}
	if p.IsReady() {
		return true
	}
	return p.Class <= q.Worst() && !p.isNew
}

// isReleased reports whether a manual release that still holds covers a problem. Another fault has begun a suspicion over it.
func (r *Record) isReleased(p Problem) bool {
	q := r.ManualRelease()
	return r.Phase != Released && q != nil && q.covers(p)
}

// returnedEarly reports whether the problem is back before its condition was healthy for clearAfter again, counted from the
// release. Its rule's `for` has passed once already. A node that is away again gets the whole time: the guard against common causes
// needs it to see the others.
func (r *Record) returnedEarly(p Problem, now time.Time) bool {
	if r.Phase != Suspect || len(r.Last) == 0 || p.IsReady() {
		return false
	}
	last := r.Last[0]
	return last.HasCause(p.Condition.Type) && now.Sub(last.ReleasedAt) < p.Rule.ClearAfter
}

// update takes over the class and message of the condition, unless the class is milder than one seen before in the same
// boot. Replace stays across boots, because a boot cannot repair it.
func (c *Cause) update(p Problem, bootID string) {
	if p.IsReady() && c.HealthySince.IsZero() && c.BootID != "" {
		bootID = c.BootID // that in which the node was Ready last
	}
	sameBoot := c.BootID == bootID || c.Repair == conditions.Replace
	again := c.BootID != bootID || !c.HealthySince.IsZero()
	c.BootID, c.RepairRecorded = bootID, false
	if p.Class < c.Repair && sameBoot {
		return
	}
	c.Rule = p.Rule.Name
	if p.Class != c.Repair || again {
		c.Repair = p.Class
		c.Message = Clip(p.Condition.Message, conditions.MaxMessage)
	}
}

// Clip cuts a text to a number of bytes, and never within a character. It bounds what the messages of others add to
// annotations, Events and ConfigMaps.
func Clip(text string, maxBytes int) string {
	return strings.ToValidUTF8(text[:min(len(text), maxBytes)], "?")
}

// isHealthy reports whether the condition of a cause is current and not a problem.
func (a *Assessment) isHealthy(c *Cause, manualRelease bool) bool {
	condition, exists := a.ConditionOf(c)
	if !exists {
		// A monitor that was removed never reports that its fault has cleared. That ends no quarantine, but a manual release
		// must not wait for it.
		return manualRelease
	}
	rule, ok := a.RuleOf(c)
	switch {
	case !ok, rule.IsFault(condition.Status), condition.Status == corev1.ConditionUnknown, !a.IsCurrent(condition, rule):
		return false
	case c.Condition == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
		return false // a rule may be about one of the two other statuses
	}
	return true
}

// currentUntil is just after the time from which the condition of a cause is stale; zero: that is not known.
func (a *Assessment) currentUntil(c *Cause) time.Time {
	condition, exists := a.ConditionOf(c)
	rule, ok := a.RuleOf(c)
	if p, isProblem := a.Problems[c.Condition]; isProblem {
		rule, ok = p.Rule, true
	}
	if !exists || !ok {
		return time.Time{}
	}
	return condition.LastHeartbeatTime.Add(rule.UnknownAfter + time.Second)
}

// RuleOf is the rule of a cause or, if the policy has renamed it, the first one for the condition.
func (a *Assessment) RuleOf(c *Cause) (policy.Rule, bool) {
	if rule, ok := a.Policy.Rule(c.Rule); ok {
		return rule, true
	}
	i := slices.IndexFunc(a.Policy.Rules, func(r policy.Rule) bool { return r.Condition == c.Condition && !r.AlertOnly })
	if i < 0 {
		return policy.Rule{}, false
	}
	return a.Policy.Rules[i], true
}

// ClearsAt is when a cause will have been healthy for its rule's clearAfter; zero: it is not healthy, or has no rule.
func (a *Assessment) ClearsAt(c *Cause) time.Time {
	rule, ok := a.RuleOf(c)
	if !ok || c.HealthySince.IsZero() {
		return time.Time{}
	}
	return c.HealthySince.Add(rule.ClearAfter)
}

// hasCleared reports whether the cause has been healthy for its rule's clearAfter.
func (a *Assessment) hasCleared(c *Cause) bool {
	at := a.ClearsAt(c)
	return !at.IsZero() && !a.Now.Before(at)
}

// DueAt is when a cause with a problem is due; not after now: it is.
//
// Unknown is written about a node that does not reach the API server, and an outage of the API server itself looks the same. So
// every kubelet gets the rule's `for` to report again from the time from which this process leads: an outage ends the process,
// which cannot renew its lease.
func (a *Assessment) DueAt(r *Record, c *Cause, p Problem) time.Time {
	due := c.FirstSeen.Add(p.Rule.For)
	if c.Due || !p.IsReady() && r.HasFlapped(p, a.Now) {
		due = a.Now
	}
	if heard := a.LeadingSince.Add(p.Rule.For); p.Condition.Status == corev1.ConditionUnknown && heard.After(due) {
		due = heard
	}
	if settled := c.FirstSeen.Add(a.Settle); c.Link.IsOpen() && settled.After(due) {
		due = settled
	}
	return due
}

// Worst is the problem that decides: of the causes of r that are due and that filter accepts, the one about which most is done.
func (a *Assessment) Worst(r *Record, filter func(Problem) bool) (worst Problem, found bool) {
	for i := range r.Causes {
		c := &r.Causes[i]
		p, isProblem := a.Problems[c.Condition]
		if !isProblem || !filter(p) || r.IsCovered(p) || a.Now.Before(a.DueAt(r, c, p)) {
			continue
		}
		stronger := cmp.Or(cmp.Compare(p.Strength(), worst.Strength()), cmp.Compare(p.Rule.Priority, worst.Rule.Priority)) > 0
		if stronger || !found {
			worst, found = p, true
		}
	}
	return worst, found
}

// MarkDue marks the causes of r that filter accepts and that are due, and reports whether one is.
func (a *Assessment) MarkDue(r *Record, filter func(Problem) bool, next *Schedule) (found bool) {
	for i := range r.Causes {
		c := &r.Causes[i]
		p, isProblem := a.Problems[c.Condition]
		if !isProblem || !filter(p) || r.IsCovered(p) {
			continue
		}
		if due := a.DueAt(r, c, p); a.Now.Before(due) {
			next.RequeueAt(due)
			continue
		}
		c.Due, found = true, true
	}
	return found
}

// Has reports whether a problem is one that filter accepts.
func (a *Assessment) Has(filter func(Problem) bool) bool {
	for _, p := range a.Problems {
		if filter(p) {
			return true
		}
	}
	return false
}

// AllowsRelease reports whether every cause of a quarantine has cleared by the rules of its class. isOver reports of a cause that has not
// cleared whether the quarantine need not wait for it.
func (a *Assessment) AllowsRelease(q *Quarantine, isOver func(*Cause) bool) bool {
	boot := a.Node.Status.NodeInfo.BootID
	for i := range q.Causes {
		switch c := &q.Causes[i]; {
		case !a.hasCleared(c):
			if !isOver(c) {
				return false
			}
		case c.Repair == conditions.Replace: // only a person knows that the part was replaced
			return false
		case c.Repair == conditions.Reboot && (boot == "" || boot == c.BootID):
			return false
		}
	}
	return !q.ManualReleaseOnly
}

// ValidatingRule is a rule of a cause that asks for a validation before the node returns; false: none does. A rule that only observes
// asks for nothing, and no rule belongs to a manual quarantine.
func (a *Assessment) ValidatingRule(q *Quarantine) (policy.Rule, bool) {
	for i := range q.Causes {
		c := &q.Causes[i]
		if rule, ok := a.RuleOf(c); ok && c.Due && rule.Validate && !rule.Observe {
			return rule, true
		}
	}
	return policy.Rule{}, false
}

// IsHealthy reports whether no condition of a cause reports a fault. A manual quarantine has none.
func (q *Quarantine) IsHealthy() bool {
	return !slices.ContainsFunc(q.Causes, func(c Cause) bool { return c.Rule != policy.ByHand && c.HealthySince.IsZero() })
}
