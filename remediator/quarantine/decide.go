package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// Reasons of Events on Nodes and, from DetectorSuspect on, on our namespace.
const (
	NodeQuarantined    = "NodeQuarantined"
	QuarantineUpgraded = "QuarantineUpgraded"
	QuarantineBlocked  = "QuarantineBlocked"
	WouldQuarantine    = "WouldQuarantine"
	TaintRestored      = "TaintRestored"
	NodeReleased       = "NodeReleased"
	ReleaseByHand      = "ReleaseByHand"
	UncordonedByHand   = "UncordonedByHand"
	DeviceIsolated     = "DeviceIsolated"
	DeviceReleased     = "DeviceReleased"
	DriverUpgradeStale = "DriverUpgradeStale"
	DetectorSuspect    = "DetectorSuspect"
	BreakerOpen        = "BreakerOpen"
	BreakerClosed      = "BreakerClosed"
	PolicyInvalid      = "PolicyInvalid"
	PolicyWarning      = "PolicyWarning"
)

// What blocks a decision; the values of [Blocked.Reason] and of the metric's label.
const (
	BlockedByObserve          = "observe-only"
	BlockedByBudget           = "budget"
	BlockedByBreaker          = "breaker"
	BlockedByDetectorSuspect  = "detector-suspect"
	BlockedByStale            = "stale"
	BlockedByPause            = "paused"
	BlockedByManualRelease    = "released-by-hand"
	BlockedByUnreadableRecord = "record-unreadable"
	BlockedByMissingRule      = "rule-gone"
	BlockedByUnconfirmed      = "record-unconfirmed"
	BlockedByValidation       = "awaits-validation"
	BlockedByOrigin           = "origin"
	BlockedByDevices          = "devices-unknown"
)

// restartDelays are the times after the taint at which the node's pods are listed again: the scheduler may have bound a pod
// to the node before it saw the taint.
var restartDelays = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// NextLook is when the pods of a node are due to be listed again that was tainted at a time, at the latest after most.
func NextLook(since, now time.Time, most time.Duration) time.Time {
	next := now.Add(most)
	for _, delay := range restartDelays {
		if at := since.Add(delay); at.After(now) && at.Before(next) {
			next = at
		}
	}
	return next
}

// Observation is what is known about one node: plain values, no client.
type Observation struct {
	Node *corev1.Node
	// Record is nil when the node has none; RecordErr is set when it has one that does not parse.
	Record    *Record
	RecordErr error
	// Paused is why everything is paused, empty when it is not.
	Paused string
	// Peers are all other nodes that are not [Excluded]. They may be left out unless [NeedsPeers].
	Peers limits.Peers
	// Domain is that of the node before it lost the label, as far as the process remembers.
	Domain limits.Domain
	// Breaker is nil while it is closed.
	Breaker *limits.BreakerState
	// Delivered are the notices that need no further delivery.
	Delivered map[handoff.Receipt]bool
	// Seen is what this process knows about the quarantine.
	Seen Seen
	// Known is what quarantines put on nodes, by all policies that are known; nil: by the present one.
	Known *handoff.Known
	// Visits is what the visits to the node say about the quarantine of Record.
	Visits Visits
	// Devices is what is known about the devices of the node; nil: nothing was read, see [NeedsDevices].
	Devices *devices.Look
	// LeadingSince is since when this process has acted without interruption; zero: for long. Before, nobody knows who could reach
	// the API server: a kubelet that could not had no chance to say that it is alive.
	LeadingSince time.Time
}

