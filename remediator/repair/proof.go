package repair

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/gpus"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// state is what a condition shows about a cause of a quarantine.
type state int

const (
	// unclear: the condition is missing, Unknown or stale.
	unclear state = iota
	// faulty: the fault is there.
	faulty
	// cleared: it is not.
	cleared
)

// ruleOf is the rule of a cause or, if the policy has renamed it, the first one for the condition.
func (d *decider) ruleOf(c *causes.Cause) (policy.Rule, bool) {
	if rule, ok := d.policy.Rule(c.Rule); ok {
		return rule, true
	}
	i := slices.IndexFunc(d.policy.Rules, func(r policy.Rule) bool { return r.Condition == c.Condition && !r.AlertOnly })
	if i < 0 {
		return policy.Rule{}, false
	}
	return d.policy.Rules[i], true
}

// stateOf is what is known about a cause before an action: it has cleared by the engine's own view, or the fault is there, in this boot.
func (d *decider) stateOf(q *causes.Record, c *causes.Cause) state {
	boot := d.facts.Node.Status.NodeInfo.BootID
	if boot == "" || q.Boot.ID != boot {
		return unclear // the engine has not seen this boot yet
	}
	now := d.shows(c, q.Boot.Seen.Truncate(time.Second))
	switch {
	case now == faulty:
		return faulty
	case c.Repair == conditions.Reboot && c.BootID == boot && (now == cleared || !c.HealthySince.IsZero()):
		return faulty // a boot is what it needs, whatever the condition says
	case now == cleared && !c.HealthySince.IsZero():
		return cleared
	}
	return unclear
}

// shows is what the condition of a cause shows. It counts with a heartbeat that is not older than a time, and current by its rule.
func (d *decider) shows(c *causes.Cause, since time.Time) state {
	rule, known := d.ruleOf(c)
	condition, exists := node.ConditionOf(d.facts.Node, c.Condition)
	if !known || !exists {
		return unclear
	}
	heartbeat := condition.LastHeartbeatTime.Time
	if c.Condition != corev1.NodeReady && rule.UnknownAfter != policy.Never {
		if heartbeat.Before(since) || d.now.Sub(heartbeat) > rule.UnknownAfter || causes.FromFuture(heartbeat, d.now) {
			return unclear
		}
	}
	switch {
	case rule.IsFault(condition.Status):
		// What is left may be a milder finding that is only worth an alert.
		if r, class, ok := d.policy.Match(d.facts.Node.Labels, condition); ok && r.AlertOnly && class < c.Repair {
			return cleared
		}
		return faulty
	case condition.Status == corev1.ConditionUnknown, c.Condition == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
		return unclear
	}
	return cleared
}

// needsAction tells whether a cause is one that actions are for.
func needsAction(c *causes.Cause) bool {
	return c.Due && (c.Repair == conditions.ResetGPU || c.Repair == conditions.Reboot)
}

// needsReplacement tells whether a cause is of class Replace.
func needsReplacement(q *causes.Record) bool {
	return slices.ContainsFunc(q.Causes, func(c causes.Cause) bool { return c.Due && c.Repair == conditions.Replace })
}

// classOf is the class of the action that a quarantine needs now; why says that it needs none.
func (d *decider) classOf(q *causes.Record) (class conditions.Repair, why string) {
	if needsReplacement(q) {
		return 0, "a cause is of class Replace"
	}
	unknown := ""
	for i := range q.Causes {
		c := &q.Causes[i]
		if !needsAction(c) {
			continue
		}
		switch d.stateOf(q, c) {
		case faulty:
			class = max(class, c.Repair)
		case unclear:
			unknown = "condition " + string(c.Condition) + " has no recent report of this boot; " +
				"see whether the Node Problem Detector runs on the node"
		}
	}
	switch {
	case class > 0:
		return class, ""
	case unknown != "":
		return 0, unknown
	}
	return 0, "no cause of class ResetGPU or Reboot is there"
}

// unproven names the causes that an action has not removed, by what is known after the Job; still tells whether the fault of one is
// there for sure.
func (d *decider) unproven(q *causes.Record, v *visit.Visit) (names []string, still bool) {
	boot := d.facts.Node.Status.NodeInfo.BootID
	for i := range q.Causes {
		c := &q.Causes[i]
		if !needsAction(c) {
			continue
		}
		now := d.shows(c, v.JobEndedAt)
		if now == cleared {
			condition, _ := node.ConditionOf(d.facts.Node, c.Condition)
			settled := firstcheck.Later(condition.LastTransitionTime.Time, v.JobEndedAt).Add(firstcheck.SettleTime(c.Condition))
			switch {
			case c.Repair == conditions.Reboot && boot == v.BootID && c.BootID == boot:
				now = faulty
			case d.now.Before(settled):
				d.requeueAt(settled)
				now = unclear
			default:
				continue
			}
		}
		names, still = append(names, string(c.Condition)), still || now == faulty
	}
	return names, still
}

// judge looks at all conditions of ours on a node after a check: fault is the first that shows one, waits the first that has not been
// reported since the check, or is missing.
func (d *decider) judge(v *visit.Visit) (fault, waits string) {
	for _, name := range v.Verdict {
		if _, ok := node.ConditionOf(d.facts.Node, corev1.NodeConditionType(name)); !ok {
			waits = name
		}
	}
	for _, condition := range d.facts.Node.Status.Conditions {
		name := string(condition.Type)
		if !conditions.Ours(name) || conditions.IsVerdict(name) {
			continue
		}
		limit, named := d.policy.UnknownAfter(condition.Type)
		if !named && !slices.Contains(v.Verdict, name) {
			continue
		}
		rule, _, matched := d.policy.Match(d.facts.Node.Labels, condition)
		heartbeat := condition.LastHeartbeatTime.Time
		switch {
		case matched && !rule.AlertOnly:
			fault = name
		case limit != policy.Never && (!heartbeat.After(v.JobEndedAt) || causes.FromFuture(heartbeat, d.now)),
			condition.Status == corev1.ConditionUnknown:
			waits = name
		}
	}
	return fault, waits
}

// causeNames names the conditions of the causes that are due.
func causeNames(q *causes.Record) string {
	var names []string
	for _, c := range q.Causes {
		if c.Due {
			names = append(names, string(c.Condition))
		}
	}
	return strings.Join(names, ", ")
}

// gpusOf are the faulty GPUs that a visit is about, by their PCI addresses; none: they are not known.
func (d *decider) gpusOf(v *visit.Visit) []string {
	if q := d.facts.Quarantine; q != nil && v.Quarantine != "" {
		return gpus.Faulty(d.facts.Node, slices.DeleteFunc(slices.Clone(q.Causes), func(c causes.Cause) bool { return !needsAction(&c) }))
	}
	return nil
}
