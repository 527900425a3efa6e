package quarantine

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// hasFlapped tells whether the fault has come often enough by its rule's flaps, this time included: a port that goes down
// for a moment again and again never lasts for its rule's `for`, and yet hangs the jobs that use it. A manual release
// starts the count again.
//
// That a node is not Ready counts only if that has quarantined it: short absences, and those that the guard against common causes
// holds back, are the network's.
func (r *Record) hasFlapped(p problem, now time.Time) bool {
	flaps := p.rule.Flaps
	if flaps.Max == 0 {
		return false
	}
	count := 1 + countFlaps(r.Causes, p, now)
	for _, q := range r.Last {
		if q.ReleasedBy == ByPerson {
			break
		}
		isOne := q.hasCause(p.condition.Type)
		if p.isReady() {
			isOne = q.Taint.Rule == p.rule.Name
		}
		if isOne && now.Sub(q.QuarantinedAt) < flaps.Window {
			count += 1 + countFlaps(q.Causes, p, now)
		}
	}
	return count >= flaps.Max
}

// countFlaps counts how often the problem's condition cleared within the window before it quarantined the node.
func countFlaps(causes []Cause, p problem, now time.Time) int {
	count := 0
	for i := range causes {
		if causes[i].Condition == p.condition.Type {
			count += len(within(causes[i].FlapTimes, p.rule.Flaps.Window, now))
		}
	}
	return count
}

// recordFlap notes that a suspect's fault has cleared without a quarantine. It counts no absence of a node, see [Record.hasFlapped].
func (c *Cause) recordFlap(flaps policy.Flaps, now time.Time) {
	if flaps.Max == 0 || c.Condition == corev1.NodeReady {
		return
	}
	c.Due = false
	c.FlapTimes = append(within(c.FlapTimes, flaps.Window, now), now)
	c.FlapTimes = c.FlapTimes[max(0, len(c.FlapTimes)-policy.MaxFlaps):]
}

// hasFlapTimes tells whether flaps of a cause still count, and asks to decide again when the last one no longer does.
func (c *Cause) hasFlapTimes(flaps policy.Flaps, next *schedule) bool {
	left := within(c.FlapTimes, flaps.Window, next.now)
	if len(left) == 0 {
		return false
	}
	next.requeueAt(left[len(left)-1].Add(flaps.Window))
	return true
}

// within copies the times of the last window.
func within(times []time.Time, window time.Duration, now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(times), func(at time.Time) bool { return now.Sub(at) >= window })
}
