// Package quarantine decides whether a node is out of service, and why. [Decide] takes what is known about the node and
// returns what must become of it. The package is pure: it reads no clock and no cluster, and everything that it remembers
// is in the [Record] on the Node.
package quarantine

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/notices"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/reach"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

// Observation is what is known about one node: plain values, no client.
type Observation struct {
	Node *corev1.Node
	// Record is nil when the node has none; RecordErr is set when it has one that does not parse.
	Record    *causes.Record
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
	Seen seen.Seen
	// Known is what quarantines put on nodes, by all policies that are known; nil: by the present one.
	Known *handoff.Known
	// Visits is what the visits to the node say about the quarantine of Record.
	Visits Visits
	// Devices is what is known about the devices of the node; nil: nothing was read, see [reach.NeedsDevices].
	Devices *devices.Look
	// LeadingSince is since when this process has acted without interruption; zero: for long. Before, it is not known who could reach
	// the API server: a kubelet that could not had no chance to say that it is alive.
	LeadingSince time.Time
}

// Decision is what must be done about a node.
type Decision struct {
	// State is what the node must carry; nil leaves it as it is.
	State *State
	// Events are to be written once the node carries State.
	Events []causes.Event
	// Blocked is what was held back; nil when nothing was.
	Blocked *causes.Blocked
	// BlockedToo is what else holds back the same, and would when Blocked no longer does. It is for people: nothing acts on it.
	BlockedToo []causes.Blocked
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
	Devices *causes.DeviceRules
	// AWS is what the labels and annotations of the AWS suite are to show once the node carries State; nil: they stay as they are.
	AWS *handoff.Health
	// RequeueAfter is when to decide again even if nothing changes; zero: never.
	RequeueAfter time.Duration
	// StaleUpgrade reports that a driver upgrade on the node does not go on and is ignored; empty: none is.
	StaleUpgrade string
	// decided is set when the decision has put a taint of the policy on the node, within all limits.
	decided bool
}

// Decide decides what must be done about a node. It is pure: it reads no clock and no cluster, and deciding again about a node
// that carries the decided State changes nothing.
//
// Its stages are read, the record as far as it is accepted; find, what the conditions of the node mean; updateCauses, which of them
// are causes of the quarantine, and since when; choose, what becomes of the quarantine; and render, which makes that true of the record
// and of the node. A choice that ends a phase of the record is followed by a turn for the next phase.
func Decide(p *policy.Policy, o Observation, now time.Time) Decision {
	if excess := node.TooLarge(o.Node); excess != "" {
		return Decision{Blocked: causes.NewBlocked("", causes.BlockedByTooLarge,
			"too large to judge, so nothing is done about the node: %s", excess)}
	}
	if node.Excluded(o.Node) {
		return Decision{}
	}
	if o.RecordErr != nil {
		return Decision{Blocked: causes.NewBlocked("", causes.BlockedByUnreadableRecord,
			"annotation %s cannot be read, so nothing is done about the node until it is repaired or removed: %v",
			conditions.AnnotationQuarantine, o.RecordErr)}
	}
	d := newDecider(p, o, now)
	if d.forgetOrigins() {
		d.find()
	}
	notices.DropForged(d.record, o.Seen)
	d.updateNotices()
	for goesOn := true; goesOn; {
		d.updateCauses()
		if goesOn = d.render(d.choose()); goesOn {
			d.find()
		}
	}
	return d.finish()
}

// newDecider reads the record, and finds what the conditions of the node mean.
func newDecider(p *policy.Policy, o Observation, now time.Time) *decider {
	d := &decider{
		situation: situation{policy: p, observed: o, now: now, changes: handoff.Of(o.Node)},
		next:      causes.Schedule{Now: now},
	}
	if o.Known != nil {
		d.known = *o.Known
	} else {
		d.known = handoff.KnownOf(p)
	}
	d.read()
	d.find()
	return d
}

// read takes over the record as far as it is accepted: it is of this Node, not of one that was created again, and has no time to come.
func (d *decider) read() {
	if d.observed.Record != nil {
		d.record = d.observed.Record.Clone()
		if d.record.NodeUID != d.observed.Node.UID {
			d.removeTaint()
			d.record = nil
		} else {
			d.record.ClampTimes(d.now)
		}
	}
	if boot := d.observed.Node.Status.NodeInfo.BootID; d.record != nil && boot != "" && boot != d.record.Boot.ID {
		d.record.Boot = causes.Boot{ID: boot, Seen: d.now}
		for i := range d.record.Causes {
			d.record.RecordRepair(&d.record.Causes[i], d.now)
		}
	}
	d.record.CoverPresent(d.observed.Node)
	d.domain = causes.DomainIn(d.policy, d.observed.Node, d.record, d.observed.Domain)
}

