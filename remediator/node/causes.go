package node

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// problem is a condition that matches a rule.
type problem struct {
	condition corev1.NodeCondition
	rule      policy.Rule
	class     conditions.Repair
}

// problems lists what stands, in the order of the condition types.
func (d *decider) problems() []problem {
	var list []problem
	for _, c := range d.Node.Status.Conditions {
		if p, ok := d.standing[c.Type]; ok {
			list = append(list, p)
		}
	}
	slices.SortFunc(list, func(a, b problem) int { return strings.Compare(string(a.condition.Type), string(b.condition.Type)) })
	return list
}

func actionable(p problem) bool { return !p.rule.AlertOnly }

func enforced(p problem) bool { return actionable(p) && !p.rule.Observe }

func observed(p problem) bool { return actionable(p) && p.rule.Observe }

// updateCauses brings the causes up to date with the conditions. No clock starts again because a message changed.
func (d *decider) updateCauses() {
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		if c.Rule == policy.ByHand {
			continue // no condition speaks for it or against it
		}
		switch p, stands := d.standing[c.Condition]; {
		case stands:
			if d.record.Phase == Suspect && !c.HealthySince.IsZero() {
				c.FirstSeen, c.Due = d.now, d.returned(p)
			}
			// What only observes must not keep a quarantine that another rule has made.
			if d.record.Phase != Quarantined || !p.rule.Observe {
				c.see(p, d.Node.Status.NodeInfo.BootID)
			}
			c.HealthySince = time.Time{}
		case d.healthy(c):
			if c.HealthySince.IsZero() {
				c.HealthySince = d.now
				d.dipped(c)
				if c.Repair == conditions.ResetGPU {
					d.mended(c)
				}
			}
		default:
			if d.record.Phase != Suspect { // a suspect's cause is healthy only in memory of its dips
				c.HealthySince = time.Time{}
			}
			d.wake(d.now.Add(recheck))
		}
	}
	if d.record.Holds {
		return
	}
	for _, p := range d.problems() {
		wanted := enforced(p) || observed(p) && d.record.Phase == Suspect
		if wanted && !d.record.blames(p.condition.Type) {
			c := Cause{Condition: p.condition.Type, FirstSeen: d.now, Due: d.returned(p)}
			c.see(p, d.Node.Status.NodeInfo.BootID)
			d.record.Causes = append(d.record.Causes, c)
		}
	}
}

// returned tells whether the problem is back before its condition was healthy for clearAfter again, counted from the
// release. It has been waited for once.
func (d *decider) returned(p problem) bool {
	if d.record.Phase != Suspect || len(d.record.Last) == 0 {
		return false
	}
	last := d.record.Last[0]
	return last.blames(p.condition.Type) && d.now.Sub(last.ReleasedAt) < p.rule.ClearAfter
}

// see takes over what the condition says, unless it is milder than what it said before in the same boot. What a boot
// cannot mend stays across boots.
func (c *Cause) see(p problem, bootID string) {
	sameBoot := c.BootID == bootID || c.Repair == conditions.Replace
	again := c.BootID != bootID || !c.HealthySince.IsZero()
	c.BootID, c.Mended = bootID, false
	if p.class < c.Repair && sameBoot {
		return
	}
	c.Rule = p.rule.Name
	if p.class != c.Repair || again {
		c.Repair = p.class
		c.Message = clip(p.condition.Message)
	}
}

// clip bounds what a foreign message adds to the annotation.
func clip(message string) string { return clipTo(message, conditions.MaxMessage) }

// clipTo cuts a message, and leaves no half a character.
func clipTo(message string, most int) string {
	return strings.ToValidUTF8(message[:min(len(message), most)], "?")
}

// healthy tells whether the cause's condition says, believably, that the problem is gone.
func (d *decider) healthy(c *Cause) bool {
	rule, ok := d.ruleOf(c)
	i := slices.IndexFunc(d.Node.Status.Conditions, func(n corev1.NodeCondition) bool { return n.Type == c.Condition })
	if i < 0 {
		// A monitor that was removed never says that its fault is gone. That ends no quarantine, but a person's release must not
		// wait for it.
		return d.record.Holds
	}
	if !ok {
		return false
	}
	condition := d.Node.Status.Conditions[i]
	if condition.Status == rule.Status || condition.Status == corev1.ConditionUnknown || !d.believable(condition, rule) {
		return false
	}
	d.wake(condition.LastHeartbeatTime.Add(rule.UnknownAfter + time.Second))
	return true
}

// ruleOf is the rule of a cause or, if the policy has renamed it, the first one for the condition.
func (d *decider) ruleOf(c *Cause) (policy.Rule, bool) {
	if rule, ok := d.policy.Rule(c.Rule); ok {
		return rule, true
	}
	i := slices.IndexFunc(d.policy.Rules, func(r policy.Rule) bool { return r.Condition == c.Condition && !r.AlertOnly })
	if i < 0 {
		return policy.Rule{}, false
	}
	return d.policy.Rules[i], true
}

// cleared tells whether the cause has been healthy for as long as its rule wants.
func (d *decider) cleared(c Cause) bool {
	rule, ok := d.ruleOf(&c)
	if !ok || c.HealthySince.IsZero() {
		return false
	}
	due := c.HealthySince.Add(rule.ClearAfter)
	d.wake(due)
	return !d.now.Before(due)
}
