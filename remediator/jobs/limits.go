package jobs

import (
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

const (
	// day is the window of policy.Restart.MaxPerDay.
	day = 24 * time.Hour
	// retryCrowded is how often a restart that waits for others to end is tried again.
	retryCrowded = 2 * time.Second
)

// delay is why a restart that would be right is not begun yet.
type delay struct {
	blocked
	// after is when to look again; zero: when something changes.
	after time.Duration
}

// reasonSettling delays a restart without a word: it lasts seconds.
const reasonSettling = "Settling"

// delayed tells whether the limits let a restart of a job begin; an empty reason means that they do. It is pure. others
// are the restarts of other jobs that are under way.
func delayed(q Quarantine, rec record, others []restart, l policy.Restart, now time.Time) delay {
	if wait := q.Since.Add(l.Settle).Sub(now); wait > 0 {
		return delay{blocked{reasonSettling, "more nodes may fail with it"}, wait}
	}
	if l.MaxPerJob > 0 && rec.Total >= l.MaxPerJob {
		return delay{blocked{"BudgetPerJob", fmt.Sprintf("it was restarted %d times, which is all that maxPerJob allows", rec.Total)}, 0}
	}
	if recent := rec.since(now.Add(-day)); l.MaxPerDay > 0 && len(recent) >= l.MaxPerDay {
		next := recent[len(recent)-l.MaxPerDay].Add(day)
		return delay{blocked{"BudgetPerDay", fmt.Sprintf("it was restarted %d times in 24 hours, and maxPerDay is %d; the next restart may begin at %s",
			len(recent), l.MaxPerDay, next.UTC().Format(time.RFC3339))}, next.Sub(now)}
	}
	if last := rec.lastStop(); last != nil {
		pause := backOff(last.Streak, l.BackOff)
		if next := last.EndedAt.Add(pause); now.Before(next) {
			return delay{blocked{"BackOff", fmt.Sprintf("its last restart ended at %s, the pause after %d in a row is %s; the next one may begin at %s",
				last.EndedAt.UTC().Format(time.RFC3339), last.Streak, pause, next.UTC().Format(time.RFC3339))}, next.Sub(now)}
		}
	}
	others = slices.DeleteFunc(slices.Clone(others), func(r restart) bool { return r.Held != "" })
	if l.MaxConcurrent > 0 && len(others) >= l.MaxConcurrent {
		return delay{blocked{"Concurrency", fmt.Sprintf("%d other jobs are being restarted, and maxConcurrent is %d", len(others), l.MaxConcurrent)}, retryCrowded}
	}
	return delay{}
}

// backOff is the pause after so many restarts in a row.
func backOff(streak int, b policy.BackOff) time.Duration {
	pause := b.First
	for range streak - 1 {
		if pause >= b.Max {
			break
		}
		pause *= 2
	}
	return min(pause, b.Max)
}

// streak is the number in its row of a restart that begins now: restarts between which the job ran for no longer than the
// longest pause are in a row.
func (rec record) streak(now time.Time, b policy.BackOff) int {
	last := rec.lastStop()
	if last == nil || now.Sub(last.EndedAt) > b.Max {
		return 1
	}
	return last.Streak + 1
}

// lastStop is the last closed restart that had stopped the job, or nil.
func (rec record) lastStop() *restart {
	for i := range rec.Last {
		if rec.Last[i].Streak > 0 {
			return &rec.Last[i]
		}
	}
	return nil
}

// since returns when restarts began after t, the oldest first.
func (rec record) since(t time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(rec.Recent), func(began time.Time) bool { return !began.After(t) })
}

// counted returns the record with one more restart counted, which is its current one and stops the job now.
func (rec record) counted(now time.Time, b policy.BackOff) record {
	current := *rec.Current
	current.Streak = rec.streak(now, b)
	rec.Current = &current
	rec.Total++
	rec.Recent = append(rec.since(now.Add(-day)), now)
	rec.Recent = rec.Recent[max(0, len(rec.Recent)-policy.MaxPerDayLimit):]
	return rec
}
