package quarantine

import (
	"regexp"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// Link is the role of a cause in a broken link of the node's domain; the zero value is none.
type Link struct {
	Role limits.LinkRole `json:"role"`
	// Since is when the faults were first seen in that role. A later message, or a later transition of the condition, does not move it.
	Since time.Time `json:"since"`
	// Origin is the node with the broken link, SwitchSide is set where there are several victims and no origin. Either stays for as long
	// as the cause, whatever becomes of the other nodes. A victim without either has yet to find out.
	Origin     string `json:"origin,omitempty"`
	SwitchSide bool   `json:"switchSide,omitempty"`
}

// isOpen tells of a victim that nothing is found yet.
func (l Link) isOpen() bool { return l.Role == limits.Victim && !l.isFound() }

func (l Link) isFound() bool { return l.Origin != "" || l.SwitchSide }

// String is what was found, as the end of a sentence; empty: nothing.
func (l Link) String() string {
	switch {
	case l.Origin != "":
		return "; taken for a consequence of the broken link of node " + l.Origin
	case l.SwitchSide:
		return "; there are several such faults and no broken link of a GPU, so the switches are suspect and no GPU is to be reset"
	}
	return ""
}

// The faults of a broken NVLink (real incident: marin-community/marin#8934; NVIDIA's catalogue of Xids). The texts are those of package
// internal/xid.
var (
	// brokenLink is an Xid 149, or another NVLink error that calls a link fatal. An Xid 145 is about the remote end of a link.
	brokenLink = regexp.MustCompile(`^Xid (149 |(144|146|147|148|150) .*\b(?i:fatal) on link [0-9])`)
	// notFatal takes out what only seems to match: the word of the line for an error without consequence.
	notFatal = regexp.MustCompile(`(?i)\bnon-?fatal\b`)
	// causedByLink is an error at the remote end of a link, or the end of a channel for one.
	causedByLink = regexp.MustCompile(`^Xid (145 |45 .*, caused by Xid (145|149)\b)`)
)

// linkRole is the role of the faults that a condition reports. One that breaks a link makes an origin, and only a node all of whose
// faults may be consequences is a victim.
func linkRole(c corev1.NodeCondition) limits.LinkRole {
	if c.Type != conditions.GPUXidError {
		return ""
	}
	m, err := conditions.ParseMessage(c.Message)
	if err != nil {
		return ""
	}
	isOrigin := func(p conditions.Part) bool { return brokenLink.MatchString(p.Text) && !notFatal.MatchString(p.Text) }
	isConsequence := func(p conditions.Part) bool { return causedByLink.MatchString(p.Text) }
	switch {
	case slices.ContainsFunc(m.Parts, isOrigin):
		return limits.Origin
	case slices.ContainsFunc(m.Parts, func(p conditions.Part) bool { return !isConsequence(p) }):
		return ""
	}
	return limits.Victim
}

// updateLink notes the role of a cause when it is first seen. An origin stays one: what remains after a repair may be consequences
// alone.
func (a *assessment) updateLink(c *Cause, p problem) {
	switch {
	case p.role == "":
		c.Link = Link{}
	case c.Link.Role == limits.Origin, c.Link.Role == p.role:
	case len(a.policy.Domains) > 0:
		since := a.since(p.condition)
		if since.IsZero() {
			since = a.now
		}
		c.Link = Link{Role: p.role, Since: since}
	default:
		c.Link = Link{}
	}
}

// held is a problem as what was found about its cause makes it: a victim is neither repaired nor are its jobs restarted.
func (r *Record) held(p problem) problem {
	if r == nil || r.Phase == Released || p.role != limits.Victim {
		return p
	}
	i := slices.IndexFunc(r.Causes, func(c Cause) bool { return c.Condition == p.condition.Type })
	if i < 0 || r.Causes[i].Link.Role != limits.Victim || !r.Causes[i].Link.isFound() {
		return p
	}
	p.link, p.class = r.Causes[i].Link, min(p.class, conditions.Inspect)
	rule := &p.rule
	rule.RestartJobs, rule.CheckpointGrace = false, 0
	// Nothing is handed off but what keeps jobs and autoscalers away: other controllers would repair the node.
	rule.HandOff = policy.HandOff{Annotations: policy.KeepNode, Cordon: rule.HandOff.Cordon}
	if rule.Taint.Effect == corev1.TaintEffectNoExecute {
		rule.Taint = corev1.Taint{Key: conditions.TaintUnhealthy, Value: string(p.condition.Type), Effect: corev1.TaintEffectNoSchedule}
	}
	return p
}

// isOnlyHeld tells whether the node is quarantined as a victim: its jobs go on. The record must have a taint.
func (r *Record) isOnlyHeld() bool {
	return r.Taint.HeldFor != "" || r.Taint.Repair <= conditions.Inspect && r.Decisive().Link.isFound()
}

// switchSideVictims is how many victims without an origin point at the switches: nodes of a domain, or GPUs of a node that is in none.
// A single one may have a broken link of its own.
const switchSideVictims = 2

// judgeLinks finds out for each victim whose broken link it is. A node that is quarantined for the repair of its own fault already stays
// as it is.
func (d *decider) judgeLinks() {
	if d.record == nil || len(d.policy.Domains) == 0 {
		return
	}
	changed := false
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		p, isProblem := d.conditions.problems[c.Condition]
		if !isProblem || c.Link.Role != limits.Victim || c.Link.Origin != "" || d.isRepaired(c) {
			continue
		}
		found := d.findOrigin(c, p)
		if found != c.Link {
			c.Link, c.Repair, changed = found, min(c.Repair, conditions.Inspect), true
		}
	}
	if changed {
		d.assess()
	}
}

