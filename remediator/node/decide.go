package node

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/webhook"
)

// Reasons of Events on Nodes and, from DetectorSuspect on, on our namespace.
const (
	NodeQuarantined    = "NodeQuarantined"
	QuarantineUpgraded = "QuarantineUpgraded"
	QuarantineBlocked  = "QuarantineBlocked"
	TaintRestored      = "TaintRestored"
	NodeReleased       = "NodeReleased"
	ReleaseByHand      = "ReleaseByHand"
	DetectorSuspect    = "DetectorSuspect"
	BreakerOpen        = "BreakerOpen"
	BreakerClosed      = "BreakerClosed"
	PolicyInvalid      = "PolicyInvalid"
)

// What blocks a decision; the values of the metric's label.
const (
	BlockedByObserve   = "observe-only"
	BlockedByBudget    = "budget"
	BlockedByBreaker   = "breaker"
	BlockedBySuspicion = "detector-suspect"
	BlockedByStale     = "stale"
	BlockedByPause     = "paused"
	BlockedByPerson    = "released-by-hand"
	BlockedByRecord    = "record-unreadable"
	BlockedByPolicy    = "rule-gone"
)

const (
	// recheck is how often a condition that says nothing now (stale, older than the boot) is looked at again: that it
	// speaks again may show in its heartbeat alone, which causes no reconcile.
	recheck = time.Minute
	// retryBlocked is how often a quarantine that a budget blocks is tried again.
	retryBlocked = 5 * time.Second
)

// sweeps are the times after the taint at which the node's jobs are looked at again: the scheduler may have bound a pod
// to the node before it saw the taint.
var sweeps = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// Observation is what is known about one node: plain values, no client.
type Observation struct {
	// Node is as the cache keeps it, see [Slim].
	Node *corev1.Node
	// Record is nil when the node has none; RecordErr says that it has one that does not parse.
	Record    *Record
	RecordErr error
	// Paused is why everything is paused, empty when it is not.
	Paused string
	// Peers are all other nodes.
	Peers []Peer
	// Breaker is nil while it is closed.
	Breaker *BreakerState
	// Told are the notices that need not be told again.
	Told map[webhook.Receipt]bool
}

// Decision is what must be done about a node.
type Decision struct {
	// State is what the node must carry; nil leaves it as it is.
	State *State
	// Events are to be written once State stands on the node.
	Events []Event
	// Blocked says what was not done; nil when nothing was held back.
	Blocked *Blocked
	// SetBreaker opens the breaker or, with a zero time, closes it; nil leaves it.
	SetBreaker *BreakerState
	// RestartJobs asks for the restart of the jobs with pods on the node, now that State stands.
	RestartJobs bool
	// RequeueAfter is when to decide again even if nothing changes; zero: never.
	RequeueAfter time.Duration
}

// State is what a node must carry; our labels follow from the record.
type State struct {
	// Record is nil when the node needs none.
	Record *Record
	Marks  Marks
}

// Event is a Kubernetes Event on the node.
type Event struct{ Type, Reason, Message string }

// Blocked is a decision that was held back.
type Blocked struct{ Rule, Reason, Message string }

// Decide says what must be done about a node. It is pure: it reads no clock and no cluster, and deciding again on a node
// that carries the decided State changes nothing.
func Decide(p *policy.Policy, o Observation, now time.Time) Decision {
	if handsOff(o.Node) {
		return Decision{}
	}
	if o.RecordErr != nil {
		return Decision{Blocked: &Blocked{Reason: BlockedByRecord, Message: fmt.Sprintf(
			"annotation %s is left alone, and so is the node, until a person repairs or removes it: %v",
			conditions.AnnotationQuarantine, o.RecordErr)}}
	}
	d := newDecider(p, o, now)
	d.notify()
	d.decide()
	d.notify()
	d.closeBreaker()
	d.showAWS()
	d.State = &State{Record: d.record, Marks: d.marks}
	d.RestartJobs = d.restartJobs()
	if o.Paused != "" {
		d.hold()
	}
	return d.Decision
}

// decider is one run of Decide: the record and the node's marks as they are to become.
type decider struct {
	policy *policy.Policy
	Observation
	now time.Time

	record *Record
	marks  Marks
	// silent names the conditions that a rule knows, while none of them is confirmed by anybody.
	silent []string
	// standing are the conditions that are a problem now, by a rule, and can be believed.
	standing map[corev1.NodeConditionType]problem
	Decision
}