// Decision is what must be done about a node.
type Decision struct {
	// State is what the node must carry; nil leaves it as it is.
	State *State
	// Events are to be written once the node carries State.
	Events []Event
	// Blocked is what was held back; nil when nothing was.
	Blocked *Blocked
	// BlockedToo is what else holds back the same, and would when Blocked no longer does. It is for people: nothing acts on it.
	BlockedToo []Blocked
	// Limited: a budget or the breaker holds something back, though Blocked may name what else does. A fault of a
	// suspected detector does not set it, though BlockedToo may name a limit.
	Limited bool
	// WaitsForOthers: what other nodes show or are decides. A victim waits for the quarantine of the node whose broken link has made its
	// faults, or for the end of that; a node that has failed with others waits for more of them.
	WaitsForOthers bool
	// SetBreaker opens the breaker or, with a zero time, closes it; nil leaves it.
	SetBreaker *limits.BreakerState
	// Started is the start of the quarantine that State makes, nil when it makes none.
	Started *limits.Start
	// RestartJobs asks for the restart of the jobs with pods on the node, now that it carries State. RestartRule is the rule by which:
	// that of the taint, or another that has a fault of the node now.
	RestartJobs bool
	RestartRule string
	// Devices are the rules for the devices of the node that are to exist once the node carries State; nil: they stay as they are.
	Devices *DeviceRules
	// RequeueAfter is when to decide again even if nothing changes; zero: never.
	RequeueAfter time.Duration
	// StaleUpgrade says that a driver upgrade on the node does not go on and is ignored; empty: none is.
	StaleUpgrade string
	// decided is set when the decision has put a taint of the policy on the node, within all limits.
	decided bool
}

// Event is a Kubernetes Event on the node.
type Event struct {
	// Type is [corev1.EventTypeNormal] or [corev1.EventTypeWarning].
	Type, Reason, Message string
}

// Blocked is a decision that was held back.
type Blocked struct {
	// Rule is the rule of the policy that would have acted; empty when it is about all of them.
	Rule string
	// Reason is one of the BlockedBy constants; Message explains it.
	Reason, Message string
}

// schedule keeps the earliest time at which to decide again.
type schedule struct {
	now time.Time
	// after is how long after now; zero: never.
	after time.Duration
}

// requeueAt asks to decide again at a time to come, at the latest.
func (s *schedule) requeueAt(at time.Time) {
	if after := at.Sub(s.now); after > 0 && (s.after == 0 || after < s.after) {
		s.after = after
	}
}

// Decide decides what must be done about a node. It is pure: it reads no clock and no cluster, and deciding again about a node
// that carries the decided State changes nothing.
func Decide(p *policy.Policy, o Observation, now time.Time) Decision {
	if Excluded(o.Node) {
		return Decision{}
	}
	if o.RecordErr != nil {
		return Decision{Blocked: &Blocked{Reason: BlockedByUnreadableRecord, Message: fmt.Sprintf(
			"annotation %s cannot be read, so nothing is done about the node until it is repaired or removed: %v",
			conditions.AnnotationQuarantine, o.RecordErr)}}
	}
	d := newDecider(p, o, now)
	d.dropNotices()
	d.updateNotices()
	d.decide()
	d.removeUnexplained()
	d.updateNotices()
	d.result.RestartRule = d.restartRule()
	d.result.RestartJobs = d.result.RestartRule != ""
	if !d.waitsForLimit() && o.Breaker.MayClose(p.Breaker, o.Peers, now) {
		d.result.SetBreaker = &limits.BreakerState{}
	}
	d.updateAWS()
	d.rememberDomain()
	d.result.Devices = d.deviceRules()
	d.record.fit()
	d.result.State = &State{Record: d.record, Changes: d.changes, maintained: d.conditions.maintained, suspicion: d.suspicion()}
	d.result.StaleUpgrade = staleUpgrade(o.Node, now)
	d.result.RequeueAfter = d.next.after
	if o.Paused != "" {
		return d.result.paused(o.Paused)
	}
	return d.result
}

// paused turns the decision into words only.
func (d Decision) paused(reason string) Decision {
	if d.Blocked != nil && d.Blocked.Reason != BlockedByObserve && d.Blocked.Reason != BlockedByStale {
		d.BlockedToo = append(d.BlockedToo, Blocked{Reason: BlockedByPause, Message: fmt.Sprintf("paused (%s)", reason)})
	}
	for _, e := range d.Events {
		d.Blocked = &Blocked{Reason: BlockedByPause, Message: fmt.Sprintf("paused (%s), would be %s: %s", reason, e.Reason, e.Message)}
	}
	d.State, d.Events, d.Started, d.RestartJobs, d.RestartRule, d.SetBreaker, d.decided, d.Limited = nil, nil, nil, false, "", nil, false, false
	d.WaitsForOthers = false
	d.Devices = nil
	return d
}

