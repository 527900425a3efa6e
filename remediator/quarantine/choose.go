package quarantine

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/isolate"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
)

// situation is what a choice is made from. Choosing changes nothing of it.
type situation struct {
	policy   *policy.Policy
	observed Observation
	now      time.Time
	known    handoff.Known
	domain   limits.Domain
	// record, changes and conditions are the record, the node and what its conditions mean, as they have become so far.
	record     *causes.Record
	changes    handoff.NodeChanges
	conditions causes.Assessment
	// decided is set once this decision has put a taint of the policy on the node, within all limits.
	decided bool
}

// act is what a choice does.
type act int

const (
	stay act = iota
	// open begins a suspicion, and forget drops it.
	open
	forget
	quarantineNode
	// upgrade follows a problem that needs more than the one that decided so far.
	upgrade
	// restore puts a missing taint back, and taintAnew decides again on the taint of a quarantine that nothing confirms.
	restore
	taintAnew
	releaseNode
)

// choice is what becomes of the quarantine of a node, what it waits for, and what is said about it.
type choice struct {
	do act
	// worst is the problem that decides; incident that as a part of which the node is quarantined for it, nil: for itself.
	worst    causes.Problem
	incident *limits.Incident
	// held is the place under the limits that the node has already.
	held limits.Held
	// why is what the Event says about a missing taint.
	why     string
	release ending
	wait    wait
}

// wait is what a choice waits for, and why.
type wait struct {
	// blocked is nil if it waits for nothing; too is what else it would wait for then.
	blocked *causes.Blocked
	too     []causes.Blocked
	// limited and forOthers are [Decision.Limited] and [Decision.WaitsForOthers].
	limited, forOthers bool
	// opened is the new state of the breaker, if it opens.
	opened *limits.BreakerState
	// until is when to choose again, at the latest.
	until []time.Time
}

// choose chooses by the phase of the record.
func (s *situation) choose() choice {
	switch {
	case s.record == nil || s.record.Phase == causes.Released:
		return s.chooseInService()
	case s.record.Phase == causes.Suspect:
		return s.chooseSuspect()
	}
	return s.chooseQuarantined()
}

// chooseInService begins a suspicion. While a manual release lasts, only a new fault or one of a worse class does: whoever released the
// node did not know of that one.
func (s *situation) chooseInService() (c choice) {
	isNew := causes.Problem.IsActionable
	if s.record != nil && s.record.ManualReleaseActive {
		isNew = s.record.Exceeds
		for _, p := range s.conditions.Sorted() {
			if p.IsEnforced() && !s.record.HasCause(p.Condition.Type) && !isNew(p) {
				c.wait.blocked = causes.NewBlocked(p.Rule.Name, causes.BlockedByManualRelease,
					"%s, but the node was released manually and %s has not cleared", causes.Describe(p), causes.CauseNames(s.record))
			}
		}
	}
	if s.conditions.Has(isNew) {
		c.do = open
	}
	return c
}

// chooseSuspect quarantines the node when a problem is due, and forgets a suspicion that is over.
func (s *situation) chooseSuspect() choice {
	if len(s.record.Causes) == 0 {
		return choice{do: forget}
	}
	if worst, due := s.conditions.Worst(s.record, causes.Problem.IsEnforced); due {
		return s.unlessLimited(choice{do: quarantineNode, worst: worst})
	}
	if p, due := s.conditions.Worst(s.record, causes.Problem.IsObserved); due {
		return choice{wait: wait{blocked: causes.NewBlocked(p.Rule.Name, causes.BlockedByObserve,
			"%s; observe mode: would %s%s", causes.Describe(p), causes.WouldDo(p), causes.AndRestart(p.Rule))}}
	}
	return choice{}
}

// chooseQuarantined releases the node, or else keeps the taint as it must be.
func (s *situation) chooseQuarantined() choice {
	if c := s.chooseRelease(); c.do == releaseNode || s.conditions.Maintained {
		return c
	} else if !s.isTainted() {
		return s.chooseTaint(c.wait)
	} else {
		return s.chooseUpgrade(c.wait)
	}
}