func newDecider(p *policy.Policy, o Observation, now time.Time) *decider {
	d := &decider{policy: p, Observation: o, now: now, marks: marksOf(o.Node), standing: map[corev1.NodeConditionType]problem{}}
	if o.Record != nil {
		d.record = o.Record.clone()
		if d.record.NodeUID != o.Node.UID {
			d.untaint()
			d.record = nil
		}
	}
	if boot := o.Node.Status.NodeInfo.BootID; d.record != nil && boot != "" && boot != d.record.Boot.ID {
		d.record.Boot = Boot{ID: boot, Seen: now}
		for i := range d.record.Causes {
			d.mended(&d.record.Causes[i])
		}
	}
	d.listen()
	for _, c := range o.Node.Status.Conditions {
		rule, class, ok := p.Match(o.Node.Labels, c)
		switch {
		case !ok:
		case d.believable(c, rule):
			if d.beyondRepair(string(c.Type), c.Message) {
				class = conditions.Replace
			}
			d.standing[c.Type] = problem{c, rule, class}
		default:
			d.wake(now.Add(recheck))
		}
	}
	return d
}

func (d *decider) decide() {
	if d.record != nil && d.record.Holds {
		d.updateCauses()
		d.heldByPerson()
	}
	if d.record != nil && d.record.Phase == Quarantined {
		d.updateCauses()
		d.quarantined()
		d.notify()
	}
	if d.record == nil || d.record.closed() {
		d.open()
	}
	if d.record != nil && d.record.Phase == Suspect {
		d.updateCauses()
		d.suspect()
	}
	if len(d.silent) > 0 && d.Blocked == nil {
		d.wake(d.now.Add(recheck))
		d.Blocked = &Blocked{Reason: BlockedByStale, Message: fmt.Sprintf(
			"nobody confirms %s any more, so nothing is decided about the node: does node-problem-detector run there?", clip(strings.Join(d.silent, ", ")))}
	}
}

// open begins a record when a problem stands that is not only worth an alert.
func (d *decider) open() {
	if slices.ContainsFunc(d.problems(), actionable) {
		d.begin()
	}
}

// begin makes a new suspicion the current quarantine, and the one before it history.
func (d *decider) begin() {
	r := &Record{V: recordVersion, NodeUID: d.Node.UID, Boot: Boot{ID: d.Node.Status.NodeInfo.BootID, Seen: d.up()}}
	if d.record != nil {
		r.Boot, r.Repairs = d.record.Boot, d.record.Repairs
		r.Notices, r.Noticed = d.record.Notices, d.record.Noticed
		r.Last = append([]Quarantine{d.record.Quarantine}, d.record.Last...)
		r.Last = r.Last[:min(len(r.Last), lastKept)]
		for len(r.Last) > 1 && len(r.String()) > maxHistory {
			r.Last = r.Last[:len(r.Last)-1]
		}
	}
	r.ID, r.Phase = newID(d.Node, d.now), Suspect
	d.record = r
}

// newID names a quarantine. It differs from node to node, because a job is restarted once for each.
func newID(n *corev1.Node, now time.Time) string {
	sum := sha256.Sum256([]byte(string(n.UID) + now.Format(time.RFC3339Nano)))
	return hex.EncodeToString(sum[:6])
}

// suspect quarantines the node when a problem is due, and forgets a suspicion that came to nothing.
func (d *decider) suspect() {
	d.record.Causes = slices.DeleteFunc(d.record.Causes, func(c Cause) bool {
		p, stands := d.standing[c.Condition]
		_, asked := d.ruleOf(&c)
		return !asked || stands && !actionable(p) || !c.HealthySince.IsZero() && d.dips(c) == 0
	})
	if len(d.record.Causes) == 0 {
		d.forget()
		return
	}
	worst, ok := d.worstDue(enforced)
	if !ok {
		if watched, ok := d.worstDue(observed); ok {
			d.Blocked = &Blocked{watched.rule.Name, BlockedByObserve, fmt.Sprintf(
				"%s; observed only, else tainted %s%s", describe(watched), watched.rule.Taint.ToString(), andJobs(watched.rule))}
		}
		return
	}
	if d.Blocked = d.heldBack(worst); d.Blocked != nil {
		return
	}
	d.record.Causes = slices.DeleteFunc(d.record.Causes, func(c Cause) bool {
		p, stands := d.standing[c.Condition]
		if !stands { // it says nothing just now
			p.rule, _ = d.ruleOf(&c)
		}
		return !enforced(p) || !c.HealthySince.IsZero()
	})
	d.record.Phase, d.record.QuarantinedAt = Quarantined, d.now
	d.taint(worst)
	only := ""
	if d.record.Sticky = d.flapped(worst); d.record.Sticky {
		only = fmt.Sprintf("; it came and went %d times within %s, so only a person releases the node", worst.rule.Flaps.Max, worst.rule.Flaps.Window)
	}
	d.event(corev1.EventTypeWarning, NodeQuarantined, "%s; tainted %s%s", describe(worst), d.record.Taint, only)
}