// decider is one run of [Decide]: what it knows, the record and the node as they are to become, and the result so far.
type decider struct {
	policy     *policy.Policy
	observed   Observation
	now        time.Time
	conditions assessment
	record     *Record
	domain     limits.Domain
	known      handoff.Known
	changes    handoff.NodeChanges
	next       schedule
	result     Decision
	// observing is the taint of the rule that only observes and would isolate devices; nil: none.
	observing *corev1.Taint
}

func newDecider(p *policy.Policy, o Observation, now time.Time) *decider {
	d := &decider{policy: p, observed: o, now: now, changes: handoff.Of(o.Node), next: schedule{now: now}}
	if o.Known != nil {
		d.known = *o.Known
	} else {
		d.known = handoff.KnownOf(p)
	}
	if o.Record != nil {
		d.record = o.Record.clone()
		if d.record.NodeUID != o.Node.UID {
			d.removeTaint()
			d.record = nil
		} else {
			d.record.clampTimes(now)
		}
	}
	if boot := o.Node.Status.NodeInfo.BootID; d.record != nil && boot != "" && boot != d.record.Boot.ID {
		d.record.Boot = Boot{ID: boot, Seen: now}
		for i := range d.record.Causes {
			d.record.recordRepair(&d.record.Causes[i], now)
		}
	}
	d.record.coverPresent(o.Node)
	d.domain = domainOf(p, o.Node, d.record, o.Domain)
	d.assess()
	return d
}

func (d *decider) assess() {
	d.conditions = assess(d.policy, d.observed.Node, d.record, &d.next)
	d.conditions.leadingSince = d.observed.LeadingSince
	if domain, configured := d.policy.Domain(d.domain.Label); configured {
		d.conditions.settle = domain.Settle
	}
}

// updateCauses brings the causes of the record up to date, whose broken links they come from, and what its problems reach.
func (d *decider) updateCauses() {
	d.conditions.updateCauses(d.record, &d.next)
	if d.record.Phase != Released {
		d.judgeLinks()
	}
	d.assessDevices()
}

// decide goes through the phases of the record. It may leave one and reach the next in the same run.
func (d *decider) decide() {
	if d.record != nil && d.record.ManualReleaseActive {
		d.updateCauses()
		d.checkManualRelease()
	}
	d.followManualRelease()
	if d.record != nil && d.record.Phase == Quarantined {
		d.updateCauses()
		d.decideQuarantined()
		d.updateNotices()
		if d.record.resumeManualRelease() {
			d.updateCauses()
			d.checkManualRelease()
		}
	}
	if d.opensNext() {
		d.openNext()
	}
	if d.record != nil && d.record.Phase == Suspect {
		d.updateCauses()
		d.decideSuspect()
	}
	d.noteUnknownDevices()
	if stale := d.conditions.stale; len(stale.types) > 0 && d.result.Blocked == nil && !d.actsOnReady() {
		d.next.requeueAt(d.now.Add(recheck))
		d.result.Blocked = &Blocked{Reason: BlockedByStale, Message: stale.message(d.policy, d.observed.Node, d.now)}
	}
}

// actsOnReady tells whether a rule acts on the node because it is not Ready: that its detectors are silent is no news then.
func (d *decider) actsOnReady() bool {
	p, isProblem := d.conditions.problems[corev1.NodeReady]
	return isProblem && p.isActionable()
}

// opensNext tells whether a new suspicion begins. While a manual release holds, only a worse fault than those released does.
func (d *decider) opensNext() bool {
	if d.record == nil || d.record.closed() {
		return slices.ContainsFunc(d.conditions.sorted(), problem.isActionable)
	}
	return d.record.ManualReleaseActive && slices.ContainsFunc(d.conditions.sorted(), d.record.exceeds)
}

func (d *decider) openNext() {
	d.record = openNext(d.record, d.observed.Node, d.conditions.bootSeen, d.now)
}