// isRepaired tells whether the node is quarantined for the repair of the cause.
func (d *decider) isRepaired(c *Cause) bool {
	return d.record.Phase == Quarantined && d.record.Taint.Rule == c.Rule && d.record.Taint.Repair > conditions.Inspect
}

// findOrigin is the link of a victim with what the other nodes of its domain, or the other GPUs of its board, tell about it.
func (d *decider) findOrigin(c *Cause, p problem) Link {
	link, fault := c.Link, limits.LinkFault{Role: limits.Victim, Since: c.Link.Since, Observed: p.rule.Observe}
	domain, configured := d.policy.Domain(d.domain.Label)
	victims := 1
	if configured {
		if link.Origin = d.observed.Peers.OriginOf(domain, d.domain, fault); link.Origin != "" {
			link.SwitchSide = false
			return link
		}
		if settled := c.FirstSeen.Add(domain.Settle); d.now.Before(settled) {
			d.next.requeueAt(settled)
			return link
		}
		victims += d.observed.Peers.VictimsBeside(domain, d.domain, fault)
	} else {
		victims = subjects(p.condition.Message)
	}
	link.SwitchSide = link.SwitchSide || victims >= switchSideVictims
	return link
}

// subjects counts what a message of ours names.
func subjects(message string) int {
	m, err := conditions.ParseMessage(message)
	if err != nil {
		return 0
	}
	names := map[string]bool{}
	for _, part := range m.Parts {
		names[part.Subject] = true
	}
	return len(names)
}

// self is the node as the guard against common causes needs it.
func (d *decider) self(p problem) limits.Peer {
	self := limits.Peer{Labels: d.observed.Node.Labels, Domain: d.domain}
	if i := slices.IndexFunc(d.record.Causes, func(c Cause) bool { return c.Condition == p.condition.Type }); i >= 0 {
		link := d.record.Causes[i].Link
		self.Link = limits.LinkFault{Role: link.Role, Since: link.Since, Observed: p.rule.Observe}
	}
	return self
}

