// Package proof returns, by the conditions of a node, what is known about the causes of its quarantine. It is pure.
package proof

import (
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/gpus"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// State is what a condition shows about a cause of a quarantine.
type State int

const (
	// Unclear: the condition is missing, Unknown or stale.
	Unclear State = iota
	// Faulty: the fault is there.
	Faulty
	// Cleared: it is not.
	Cleared
)

// View is a node at a time, with the record of its quarantine. Quarantine may be nil where a method does not name a cause.
type View struct {
	Policy     *policy.Policy
	Node       *corev1.Node
	Quarantine *causes.Record
	Now        time.Time
}

// Standing returns the quarantine that takes a node out of service; nil: none does, or its taint is not on the node, or the taint only
// asks the scheduler to avoid the node, or the quarantine isolates single GPUs and leaves the node in service. A kubelet can forge the
// record but not the taint.
func Standing(n *corev1.Node, q *causes.Record) *causes.Record {
	if q == nil || q.NodeUID != n.UID || q.Phase != causes.Quarantined || limits.IsSoft(q.Taint.Effect) || q.IsIsolated() {
		return nil
	}
	for _, t := range n.Spec.Taints {
		if t.Key == q.Taint.Key && t.Effect == q.Taint.Effect {
			return q
		}
	}
	return nil
}

// State returns what is known about a cause before an action: it has cleared by the engine's own view, or the fault is there, in this
// boot.
func (s View) State(c *causes.Cause) State {
	boot := s.Node.Status.NodeInfo.BootID
	if boot == "" || s.Quarantine.Boot.ID != boot {
		return Unclear // the engine has not seen this boot yet
	}
	now := s.Shows(c)
	switch {
	case now == Faulty:
		return Faulty
	case c.Repair == conditions.Reboot && c.BootID == boot && (now == Cleared || !c.HealthySince.IsZero()):
		return Faulty // a boot is what it needs, whatever the condition reports
	case now == Cleared && !c.HealthySince.IsZero():
		return Cleared
	}
	return Unclear
}

// Shows returns what the condition of a cause shows by the heartbeats of this boot.
func (s View) Shows(c *causes.Cause) State {
	return s.since(c, s.Quarantine.Boot.Seen.Truncate(time.Second))
}

// since returns what the condition of a cause shows. It counts with a heartbeat that is not older than a time, and current by its rule.
func (s View) since(c *causes.Cause, since time.Time) State {
	rule, known := (&causes.Assessment{Policy: s.Policy}).RuleOf(c)
	condition, exists := node.ConditionOf(s.Node, c.Condition)
	if !known || !exists {
		return Unclear
	}
	heartbeat := condition.LastHeartbeatTime.Time
	if c.Condition != corev1.NodeReady && rule.UnknownAfter != policy.Never {
		if heartbeat.Before(since) || s.Now.Sub(heartbeat) > rule.UnknownAfter || causes.FromFuture(heartbeat, s.Now) {
			return Unclear
		}
	}
	switch {
	case rule.IsFault(condition.Status):
		// What is left may be a milder finding that is only worth an alert.
		if r, class, ok := s.Policy.Match(s.Node.Labels, condition); ok && r.AlertOnly && class < c.Repair {
			return Cleared
		}
		return Faulty
	case condition.Status == corev1.ConditionUnknown, c.Condition == corev1.NodeReady && condition.Status != corev1.ConditionTrue:
		return Unclear
	}
	return Cleared
}

// needsAction reports whether a cause is one that actions are for.
func needsAction(c *causes.Cause) bool {
	return c.Due && (c.Repair == conditions.ResetGPU || c.Repair == conditions.Reboot)
}

// forActions returns the causes that actions are for.
func forActions(q *causes.Record) (of []*causes.Cause) {
	for i := range q.Causes {
		if c := &q.Causes[i]; needsAction(c) {
			of = append(of, c)
		}
	}
	return of
}

// NeedsReplacement reports whether a cause is of class Replace.
func NeedsReplacement(q *causes.Record) bool {
	return slices.ContainsFunc(q.Causes, func(c causes.Cause) bool { return c.Due && c.Repair == conditions.Replace })
}

// WorstClass returns the worst class of the causes that actions are for. q may be nil.
func WorstClass(q *causes.Record) (class conditions.Repair) {
	if q == nil {
		return 0
	}
	for _, c := range forActions(q) {
		class = max(class, c.Repair)
	}
	return class
}

// Names names the conditions of the causes that are due.
func Names(q *causes.Record) string {
	var names []string
	for _, c := range q.Causes {
		if c.Due {
			names = append(names, string(c.Condition))
		}
	}
	return strings.Join(names, ", ")
}

// Class returns the class of the action that the quarantine needs now; why reports that it needs none.
func (s View) Class() (class conditions.Repair, why string) {
	if NeedsReplacement(s.Quarantine) {
		return 0, "a cause is of class Replace"
	}
	unknown := ""
	for _, c := range forActions(s.Quarantine) {
		switch s.State(c) {
		case Faulty:
			class = max(class, c.Repair)
		case Unclear:
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

// IsFixed reports whether no cause needs an action any more.
func (s View) IsFixed() bool {
	return !slices.ContainsFunc(forActions(s.Quarantine), func(c *causes.Cause) bool { return s.State(c) != Cleared })
}

// Faulty returns the first condition of a cause that shows its fault; empty: none does. is may be [View.State] or [View.Shows].
func (s View) Faulty(is func(*causes.Cause) State) corev1.NodeConditionType {
	for i := range s.Quarantine.Causes {
		if c := &s.Quarantine.Causes[i]; c.Due && is(c) == Faulty {
			return c.Condition
		}
	}
	return ""
}

// AwaitsValidation reports whether every cause has cleared and the rule of one asks for a validation; at is when to ask again, zero: not
// before something changes.
func (s View) AwaitsValidation() (awaits bool, at time.Time) {
	q := s.Quarantine
	for i := range q.Causes {
		c := &q.Causes[i]
		if !c.Due {
			continue
		}
		if s.State(c) != Cleared || c.Repair == conditions.Replace || q.ManualReleaseOnly {
			return false, at
		}
		if settled := c.HealthySince.Add(firstcheck.SettleTime(c.Condition)); s.Now.Before(settled) {
			return false, settled
		}
	}
	return quarantine.NeedsValidation(s.Policy, &q.Quarantine), at
}

// Unproven is what an action has left.
type Unproven struct {
	// Names are the conditions of the causes that it has not removed.
	Names []string
	// Still is set if the fault of one is there for sure.
	Still bool
	// At is when a condition that has cleared counts as proof; zero: none has to settle.
	At time.Time
}

// After returns what an action has not removed, by what is known after its Job.
func (s View) After(v *visit.Visit) (left Unproven) {
	boot := s.Node.Status.NodeInfo.BootID
	for _, c := range forActions(s.Quarantine) {
		now := s.since(c, v.JobEndedAt)
		if now == Cleared {
			condition, _ := node.ConditionOf(s.Node, c.Condition)
			settled := firstcheck.Later(condition.LastTransitionTime.Time, v.JobEndedAt).Add(firstcheck.SettleTime(c.Condition))
			switch {
			case c.Repair == conditions.Reboot && boot == v.BootID && c.BootID == boot:
				now = Faulty
			case s.Now.Before(settled):
				if left.At.IsZero() || settled.Before(left.At) {
					left.At = settled
				}
				now = Unclear
			default:
				continue
			}
		}
		left.Names, left.Still = append(left.Names, string(c.Condition)), left.Still || now == Faulty
	}
	return left
}

// Judge looks at all conditions of ours on a node after a check: fault is the last that shows one, waits the last that has not been
// reported since the check, or is missing.
func (s View) Judge(v *visit.Visit) (fault, waits string) {
	for _, name := range v.Verdict {
		if _, ok := node.ConditionOf(s.Node, corev1.NodeConditionType(name)); !ok {
			waits = name
		}
	}
	for _, condition := range s.Node.Status.Conditions {
		name := string(condition.Type)
		if !conditions.Ours(name) || conditions.IsVerdict(name) {
			continue
		}
		limit, named := s.Policy.UnknownAfter(condition.Type)
		if !named && !slices.Contains(v.Verdict, name) {
			continue
		}
		rule, _, matched := s.Policy.Match(s.Node.Labels, condition)
		heartbeat := condition.LastHeartbeatTime.Time
		switch {
		case matched && !rule.AlertOnly:
			fault = name
		case limit != policy.Never && (!heartbeat.After(v.JobEndedAt) || causes.FromFuture(heartbeat, s.Now)),
			condition.Status == corev1.ConditionUnknown:
			waits = name
		}
	}
	return fault, waits
}

// GPUs returns the faulty GPUs of the causes that actions are for, by their PCI addresses; none: they are not known.
func (s View) GPUs() []string {
	if s.Quarantine == nil {
		return nil
	}
	return gpus.Faulty(s.Node, slices.DeleteFunc(slices.Clone(s.Quarantine.Causes), func(c causes.Cause) bool { return !needsAction(&c) }))
}