// decideSuspect quarantines the node when a problem is due, and forgets a suspicion that is over.
func (d *decider) decideSuspect() {
	d.record.Causes = slices.DeleteFunc(d.record.Causes, func(c Cause) bool {
		p, isProblem := d.conditions.problems[c.Condition]
		rule, hasRule := d.conditions.ruleOf(&c)
		return !hasRule || isProblem && !p.isActionable() || !c.HealthySince.IsZero() && !c.hasFlapTimes(rule.Flaps, &d.next)
	})
	if len(d.record.Causes) == 0 {
		if d.record = d.record.withoutCurrent(); d.record != nil && d.record.ManualReleaseActive {
			d.updateCauses()
			d.checkManualRelease()
		}
		return
	}
	worst, due := d.conditions.worstDue(d.record, problem.isEnforced, &d.next)
	if !due {
		if p, due := d.conditions.worstDue(d.record, problem.isObserved, &d.next); due {
			d.block(p.rule.Name, BlockedByObserve, "%s; observe mode: would %s%s", describe(p), wouldDo(p), andRestart(p.rule))
			d.observeDevices(p)
		} else if d.record.hasOnlyFlapTimes() {
			d.record.Isolation = nil
		}
		return
	}
	if d.waitsForDevices(worst) || d.isLimited(worst, limits.Held{}) {
		return
	}
	d.record.Causes = slices.DeleteFunc(d.record.Causes, func(c Cause) bool {
		p, isProblem := d.conditions.problems[c.Condition]
		if !isProblem { // its condition is not current just now
			p.rule, _ = d.conditions.ruleOf(&c)
		}
		return !p.isEnforced() || !c.HealthySince.IsZero()
	})
	d.record.Phase, d.record.QuarantinedAt = Quarantined, d.now
	d.setTaint(worst)
	d.start(worst)
	manualOnly := ""
	if d.record.ManualReleaseOnly = d.record.hasFlapped(worst, d.now); d.record.ManualReleaseOnly {
		manualOnly = fmt.Sprintf("; the fault came and went %d times within %s, so only `kubectl pitcrew release` releases the node",
			worst.rule.Flaps.Max, worst.rule.Flaps.Window)
	}
	if d.record.IsIsolated() {
		d.event(corev1.EventTypeWarning, DeviceIsolated, "%s; %s%s", describe(worst), d.isolatedBy(), manualOnly)
		return
	}
	d.event(corev1.EventTypeWarning, NodeQuarantined, "%s; tainted %s%s%s%s%s", describe(worst), d.record.Taint, d.andCordoned(), worst.notIsolated(), d.ofIncident(worst), manualOnly)
}

// andCordoned says that the quarantine has cordoned the node, if it has.
func (d *decider) andCordoned() string {
	if h := d.record.HandOff; h != nil && h.Cordon {
		return " and cordoned"
	}
	return ""
}

func andRestart(r policy.Rule) string {
	if r.RestartJobs {
		return " and restart its jobs"
	}
	return ""
}

// isLimited tells whether a limit holds back the quarantine, or the change of the one that the node has, and notes which.
// The breaker is only about nodes that are taken out of service.
func (d *decider) isLimited(p problem, held limits.Held) bool {
	if p.link.Origin != "" {
		return d.waitsForOrigin(p)
	}
	incident, _ := d.incident(p)
	labels, peers := d.observed.Node.Labels, d.observed.Peers.Beside(incident)
	if d.isCorrelated(p) {
		d.alsoLimited(p, held, BlockedByBudget, BlockedByBreaker)
		return true
	}
	// The nodes that are held back are also decided again when the others change. Time alone frees a place in minutes, not seconds.
	if why := limits.ExceededBudget(d.policy, held, p.rule, labels, peers, d.now); why != "" {
		d.next.requeueAt(d.now.Add(recheck))
		d.result.Limited = true
		d.block(p.rule.Name, BlockedByBudget, "%s, but %s", describe(p), why)
		d.alsoLimited(p, held, BlockedByBreaker)
		return true
	}
	if !held.TakesOut(p.rule) || incident != nil && incident.Stands {
		return false
	}
	trip := limits.TripBreaker(d.policy.Breaker, d.observed.Breaker, peers, d.now)
	if trip.Reason == "" {
		return false
	}
	d.next.requeueAt(trip.RetryAt)
	d.next.requeueAt(d.now.Add(recheck))
	d.result.SetBreaker, d.result.Limited = trip.Opened, true
	d.block(p.rule.Name, BlockedByBreaker, "%s, but %s", describe(p), trip.Reason)
	return true
}