// chooseTaint puts a removed taint back once: `kubectl taint` and others patch the list without a version check and may have dropped it
// unknowingly. The second time the removal is a manual release, and the first time if the rule only observes now.
func (s *situation) chooseTaint(w wait) choice {
	taint := s.record.Taint
	if rule, _ := s.policy.Rule(taint.Rule); taint.Restored || rule.Observe {
		return choice{do: releaseNode, release: ending{how: byRemovedTaint}, wait: w}
	}
	why := ""
	switch {
	case !s.known.HasTaint(taint.NodeTaint()):
		why = "no known policy sets taint " + taint.String()
	case !s.confirmed():
		why = "this remediator has never seen taint " + taint.String() + " on it"
	default:
		return choice{do: restore, wait: w}
	}
	worst, due := s.conditions.Worst(s.record, causes.Problem.IsEnforced)
	if !due {
		w.blocked = causes.NewBlocked(taint.Rule, causes.BlockedByUnconfirmed,
			"the record says that the node is quarantined by rule %s, but %s, and no condition explains it now, so the node is not tainted; "+
				"run `kubectl pitcrew release`, or quarantine it anew", taint.Rule, why)
		return choice{wait: w}
	}
	return s.unlessLimited(choice{do: taintAnew, worst: worst, why: why, wait: w})
}

// chooseUpgrade follows a problem that needs more than the one that decided so far.
func (s *situation) chooseUpgrade(w wait) choice {
	worst, due := s.conditions.Worst(s.record, causes.Problem.IsEnforced)
	if !due {
		return choice{wait: w}
	}
	taint := s.record.Taint
	// A rule that the policy no longer has restarts nothing.
	decided, _ := s.policy.Rule(taint.Rule)
	if worst.Strength() <= causes.Strength(taint.Repair, taint.Effect, s.record.IsIsolated(), decided.RestartJobs) && !s.hasMoreGPUs(worst) {
		return choice{wait: w}
	}
	return s.unlessLimited(choice{do: upgrade, worst: worst, held: s.held(), wait: w})
}

// unlessLimited is a choice that puts a taint on the node, unless its devices are unknown or a limit holds it back.
func (s *situation) unlessLimited(c choice) choice {
	if c.worst.Reach.Extent == isolate.DevicesUnknown {
		c.do = stay
		c.wait.blocked = causes.NewBlocked(c.worst.Rule.Name, causes.BlockedByDevices,
			"%s, but %s; the whole node is quarantined if that lasts for %s",
			causes.Describe(c.worst), c.worst.Reach.Wait, isolate.Settle)
		return c
	}
	q := s.question(c.worst, c.held)
	w := waitFor(c.worst, s.observed.Peers.Ask(q, s.now), s.now)
	c.incident, w.forOthers = q.Unit.Incident, w.forOthers || c.wait.forOthers
	if w.blocked == nil {
		c.wait.forOthers = w.forOthers
		return c
	}
	if c.do == upgrade {
		w.blocked.Message += "; the node keeps taint " + s.record.Taint.String()
	}
	c.do, c.wait = stay, w
	return c
}

// question asks the limits about a quarantine for a problem. held is the place that the node has already.
func (s *situation) question(p causes.Problem, held limits.Held) limits.Question {
	return limits.Question{Policy: s.policy, Condition: p.Condition, Rule: p.Rule, Held: held, Unit: s.unit(p), Breaker: s.observed.Breaker}
}

// waitFor is what a quarantine for a problem waits for by an answer of the limits. The nodes that are held back are also decided again when
// the others change: time alone frees a place in minutes, not seconds.
func waitFor(p causes.Problem, a limits.Answer, now time.Time) wait {
	w := wait{forOthers: a.ForOthers, opened: a.Opened}
	if a.By == "" {
		return w
	}
	but := ", but "
	if a.By == limits.ByOrigin {
		but = ", "
	}
	w.blocked = causes.NewBlocked(p.Rule.Name, a.By, "%s%s%s", causes.Describe(p), but, a.Why)
	w.limited = a.By == limits.ByBudget || a.By == limits.ByBreaker
	w.until = []time.Time{a.RetryAt, now.Add(causes.Recheck)}
	for _, other := range a.Too {
		w.too = append(w.too, causes.Blocked{Rule: p.Rule.Name, Reason: other.By, Message: other.Why})
	}
	return w
}

// held is the quarantine whose place under the limits the node has. A record can name a taint of others as its own: that one
// has no place.
func (s *situation) held() limits.Held {
	t := s.record.Taint
	hasPlace := causes.HasTaint(s.changes.Taints, t)
	if s.record.IsIsolated() {
		hasPlace = s.confirmed()
	}
	if t.HeldFor != "" || !s.known.HasTaint(t.NodeTaint()) || !hasPlace {
		return limits.Held{}
	}
	return limits.Held{Rule: t.Rule, Soft: limits.IsSoft(t.Effect)}
}