// waitsForOrigin tells whether a victim has to wait until the origin of its faults is quarantined, and notes that. Then no limit is asked:
// both are one failure, and have one place. What the record says of the origin is not enough, because a record can be forged.
func (d *decider) waitsForOrigin(p problem) bool {
	domain, configured := d.policy.Domain(d.domain.Label)
	fault := limits.LinkFault{Role: limits.Victim, Since: p.link.Since, Observed: p.rule.Observe}
	origin := p.link.Origin
	d.result.WaitsForOthers = true
	if configured && d.observed.Peers.OriginOf(domain, d.domain, fault) == origin && d.observed.Peers.IsQuarantined(origin) {
		return false
	}
	d.next.requeueAt(d.now.Add(recheck))
	d.block(p.rule.Name, BlockedByOrigin, "%s, which is not quarantined", describe(p))
	return true
}

// isNotOver is for quarantines that wait for each cause.
func isNotOver(*Cause) bool { return false }

// releaseHeld releases a node of whose faults all that remain are consequences of a broken link that is repaired. They are still
// reported, because nothing has reset the GPUs, so the release covers them like a manual one: only other faults, or worse ones, quarantine
// the node until they have cleared. It tells whether it did.
func (d *decider) releaseHeld() bool {
	if d.conditions.maintained || d.conditions.allowsRelease(&d.record.Quarantine, isNotOver, &d.next) {
		return false
	}
	origin := ""
	isRepaired := func(c *Cause) bool {
		if c.Link.Origin == "" {
			return false
		}
		if d.observed.Peers.IsQuarantined(c.Link.Origin) {
			d.result.WaitsForOthers = true
			return false
		}
		origin = c.Link.Origin
		return true
	}
	if !d.conditions.allowsRelease(&d.record.Quarantine, isRepaired, &d.next) {
		return false
	}
	for i := range d.record.Causes {
		c := &d.record.Causes[i]
		condition, _ := d.conditions.conditionOf(c)
		if m, err := conditions.ParseMessage(condition.Message); err == nil && c.Link.Origin != "" {
			c.Repair = max(c.Repair, m.Repair) // the release covers the fault as it is reported
		}
		c.cover(condition)
	}
	d.release(ByPitcrew)
	d.record.ManualReleaseActive = true
	d.event(corev1.EventTypeNormal, NodeReleased,
		"the quarantine of node %s, whose broken link caused the faults of this one, has ended; released after %s, though %s is still reported",
		origin, d.now.Sub(d.record.QuarantinedAt).Round(time.Second), causeNames(d.record))
	return true
}

// linkOf is the role of a node for others. A node that is being worked on, or that others have cordoned, is no victim: its faults may be
// those of the work.
func linkOf(p *policy.Policy, n *corev1.Node, r *Record) limits.LinkFault {
	if len(p.Domains) == 0 || r != nil && r.Phase == Released && r.ManualReleaseActive {
		return limits.LinkFault{}
	}
	takesPart := !isWorkedOn(n, r)
	if r != nil && r.NodeUID == n.UID && !r.closed() {
		for _, c := range r.Causes {
			rule, known := p.Rule(c.Rule)
			if known && c.Link.Role != "" && c.HealthySince.IsZero() && (takesPart || c.Link.Role == limits.Origin) {
				return limits.LinkFault{Role: c.Link.Role, Since: c.Link.Since, Observed: rule.Observe}
			}
		}
	}
	for _, c := range n.Status.Conditions {
		role := linkRole(c)
		if role == "" || !takesPart {
			continue
		}
		if rule, _, matches := p.Match(n.Labels, c); matches && !rule.AlertOnly {
			return limits.LinkFault{Role: role, Since: c.LastTransitionTime.UTC(), Observed: rule.Observe}
		}
	}
	return limits.LinkFault{}
}

// isWorkedOn tells of a node that its faults may be those of planned work: it is maintained, or others have cordoned it.
func isWorkedOn(n *corev1.Node, r *Record) bool {
	return isMarkedMaintained(n) || n.Spec.Unschedulable && (r == nil || r.HandOff == nil || !r.HandOff.Cordon)
}
