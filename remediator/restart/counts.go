package restart

import (
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// Day is the window of policy.Restart.MaxPerDay.
const Day = 24 * time.Hour

// Names of two limits that are evaluated where what they need is known.
const (
	Capacity      = "Capacity"      // the ranks that have to move find room
	PodsFitRecord = "PodsFitRecord" // its record can hold the UIDs of its pods
)

// FitsRecord is the precondition that the record can hold the pods that are to be stopped. It is evaluated last, when they are
// listed for the stop.
func FitsRecord(pods int) Precondition {
	if pods > MaxPods {
		text := fmt.Sprintf("it has %d pods, and the record of a restart holds %d", pods, MaxPods)
		return Precondition{Name: PodsFitRecord, Reason: "TooManyPods", Text: text}
	}
	return Precondition{Name: PodsFitRecord, Passed: true}
}

// streak is the number in its row of a restart that begins now: restarts between which the job ran for no longer than the
// longest pause are in a row.
func (rec Record) streak(now time.Time, b policy.BackOff) int {
	last := rec.LastStop()
	if last == nil || now.Sub(last.EndedAt) > b.Max {
		return 1
	}
	return last.Streak + 1
}

// LastStop is the last closed restart that had stopped the job, or nil.
func (rec Record) LastStop() *Restart {
	for i := range rec.Last {
		if rec.Last[i].Streak > 0 {
			return &rec.Last[i]
		}
	}
	return nil
}

// RestartsOfDay is when the restarts of the last 24 hours began, the oldest first.
func (rec Record) RestartsOfDay(now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(rec.Recent), func(began time.Time) bool { return !began.After(now.Add(-Day)) })
}

// Counted returns the record with one more restart counted, which is its current one and stops the job now.
func (rec Record) Counted(now time.Time, b policy.BackOff) Record {
	current := *rec.Current
	current.Streak = rec.streak(now, b)
	rec.Current = &current
	rec.Total++
	rec.Recent = append(rec.RestartsOfDay(now), now)
	rec.Recent = rec.Recent[max(0, len(rec.Recent)-policy.MaxPerDayLimit):]
	return rec
}