// provenPlace is [situation.held], but only for our own taint: a kubelet can neither set nor move that one, so a quarantine has put
// it there, within the limits of its time.
func (s *situation) provenPlace() limits.Held {
	if t := s.record.Taint; t.Key != conditions.TaintUnhealthy || t.PreExisting || !s.observed.showsTaint(s.record) {
		return limits.Held{}
	}
	return s.held()
}

// confirmed reports whether the quarantine of the record is more than a claim.
func (s *situation) confirmed() bool {
	known := s.observed.Seen.Of(s.record)
	return s.decided || known.Decided || known.Tainted || s.observed.showsTaint(s.record) && s.observed.Node.UID == s.record.NodeUID
}

// isDecided reports whether this remediator has decided on the taint of the record.
func (s *situation) isDecided() bool { return s.decided || s.observed.Seen.Of(s.record).Decided }

// isTainted reports whether the taint of the quarantine is where it belongs, or is about to be put there.
func (s *situation) isTainted() bool {
	if s.record.IsIsolated() {
		return s.confirmed() && !s.devices().HaveLostRules(s.record.Isolation)
	}
	return causes.HasTaint(s.changes.Taints, s.record.Taint)
}

// isInForce reports whether the taint of the quarantine keeps pods off.
func (s *situation) isInForce() bool {
	if s.record.IsIsolated() {
		return s.devices().HasRules(s.record.Isolation, s.record.Taint.NodeTaint())
	}
	return causes.HasTaint(s.changes.Taints, s.record.Taint)
}

// restartRule is the rule by which the node's jobs are to be restarted; empty: they are not. waits are what further restarts wait for.
func (s *situation) restartRule() (name string, waits []wait) {
	if s.record == nil || s.record.Phase != causes.Quarantined || s.conditions.Maintained || !s.isInForce() {
		return "", nil
	}
	rule, _ := s.policy.Rule(s.record.Taint.Rule)
	_, notReady := s.conditions.Problems[corev1.NodeReady]
	// A rule on Ready has quarantined the node and the jobs on it have survived: it is Ready, in the boot in which it was Ready last.
	isBack := rule.Condition == corev1.NodeReady && !notReady && s.record.Decisive().BootID == s.observed.Node.Status.NodeInfo.BootID
	if !rule.RestartJobs || rule.Observe || s.record.IsOnlyHeld() || !s.isDecided() || isBack {
		return s.presentRestartRule()
	}
	return rule.Name, nil
}

// presentRestartRule is the rule by which a present fault of the node restarts its jobs; empty: none does. A node that a rule without
// restartJobs has quarantined may die. And a quarantine that this remediator has not decided restarts jobs only if it would if it
// were decided now.
func (s *situation) presentRestartRule() (name string, waits []wait) {
	for i := range s.record.Causes {
		c := &s.record.Causes[i]
		p, isProblem := s.conditions.Problems[c.Condition]
		if !isProblem || !p.IsEnforced() || !p.Rule.RestartJobs || !c.Due || s.record.IsCovered(p) {
			continue
		}
		isOther := p.Rule.Name != s.record.Taint.Rule
		if isOther && (limits.IsSoft(p.Rule.Taint.Effect) || limits.IsSoft(s.record.Taint.Effect) ||
			s.now.Before(s.conditions.DueAt(s.record, c, p))) {
			continue // the node stays in service, or leaves it first; or its kubelet may still report
		}
		var answer limits.Answer
		if s.isDecided() && s.record.Taint.HeldFor == "" { // a victim has no place of its own
			answer = s.observed.Peers.AskGuard(s.question(p, limits.Held{}))
		} else {
			answer = s.observed.Peers.Ask(s.question(p, s.provenPlace()), s.now)
		}
		w := waitFor(p, answer, s.now)
		if w.blocked != nil {
			w.blocked.Message = "the jobs of the node are not restarted: " + w.blocked.Message
		}
		if waits = append(waits, w); w.blocked == nil {
			return p.Rule.Name, waits
		}
	}
	return "", waits
}

// holdFor notes that a victim is held for its origin once that one is quarantined: only then can the end of that release it. A victim that
// had a place of its own gives it back.
func holdFor(r *causes.Record, c *causes.Cause, peers limits.Peers) {
	if origin := c.Link.Origin; origin != "" && r.Phase == causes.Quarantined && r.IsOnlyHeld() && peers.IsTainted(origin) {
		r.Taint.HeldFor = origin
	}
}
