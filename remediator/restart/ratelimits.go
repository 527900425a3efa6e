package restart

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

// ReasonSettling delays a restart without a report: it lasts seconds.
const ReasonSettling = "Settling"

// Names of the rate limits, in the order in which they are evaluated.
const (
	Settled       = "Settled"       // other nodes of the same wave of faults have had the time to show
	MaxPerJob     = "MaxPerJob"     // the job has not used up its restarts
	MaxPerDay     = "MaxPerDay"     // nor those of one day
	BackOff       = "BackOff"       // it has run for long enough since its last restart
	MaxConcurrent = "MaxConcurrent" // not too many other jobs are under restart
	Capacity      = "Capacity"      // the ranks that have to move find room
	PodsFitRecord = "PodsFitRecord" // its record can hold the UIDs of its pods
)

// Other is a restart of another job that is under way.
type Other struct {
	Restart
	Namespace string
	// NodeFault: it began because a node was quarantined, which no tenant can bring about.
	NodeFault bool
}

// OtherOf returns a restart as its record tells it: NodeFault if it names a cause on a node, and neither failed pods nor a stall.
func OtherOf(r Restart, namespace string) Other {
	return Other{Restart: r, Namespace: namespace, NodeFault: slices.ContainsFunc(r.Quarantines, Cause.IsNodeFault)}
}

// RateLimits evaluates which limits of the policy let a restart of a job of a namespace begin now.
func RateLimits(t Trigger, namespace string, rec Record, others []Other, limits policy.Restart, now time.Time) []Precondition {
	return []Precondition{
		settled(t, limits, now),
		maxPerJob(rec, limits),
		maxPerDay(rec, limits, now),
		backedOff(rec, limits, now),
		maxConcurrent(t, namespace, others, limits),
	}
}

// maxPerDayStalled is the largest maxPerDay for a stalled job. What a log shows is weaker than the fault of a node, and a job
// that hangs again and again is mended by a person.
const maxPerDayStalled = 3

// LimitsOf are the limits that apply to a job. Where each pod or group is replaced by itself, one restart has nothing
// to do with the next, unless all of them are stalled.
func LimitsOf(t Trigger, job Job, limits policy.Restart) policy.Restart {
	if job.Gang != nil && t.Kind != JobStalled {
		limits.MaxPerDay, limits.MaxPerJob, limits.BackOff = 0, 0, policy.BackOff{}
	}
	if t.Kind == JobStalled && (limits.MaxPerDay == 0 || limits.MaxPerDay > maxPerDayStalled) {
		limits.MaxPerDay = maxPerDayStalled
	}
	return limits
}

func settled(t Trigger, limits policy.Restart, now time.Time) Precondition {
	// A node with a wrong clock, or a forged record, has faults from the future.
	if wait := min(t.Since.Add(limits.Settle).Sub(now), limits.Settle); wait > 0 {
		return delayed(Settled, wait, ReasonSettling, "waiting for other nodes that fail with this one")
	}
	return Precondition{Name: Settled, Passed: true}
}

func maxPerJob(rec Record, limits policy.Restart) Precondition {
	if limits.MaxPerJob > 0 && rec.Total >= limits.MaxPerJob {
		return delayed(MaxPerJob, 0, "BudgetPerJob", fmt.Sprintf("it was restarted %d times, the limit of maxPerJob", rec.Total))
	}
	return Precondition{Name: MaxPerJob, Passed: true}
}

func maxPerDay(rec Record, limits policy.Restart, now time.Time) Precondition {
	recent := rec.RestartsOfDay(now)
	if limits.MaxPerDay <= 0 || len(recent) < limits.MaxPerDay {
		return Precondition{Name: MaxPerDay, Passed: true}
	}
	next := recent[len(recent)-limits.MaxPerDay].Add(day)
	return delayed(MaxPerDay, next.Sub(now), "BudgetPerDay",
		fmt.Sprintf("it was restarted %d times in 24 hours, and maxPerDay is %d; the next restart may begin at %s",
			len(recent), limits.MaxPerDay, next.UTC().Format(time.RFC3339)))
}

func backedOff(rec Record, limits policy.Restart, now time.Time) Precondition {
	last := rec.lastStop()
	if last == nil {
		return Precondition{Name: BackOff, Passed: true}
	}
	pause := backOff(last.Streak, limits.BackOff)
	next := last.EndedAt.Add(pause)
	if !now.Before(next) {
		return Precondition{Name: BackOff, Passed: true}
	}
	return delayed(BackOff, next.Sub(now), "BackOff",
		fmt.Sprintf("its last restart ended at %s, the back-off after %d in a row is %s; the next one may begin at %s",
			last.EndedAt.UTC().Format(time.RFC3339), last.Streak, pause, next.UTC().Format(time.RFC3339)))
}