// alsoLimited notes which other limits hold back what one holds back already.
func (d *decider) alsoLimited(p problem, held limits.Held, others ...string) {
	incident, _ := d.incident(p)
	peers := d.observed.Peers.Beside(incident)
	for _, reason := range others {
		why := ""
		switch {
		case reason == BlockedByBudget:
			why = limits.ExceededBudget(d.policy, held, p.rule, d.observed.Node.Labels, peers, d.now)
		case held.TakesOut(p.rule) && d.observed.Breaker != nil:
			why = limits.TripBreaker(d.policy.Breaker, d.observed.Breaker, peers, d.now).Reason
		}
		if why != "" {
			d.result.BlockedToo = append(d.result.BlockedToo, Blocked{Rule: p.rule.Name, Reason: reason, Message: why})
		}
	}
}

// isCorrelated tells whether the problem is suspected to be one of the detector, and notes why.
func (d *decider) isCorrelated(p problem) bool {
	incident, isNone := d.incident(p)
	why := limits.Correlated(d.policy, p.condition, d.self(p), d.observed.Peers.Beside(incident))
	if why == "" {
		return false
	}
	if isNone != "" {
		d.result.WaitsForOthers = true
		why += "; it is no failure of the domain: " + isNone
	}
	d.next.requeueAt(d.now.Add(recheck))
	d.block(p.rule.Name, BlockedByDetectorSuspect, "%s, but %s", describe(p), why)
	return true
}

// isInService tells of a quarantine that it is no more than a claim, and that the node has no taint: nothing will put that back once the
// causes have cleared, and no visit validates a node that is in service.
func (d *decider) isInService() bool { return !d.isTainted() && !d.confirmed() }

// waitsForLimit tells whether a limit holds back what the decision would do.
func (d *decider) waitsForLimit() bool {
	b := d.result.Blocked
	return b != nil && slices.Contains([]string{BlockedByBudget, BlockedByBreaker, BlockedByDetectorSuspect}, b.Reason)
}

// decideQuarantined releases the node when every cause has cleared and the node has passed the validation that a rule asks for, and
// else keeps the taint as it must be.
func (d *decider) decideQuarantined() {
	d.checkCordon()
	d.followDevices()
	d.record.Causes = slices.DeleteFunc(d.record.Causes, func(c Cause) bool { return !c.Due && !c.HealthySince.IsZero() })
	for _, c := range d.record.Causes {
		if _, ok := d.conditions.ruleOf(&c); !ok && c.Rule != policy.ByHand {
			d.block(c.Rule, BlockedByMissingRule,
				"the policy no longer has rule %s, so it cannot be decided when %s has cleared; only `kubectl pitcrew release` releases the node",
				c.Rule, c.Condition)
		}
	}
	if d.releaseOnRequest() {
		return
	}
	if d.releaseHeld() {
		return
	}
	allowed := d.conditions.allowsRelease(&d.record.Quarantine, isNotOver, &d.next)
	if allowed && d.isUnvalidated() && d.isInService() {
		d.release(ByPitcrew)
		d.event(corev1.EventTypeWarning, NodeReleased, "%s has cleared; released without the validation that a rule asks for, because the node was in service already: "+
			"taint %s was removed, and this remediator has never seen it", causeNames(d.record), d.record.Taint)
		return
	}
	if allowed && !d.isUnvalidated() {
		reason := NodeReleased
		if d.record.IsIsolated() {
			reason = DeviceReleased
		}
		d.release(ByPitcrew)
		d.event(corev1.EventTypeNormal, reason, "%s has cleared; released after %s%s",
			causeNames(d.record), d.now.Sub(d.record.QuarantinedAt).Round(time.Second), d.conditions.alertOnlyCauses(d.record))
		return
	}
	if d.conditions.maintained {
		return
	}
	d.blockUnvalidated(allowed)
	if d.isTainted() || d.restoreTaint() {
		d.upgrade()
	}
}