// find finds what the conditions of the node mean by the record.
func (d *decider) find() {
	self := limits.Peer{Name: d.observed.Node.Name, Claims: node.Claims(d.observed.Node)}
	claims := d.observed.Peers.HonouredClaims(self, d.now)
	d.conditions = causes.Assess(d.policy, d.observed.Node, d.record, claims, &d.next)
	d.conditions.LeadingSince = d.observed.LeadingSince
	if domain, configured := d.policy.Domain(d.domain.Label); configured {
		d.conditions.Settle = domain.Settle
	}
}

// finish adds to the result what follows from the record as it has become, whatever was chosen.
func (d *decider) finish() Decision {
	reach.NoteUnknown(d.record, &d.conditions, &d.next)
	if b := staleness(&d.conditions); b != nil && d.result.Blocked == nil {
		d.note(wait{blocked: b, until: []time.Time{d.now.Add(causes.Recheck)}})
	}
	d.removeUnexplained()
	d.updateNotices()
	d.restartJobs()
	if !d.result.waitsForLimit() && d.observed.Breaker.MayClose(d.policy.Breaker, d.observed.Peers, d.now) {
		d.result.SetBreaker = &limits.BreakerState{}
	}
	if d.record != nil && d.domain != (limits.Domain{}) {
		d.record.Domain = d.domain
	}
	d.result.Devices, d.result.AWS = deviceRules(&d.situation), d.healthForAWS()
	d.record.Fit()
	d.result.State = &State{Record: d.record, Changes: d.changes, maintained: d.conditions.Maintained, suspicion: suspicion(&d.situation)}
	d.result.StaleUpgrade = node.StaleUpgrade(d.observed.Node, d.now)
	d.result.RequeueAfter = d.next.After
	d.result.decided = d.decided
	if d.observed.Paused != "" {
		return d.result.paused(d.observed.Paused)
	}
	return d.result
}

// paused is the decision in words only.
func (d Decision) paused(reason string) Decision {
	words := Decision{Blocked: d.Blocked, BlockedToo: d.BlockedToo, RequeueAfter: d.RequeueAfter, StaleUpgrade: d.StaleUpgrade}
	if d.Blocked != nil && d.Blocked.Reason != causes.BlockedByObserve && d.Blocked.Reason != causes.BlockedByStale {
		words.BlockedToo = append(words.BlockedToo, causes.Blocked{Reason: causes.BlockedByPause, Message: fmt.Sprintf("paused (%s)", reason)})
	}
	for _, e := range d.Events {
		words.Blocked = causes.NewBlocked("", causes.BlockedByPause, "paused (%s), would be %s: %s", reason, e.Reason, e.Message)
	}
	return words
}

// SeenAfter returns what the remediator knows about the quarantine of a node after the decision.
func (d Decision) SeenAfter(o Observation, now time.Time) seen.Seen {
	look := seen.Look{HasDecided: d.State != nil, Decided: d.decided}
	if o.RecordErr == nil {
		look.Observed = o.Record
	}
	if d.State != nil {
		look.Record = d.State.Record
	}
	if o.Node != nil {
		look.ShowsTaint = o.showsTaint
	}
	return o.Seen.After(look, now)
}

// waitsForLimit reports whether a limit holds back what the decision would do.
func (d *Decision) waitsForLimit() bool {
	if d.Blocked == nil {
		return false
	}
	switch d.Blocked.Reason {
	case causes.BlockedByBudget, causes.BlockedByBreaker, causes.BlockedByDetectorSuspect:
		return true
	}
	return false
}

// updateCauses brings the causes of the record up to date: which conditions are causes and since when, whose broken links they come from,
// what they reach, and which are due.
func (d *decider) updateCauses() {
	d.updateEarlierRelease()
	r := d.record
	if r == nil || r.Closed() {
		return
	}
	d.conditions.UpdateCauses(r, &d.next)
	if r.Phase == causes.Released {
		r.DropCleared(&d.conditions, &d.next)
		return
	}
	d.judgeLinks()
	reach.Find(&d.conditions, r, d.observed.devices())
	if r.Phase == causes.Suspect {
		r.Isolation = nil // an earlier version showed by rules without effect what a rule that only observes would isolate
		causes.DropOver(r, &d.conditions, &d.next)
	} else {
		d.checkCordon()
		d.updateIsolation()
		r.Causes = slices.DeleteFunc(r.Causes, func(c causes.Cause) bool { return !c.Due && !c.HealthySince.IsZero() })
		for i := range r.Causes {
			d.next.RequeueAt(d.conditions.ClearsAt(&r.Causes[i]))
		}
	}
	if !d.conditions.MarkDue(r, causes.Problem.IsEnforced, &d.next) && r.Phase == causes.Suspect {
		d.conditions.MarkDue(r, causes.Problem.IsObserved, &d.next)
	}
}
