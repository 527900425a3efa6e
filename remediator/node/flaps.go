package node

import (
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// flapped tells whether the fault has come often enough, this time included: a port that goes down for a moment again and again
// never stands for as long as its rule waits, and yet hangs whoever uses it. A person's release starts the count again.
func (d *decider) flapped(p problem) bool {
	if p.rule.Flaps.Max == 0 {
		return false
	}
	count := 1 + d.dipsWithin(d.record.Causes, p)
	for _, q := range d.record.Last {
		if q.ReleasedBy == ByPerson {
			break
		}
		if q.blames(p.condition.Type) && d.now.Sub(q.QuarantinedAt) < p.rule.Flaps.Window {
			count += 1 + d.dipsWithin(q.Causes, p)
		}
	}
	return count >= p.rule.Flaps.Max
}

func (d *decider) dipsWithin(causes []Cause, p problem) int {
	count := 0
	for _, c := range causes {
		if c.Condition == p.condition.Type {
			count += len(recent(c.Dips, d.now, p.rule.Flaps.Window))
		}
	}
	return count
}

// dipped notes that a suspect's fault has gone without a quarantine.
func (d *decider) dipped(c *Cause) {
	rule, ok := d.ruleOf(c)
	if d.record.Phase != Suspect || !ok || rule.Flaps.Max == 0 {
		return
	}
	c.Due = false
	c.Dips = append(recent(c.Dips, d.now, rule.Flaps.Window), d.now)
	c.Dips = c.Dips[max(0, len(c.Dips)-policy.MaxFlaps):]
}

// dips is how many dips of a cause count still, until the last one does no longer.
func (d *decider) dips(c Cause) int {
	rule, ok := d.ruleOf(&c)
	if !ok {
		return 0
	}
	left := recent(c.Dips, d.now, rule.Flaps.Window)
	if len(left) > 0 {
		d.wake(left[len(left)-1].Add(rule.Flaps.Window))
	}
	return len(left)
}

// recent is a copy of the times within the window.
func recent(times []time.Time, now time.Time, window time.Duration) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return now.Sub(at) >= window })
}