// restoreTaint puts a removed taint back once and returns true then: `kubectl taint` and others patch the list without a
// version check and may have dropped it unknowingly. The second time the removal is a manual release, and the first time
// if the rule only observes now.
func (d *decider) restoreTaint() bool {
	if rule, _ := d.policy.Rule(d.record.Taint.Rule); d.record.Taint.Restored || rule.Observe {
		d.releaseManually()
		d.record.ManualReleaseActive = true
		d.assess()
		d.updateCauses()
		d.checkManualRelease()
		until := ""
		if names := causeNames(d.record); names != "" {
			until = " until " + names + " has cleared"
		}
		d.event(corev1.EventTypeNormal, ReleaseByHand, "taint %s was removed: the node stays released%s", d.record.Taint, until)
		return false
	}
	if !d.known.HasTaint(d.record.Taint.NodeTaint()) {
		return d.taintAnew("no known policy sets taint " + d.record.Taint.String())
	}
	if !d.confirmed() {
		return d.taintAnew("this remediator has never seen taint " + d.record.Taint.String() + " on it")
	}
	d.record.Taint.Restored, d.record.Taint.PreExisting = true, false
	if d.record.IsIsolated() {
		d.record.Isolation.PendingSince = d.now
	} else {
		d.changes.Taints = append(d.changes.Taints, d.record.Taint.NodeTaint())
	}
	d.event(corev1.EventTypeWarning, TaintRestored, "taint %s was removed during the quarantine and has been put back; remove it again to release the node", d.record.Taint)
	return true
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
	d.event(corev1.EventTypeNormal, UncordonedByHand, "the cordon was undone during the quarantine, so the quarantine does not cordon the node again; it keeps taint %s",
		d.record.Taint)
}

// held is the quarantine whose place under the limits the node has. A record can name a taint of others as its own: that one
// has no place.
func (d *decider) held() limits.Held {
	t := d.record.Taint
	if t.HeldFor != "" || !d.known.HasTaint(t.NodeTaint()) || !d.hasPlace() {
		return limits.Held{}
	}
	return limits.Held{Rule: t.Rule, Soft: limits.IsSoft(t.Effect)}
}

// provenPlace is [decider.held], but only for our own taint: a kubelet can neither set nor move that one, so a quarantine has put
// it there, within the limits of its time.
func (d *decider) provenPlace() limits.Held {
	if t := d.record.Taint; t.Key != conditions.TaintUnhealthy || t.PreExisting || !d.observed.showsTaint(d.record) {
		return limits.Held{}
	}
	return d.held()
}

// start notes that a quarantine by the problem's rule starts now.
func (d *decider) start(p problem) {
	if p.link.Origin != "" {
		return // the place is that of the origin
	}
	d.result.Started = &limits.Start{Rule: p.rule.Name, At: d.now, Soft: limits.IsSoft(p.rule.Taint.Effect)}
	if incident, _ := d.incident(p); incident != nil {
		d.result.Started.Incident = incident.Domain
	}
}

// upgrade follows a problem that needs more than the one that decided so far, unless a limit holds it back. The node keeps
// its present taint then.
func (d *decider) upgrade() {
	worst, due := d.conditions.worstDue(d.record, problem.isEnforced, &d.next)
	if !due {
		return
	}
	// A rule that the policy no longer has restarts nothing.
	decided, _ := d.policy.Rule(d.record.Taint.Rule)
	if worst.strength() <= strength(d.record.Taint.Repair, d.record.Taint.Effect, d.record.IsIsolated(), decided.RestartJobs) && !d.hasMoreGPUs(worst) {
		return
	}
	if d.waitsForDevices(worst) {
		return
	}
	held := d.held()
	if d.isLimited(worst, held) {
		d.result.Blocked.Message += fmt.Sprintf("; the node keeps taint %s", d.record.Taint)
		return
	}
	decidedBefore, proven := d.isDecided(), d.provenPlace()
	d.setTaint(worst)
	// An upgrade makes nothing of a quarantine that was only claimed.
	d.result.decided = decidedBefore || proven.Rule != ""
	if held.TakesOut(worst.rule) {
		d.start(worst)
	}
	if d.record.IsIsolated() {
		d.event(corev1.EventTypeWarning, DeviceIsolated, "%s; %s", describe(worst), d.isolatedBy())
		return
	}
	d.event(corev1.EventTypeWarning, QuarantineUpgraded, "%s; tainted %s%s%s%s", describe(worst), d.record.Taint, d.andCordoned(), worst.notIsolated(), d.ofIncident(worst))
}