// shareOfNamespace is which part of maxConcurrent one namespace may take for failed pods and stalled jobs.
const shareOfNamespace = 4

// maxConcurrent bounds the restarts under way. A tenant can bring about as many failed pods and stalled jobs as it likes. So restarts for
// them hold up none for the fault of a node, wait for all others, and a namespace has its share.
func maxConcurrent(t Trigger, namespace string, others []Other, limits policy.Restart) Precondition {
	if limits.MaxConcurrent <= 0 {
		return Precondition{Name: MaxConcurrent, Passed: true}
	}
	n := Concurrent(t, others)
	if n >= limits.MaxConcurrent {
		return delayed(MaxConcurrent, retryCrowded, "Concurrency", fmt.Sprintf(
			"%d other jobs are being restarted, and maxConcurrent is %d", n, limits.MaxConcurrent))
	}
	if t.Kind == NodeQuarantined {
		return Precondition{Name: MaxConcurrent, Passed: true}
	}
	its := Concurrent(t, slices.DeleteFunc(slices.Clone(others), func(o Other) bool { return o.NodeFault || o.Namespace != namespace }))
	if share := max(1, limits.MaxConcurrent/shareOfNamespace); its >= share {
		return delayed(MaxConcurrent, retryCrowded, "Concurrency", fmt.Sprintf(
			"%d other jobs of namespace %s are being restarted for failed pods or stalls, and its share of maxConcurrent is %d",
			its, namespace, share))
	}
	return Precondition{Name: MaxConcurrent, Passed: true}
}

// Concurrent counts the restarts under way that take a place of maxConcurrent. Held ones do not, and for the fault of a node only those
// for such faults do.
func Concurrent(t Trigger, others []Other) (n int) {
	for _, o := range others {
		if o.Held == "" && (o.NodeFault || t.Kind != NodeQuarantined) {
			n++
		}
	}
	return n
}

// FitsRecord is the precondition that the record can hold the pods that are to be stopped. It is evaluated last, when they are
// listed for the stop.
func FitsRecord(pods int) Precondition {
	if pods > maxPods {
		return delayed(PodsFitRecord, 0, "TooManyPods", fmt.Sprintf("it has %d pods, and the record of a restart holds %d", pods, maxPods))
	}
	return Precondition{Name: PodsFitRecord, Passed: true}
}

// delayed is a limit that holds a restart which would be right.
func delayed(name string, after time.Duration, reason, text string) Precondition {
	return Precondition{Name: name, Reason: reason, Text: text, RetryAfter: after}
}

// backOff is the pause after so many restarts in a row. It doubles at most until it is the longest one, however long a forged
// record says that the row is.
func backOff(streak int, b policy.BackOff) time.Duration {
	if b.First <= 0 || streak < 1 {
		return 0
	}
	pause := b.First
	for ; streak > 1 && pause < b.Max; streak-- {
		pause *= 2
	}
	return min(pause, b.Max)
}

// streak is the number in its row of a restart that begins now: restarts between which the job ran for no longer than the
// longest pause are in a row.
func (rec Record) streak(now time.Time, b policy.BackOff) int {
	last := rec.lastStop()
	if last == nil || now.Sub(last.EndedAt) > b.Max {
		return 1
	}
	return last.Streak + 1
}

// lastStop is the last closed restart that had stopped the job, or nil.
func (rec Record) lastStop() *Restart {
	for i := range rec.Last {
		if rec.Last[i].Streak > 0 {
			return &rec.Last[i]
		}
	}
	return nil
}

// RestartsOfDay is when the restarts of the last 24 hours began, the oldest first.
func (rec Record) RestartsOfDay(now time.Time) []time.Time {
	return slices.DeleteFunc(slices.Clone(rec.Recent), func(began time.Time) bool { return !began.After(now.Add(-day)) })
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

// ClaimedRanks is how many ranks of restarts under way have to move, and need room that none of their pods has taken yet. What
// the records say has to be bounded by the pods of the jobs before, see [Restart.Moving].
func ClaimedRanks(all []Other) int {
	n := 0
	for _, r := range all {
		n += min(max(r.Moving, 0), maxPods)
	}
	return n
}