func andJobs(r policy.Rule) string {
	if r.RestartJobs {
		return " and its jobs restarted"
	}
	return ""
}

// forget drops the suspicion. What was closed before it is the current quarantine again.
func (d *decider) forget() {
	if len(d.record.Last) == 0 {
		d.record = nil
		return
	}
	d.record.Quarantine, d.record.Last = d.record.Last[0], d.record.Last[1:]
}

// worstDue is the problem that decides: the worst class, of those wanted, whose time has come.
func (d *decider) worstDue(wanted func(problem) bool) (problem, bool) {
	var worst problem
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		p, stands := d.standing[c.Condition]
		if !stands || !wanted(p) {
			continue
		}
		if due := c.FirstSeen.Add(p.rule.For); !c.Due && d.now.Before(due) && !d.flapped(p) {
			d.wake(due)
			continue
		}
		c.Due = true
		stronger := cmp.Compare(p.strength(), worst.strength())
		if cmp.Or(stronger, cmp.Compare(p.rule.Priority, worst.rule.Priority)) > 0 || worst.rule.Name == "" {
			worst = p
		}
	}
	return worst, worst.rule.Name != ""
}

func (p problem) strength() int { return strength(p.class, p.rule.Taint.Effect, p.rule.RestartJobs) }

// strength orders decisions by what they do: the class, then what the taint keeps away, then whether jobs are restarted.
func strength(class conditions.Repair, effect corev1.TaintEffect, restarts bool) int {
	effects := []corev1.TaintEffect{corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}
	order := 2 * (len(effects)*int(class) + slices.Index(effects, effect))
	if restarts {
		order++
	}
	return order
}

// quarantined releases the node when every cause has cleared, and else keeps the taint as it must be.
func (d *decider) quarantined() {
	d.record.Causes = slices.DeleteFunc(d.record.Causes, func(c Cause) bool { return !c.Due && !c.HealthySince.IsZero() })
	for _, c := range d.record.Causes {
		if _, ok := d.ruleOf(&c); !ok && c.Rule != policy.ByHand {
			d.Blocked = &Blocked{c.Rule, BlockedByPolicy, fmt.Sprintf(
				"the policy has no rule %s any more, so nothing says when %s has cleared; remove taint %s twice to release the node",
				c.Rule, c.Condition, d.record.Taint)}
		}
	}
	if d.releasable() {
		d.release(ByPitcrew)
		d.event(corev1.EventTypeNormal, NodeReleased, "%s has cleared; released after %s",
			d.causes(), d.now.Sub(d.record.QuarantinedAt).Round(time.Second))
		return
	}
	if maintained(d.Node) {
		return
	}
	if !hasTaint(d.marks.Taints, d.record.Taint) && !d.restore() {
		return
	}
	d.upgrade()
}

// releasable tells whether every cause has cleared by the rules of its class.
func (d *decider) releasable() bool {
	all := !d.record.Sticky
	for _, c := range d.record.Causes {
		boot := d.Node.Status.NodeInfo.BootID
		switch {
		case !d.cleared(c):
			all = false
		case c.Repair == conditions.Replace: // only a person knows that the part was replaced
			all = false
		case c.Repair == conditions.Reboot && (boot == "" || boot == c.BootID):
			all = false
		}
	}
	return all
}

// restore puts a lost taint back once: `kubectl taint` and others patch the list without a version check and may have
// dropped it unknowingly. The second time it is a person's word, and the first time if the rule only observes now.
func (d *decider) restore() bool {
	if rule, _ := d.policy.Rule(d.record.Taint.Rule); d.record.Taint.Restored || rule.Observe {
		d.release(ByPerson)
		d.record.Holds = true
		d.updateCauses()
		d.heldByPerson()
		d.event(corev1.EventTypeNormal, ReleaseByHand, "taint %s was removed: the node stays released until %s has cleared",
			d.record.Taint, d.causes())
		return false
	}
	d.record.Taint.Restored, d.record.Taint.Foreign = true, false
	d.marks.Taints = append(d.marks.Taints, d.record.Taint.On())
	d.event(corev1.EventTypeWarning, TaintRestored, "taint %s was gone while the quarantine stands; remove it again to release the node", d.record.Taint)
	return true
}