// checkManualRelease ends a manual release when the causes have cleared. Until then only a new fault or one of a worse class
// quarantines the node: whoever released it did not know of that one.
func (d *decider) checkManualRelease() {
	d.dropCleared(&d.record.Quarantine)
	if !d.record.ManualReleaseActive {
		return
	}
	for _, p := range d.conditions.sorted() {
		if p.isEnforced() && !d.record.hasCause(p.condition.Type) && !d.record.exceeds(p) {
			d.block(p.rule.Name, BlockedByManualRelease, "%s, but the node was released manually and %s has not cleared", describe(p), causeNames(d.record))
		}
	}
}

func (d *decider) release(by string) {
	d.removeTaint()
	d.record.Isolation, d.record.DevicesUnknownSince = nil, time.Time{}
	d.record.Phase, d.record.ReleasedBy, d.record.ReleasedAt = Released, by, d.now
	if by == ByPerson {
		d.record.Repairs = nil
	}
}

// setTaint puts the problem's taint on the node, and what its rule hands off, in place of earlier ones of ours. A taint
// outside our domain that is there already belongs to others and outlives the quarantine.
func (d *decider) setTaint(p problem) {
	t := &Taint{Key: p.rule.Taint.Key, Value: p.rule.Taint.Value, Effect: p.rule.Taint.Effect, Rule: p.rule.Name, Repair: p.class, Since: d.now, HeldFor: p.link.Origin}
	d.result.decided = true
	if d.record.Taint != nil {
		t.Restored = d.record.Taint.Restored
		d.removeTaint()
	}
	if p.reach == someDevices {
		d.record.Taint = t
		d.isolate()
		return
	}
	d.record.Isolation = nil
	t.PreExisting = hasTaint(d.changes.Taints, t) && !strings.HasPrefix(t.Key, conditions.Domain+"/")
	if !t.PreExisting {
		d.changes.Taints = append(slices.DeleteFunc(d.changes.Taints, t.matches), t.NodeTaint())
	}
	d.record.Taint = t
	want := p.rule.HandOff
	if d.record.Uncordoned {
		want = want.WithoutCordon()
	}
	d.record.HandOff = d.changes.AddHandOff(want).WithCordonOf(d.record.HandOff, d.known)
}

// removeTaint removes what the record's quarantine has put on the node. What no known policy puts there stays, whatever the
// record claims, and that is said.
func (d *decider) removeTaint() {
	if d.record.Phase != Quarantined {
		return
	}
	if left := d.record.removeFrom(&d.changes, d.known); len(left) > 0 {
		d.event(corev1.EventTypeWarning, QuarantineBlocked,
			"the record names what no known policy puts on a node, and it is left as it is: %s", Clip(strings.Join(left, ", "), conditions.MaxMessage))
	}
}

// removeUnexplained removes the taints that only a quarantine of ours sets and that the record does not explain. They were
// brought back after a release: `kubectl taint` and others write the whole list, and theirs may be an old one. A person
// quarantines a node with `kubectl pitcrew quarantine`, which writes a record.
func (d *decider) removeUnexplained() {
	var removed []string
	d.changes.Taints = slices.DeleteFunc(d.changes.Taints, func(t corev1.Taint) bool {
		ours := t.Key == conditions.TaintUnhealthy || mayBeQuarantine(t) &&
			slices.ContainsFunc(d.policy.Rules, func(r policy.Rule) bool { return r.Taint.MatchTaint(&t) })
		if !ours || d.record.explains(t) {
			return false
		}
		removed = append(removed, t.ToString())
		return true
	})
	if len(removed) > 0 {
		d.event(corev1.EventTypeNormal, NodeReleased,
			"taint %s was on the node without a quarantine and was removed; a writer with an old copy of the taints may have brought it back",
			strings.Join(removed, ", "))
	}
	if (d.record == nil || d.record.Phase != Quarantined) && d.changes.RemoveStrayCordon(d.known) {
		d.event(corev1.EventTypeNormal, NodeReleased, "the remediator had cordoned the node and no quarantine is on it; uncordoned")
	}
}