// upgrade follows a problem that asks for more than the one that decided so far.
func (d *decider) upgrade() {
	worst, ok := d.worstDue(enforced)
	if !ok {
		return
	}
	// A rule that the policy no longer has restarts nothing.
	decided, _ := d.policy.Rule(d.record.Taint.Rule)
	if worst.strength() <= strength(d.record.Taint.Repair, d.record.Taint.Effect, decided.RestartJobs) {
		return
	}
	if why := d.correlated(worst); why != "" {
		d.wake(d.now.Add(recheck))
		d.Blocked = &Blocked{worst.rule.Name, BlockedBySuspicion, fmt.Sprintf("%s, but %s", describe(worst), why)}
		return
	}
	d.taint(worst)
	d.event(corev1.EventTypeWarning, QuarantineUpgraded, "%s; tainted %s", describe(worst), d.record.Taint)
}

// heldByPerson waits for the causes to clear. Until then nothing quarantines the node.
func (d *decider) heldByPerson() {
	holds := false
	for _, c := range d.record.Causes {
		// What no rule asks about any more quarantines nobody.
		_, asked := d.ruleOf(&c)
		holds = asked && !d.cleared(c) || holds
	}
	d.record.Holds = holds
	if !holds {
		return
	}
	for _, p := range d.problems() {
		if enforced(p) && !d.record.blames(p.condition.Type) {
			d.Blocked = &Blocked{p.rule.Name, BlockedByPerson, fmt.Sprintf(
				"%s, but a person released the node and %s has not cleared", describe(p), d.causes())}
		}
	}
}

func (d *decider) release(by string) {
	d.untaint()
	d.record.Phase, d.record.ReleasedBy, d.record.ReleasedAt = Released, by, d.now
	if by == ByPerson {
		d.record.Repairs = nil
	}
}

// taint puts the problem's taint on the node, and what its rule hands off, in place of earlier ones of ours. A taint outside
// our domain that already stands there belongs to somebody else and outlives the quarantine.
func (d *decider) taint(p problem) {
	t := &Taint{Key: p.rule.Taint.Key, Value: p.rule.Taint.Value, Effect: p.rule.Taint.Effect, Rule: p.rule.Name, Repair: p.class, Since: d.now}
	if d.record.Taint != nil {
		t.Restored = d.record.Taint.Restored
		d.untaint()
	}
	t.Foreign = hasTaint(d.marks.Taints, t) && !strings.HasPrefix(t.Key, conditions.Domain+"/")
	if !t.Foreign {
		d.marks.Taints = append(slices.DeleteFunc(d.marks.Taints, t.same), t.On())
	}
	d.record.Taint = t
	d.record.HandOff = d.marks.hand(p.rule.HandOff)
}

// untaint removes the record's taint, whatever its value has become: key and effect identify a taint. What was handed off
// goes with it.
func (d *decider) untaint() {
	if d.record.Phase == Quarantined {
		d.marks.strip(&d.record.Quarantine)
	}
}

// restartJobs tells whether the node's jobs are to be restarted, and sets the alarm for the next look at them.
func (d *decider) restartJobs() bool {
	if d.record == nil || d.record.Phase != Quarantined || maintained(d.Node) {
		return false
	}
	rule, _ := d.policy.Rule(d.record.Taint.Rule)
	if !rule.RestartJobs || rule.Observe {
		return false
	}
	for _, after := range sweeps {
		d.wake(d.record.Taint.Since.Add(after))
	}
	return true
}

// hold turns the decision into words only.
func (d *decider) hold() {
	for _, e := range d.Events {
		d.Blocked = &Blocked{Reason: BlockedByPause, Message: fmt.Sprintf("paused (%s), else %s: %s", d.Paused, e.Reason, e.Message)}
	}
	d.State, d.Events, d.RestartJobs, d.SetBreaker = nil, nil, false, nil
}

// wake asks to decide again at a time to come, at the latest.
func (d *decider) wake(at time.Time) {
	if after := at.Sub(d.now); after > 0 && (d.RequeueAfter == 0 || after < d.RequeueAfter) {
		d.RequeueAfter = after
	}
}

func (d *decider) event(kind, reason, format string, args ...any) {
	d.Events = append(d.Events, Event{kind, reason, fmt.Sprintf(format, args...)})
}

// causes names the conditions of the record.
func (d *decider) causes() string {
	var names []string
	for _, c := range d.record.Causes {
		names = append(names, string(c.Condition))
	}
	return strings.Join(names, ", ")
}

func describe(p problem) string {
	return fmt.Sprintf("%s needs %s by rule %s (%s)", p.condition.Type, p.class, p.rule.Name, clip(p.condition.Message))
}

func hasTaint(taints []corev1.Taint, t *Taint) bool { return slices.ContainsFunc(taints, t.same) }

func hasTaintKey(taints []corev1.Taint, key string) bool {
	return slices.ContainsFunc(taints, func(t corev1.Taint) bool { return t.Key == key })
}