// restartRule is the rule by which the node's jobs are to be restarted; empty: they are not. It schedules the next checks for further
// ones.
func (d *decider) restartRule() string {
	if d.record == nil || d.record.Phase != Quarantined || d.conditions.maintained || !d.isInForce() {
		return ""
	}
	rule, _ := d.policy.Rule(d.record.Taint.Rule)
	name := rule.Name
	if !rule.RestartJobs || rule.Observe || d.record.isOnlyHeld() || !d.isDecided() || d.isBack(rule) {
		name = d.presentRestartRule()
	}
	if name == "" {
		return ""
	}
	for _, delay := range restartDelays {
		d.next.requeueAt(d.record.Taint.Since.Add(delay))
	}
	return name
}

// updateAWS keeps the labels and the annotation of the AWS suite in step with the node, if the policy asks for them.
func (d *decider) updateAWS() {
	if !d.policy.Output.AWS {
		d.changes.RemoveAWS()
		return
	}
	if d.conditions.maintained {
		return
	}
	health := handoff.Health{Checks: d.conditions.checks()}
	if d.record != nil && d.record.Phase == Quarantined && !d.record.IsIsolated() {
		health.Quarantined, health.Repair = true, d.record.Worst()
	}
	d.changes.SetAWS(d.observed.Node, health, d.now)
	visits := d.visits()
	d.changes.SetAWSRecommendation(d.observed.Node, visits.Advice, visits.AdvisedAt)
}

// checks are the conditions that the policy names, as the AWS suite shows them.
func (a *assessment) checks() []handoff.Check {
	var checks []handoff.Check
	for _, c := range a.node.Status.Conditions {
		limit, named := a.policy.UnknownAfter(c.Type)
		if !named {
			continue
		}
		check := handoff.Check{Condition: c.Type, Outcome: handoff.Pass}
		p, isProblem := a.problems[c.Type]
		switch {
		case isProblem && p.isActionable():
			check.Outcome, check.Repair = handoff.Fail, p.class
		case isProblem:
			check.Outcome = handoff.Warn
		case c.Status == corev1.ConditionUnknown || a.now.Sub(c.LastHeartbeatTime.Time) > limit || FromFuture(c.LastHeartbeatTime.Time, a.now):
			check.Outcome = handoff.Skip
		}
		checks = append(checks, check)
	}
	return checks
}

func (d *decider) event(kind, reason, format string, args ...any) {
	d.result.Events = append(d.result.Events, Event{kind, reason, fmt.Sprintf(format, args...)})
}

func (d *decider) block(rule, reason, format string, args ...any) {
	d.result.Blocked = &Blocked{rule, reason, fmt.Sprintf(format, args...)}
}

// causeNames names the conditions of the causes, but for that of a manual quarantine.
func causeNames(r *Record) string {
	var names []string
	for _, c := range r.Causes {
		if c.Rule != policy.ByHand {
			names = append(names, string(c.Condition))
		}
	}
	return strings.Join(names, ", ")
}

// Needs names what a class asks for, as the end of "the node needs".
func Needs(class conditions.Repair) string { return needs[class] }

var needs = map[conditions.Repair]string{
	conditions.Monitor:    "monitoring",
	conditions.RestartApp: "a restart of its workload",
	conditions.Inspect:    "inspection",
	conditions.ResetGPU:   "a GPU reset",
	conditions.Reboot:     "a reboot",
	conditions.Replace:    "replacement",
}

func describe(p problem) string {
	if c := p.condition; p.isReady() {
		return fmt.Sprintf("Ready is %s since %s (rule %s: %s)",
			c.Status, c.LastTransitionTime.UTC().Format(time.RFC3339), p.rule.Name, Clip(c.Message, conditions.MaxMessage))
	}
	return fmt.Sprintf("%s needs %s (rule %s: %s)%s", p.condition.Type, needs[p.class], p.rule.Name, Clip(p.condition.Message, conditions.MaxMessage), p.link)
}
