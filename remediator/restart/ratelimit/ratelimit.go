// Package ratelimit decides which limits of the policy let the restart of a job begin now. Its functions are pure.
package ratelimit

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
)

// retryCrowded is how often a restart that waits for others to end is tried again.
const retryCrowded = 2 * time.Second

// ReasonSettling delays a restart without a report: it lasts seconds.
const ReasonSettling = "Settling"

// Names of the rate limits, in the order in which they are evaluated.
const (
	Settled       = "Settled"       // other nodes of the same wave of faults have had the time to show
	MaxPerJob     = "MaxPerJob"     // the job has not used up its restarts
	MaxPerDay     = "MaxPerDay"     // nor those of one day
	BackOff       = "BackOff"       // it has run for long enough since its last restart
	MaxConcurrent = "MaxConcurrent" // not too many other jobs are under restart
)

// Other is a restart of another job that is under way.
type Other struct {
	restart.Restart
	Namespace string
	// NodeFault: it began because a node was quarantined, which no tenant can bring about.
	NodeFault bool
	// Claims are what its ranks need that have to move; nil: only their number is known, [restart.Restart.Moving].
	Claims []capacity.Claim
}

// OtherOf returns a restart as its record tells it: NodeFault if it names a cause on a node, and neither failed pods nor a stall.
func OtherOf(r restart.Restart, namespace string) Other {
	return Other{Restart: r, Namespace: namespace, NodeFault: slices.ContainsFunc(r.Quarantines, restart.Cause.IsNodeFault)}
}

// Evaluate evaluates which limits of the policy let a restart of a job of a namespace begin now.
func Evaluate(
	t restart.Trigger, namespace string, rec restart.Record, others []Other, limits policy.Restart, now time.Time,
) []restart.Precondition {
	return []restart.Precondition{
		settled(t, limits, now),
		maxPerJob(rec, limits),
		maxPerDay(rec, limits, now),
		backedOff(rec, limits, now),
		maxConcurrent(t, namespace, others, limits),
	}
}

// maxPerDayStalled is the largest maxPerDay for a stalled job. What a log shows is weaker than the fault of a node, and a job
// that hangs again and again is fixed by a person.
const maxPerDayStalled = 3

// LimitsOf are the limits that apply to a job. Where each pod or group is replaced by itself, one restart has nothing
// to do with the next, unless all of them are stalled.
func LimitsOf(t restart.Trigger, job restart.Job, limits policy.Restart) policy.Restart {
	if job.Gang != nil && t.Kind != restart.JobStalled {
		limits.MaxPerDay, limits.MaxPerJob, limits.BackOff = 0, 0, policy.BackOff{}
	}
	if t.Kind == restart.JobStalled && (limits.MaxPerDay == 0 || limits.MaxPerDay > maxPerDayStalled) {
		limits.MaxPerDay = maxPerDayStalled
	}
	return limits
}

func settled(t restart.Trigger, limits policy.Restart, now time.Time) restart.Precondition {
	// A node with a wrong clock, or a forged record, has faults from the future.
	if wait := min(t.Since.Add(limits.Settle).Sub(now), limits.Settle); wait > 0 {
		return delayed(Settled, wait, ReasonSettling, "waiting for other nodes that fail with this one")
	}
	return restart.Precondition{Name: Settled, Passed: true}
}

func maxPerJob(rec restart.Record, limits policy.Restart) restart.Precondition {
	if limits.MaxPerJob > 0 && rec.Total >= limits.MaxPerJob {
		return delayed(MaxPerJob, 0, "BudgetPerJob", fmt.Sprintf("it was restarted %d times, the limit of maxPerJob", rec.Total))
	}
	return restart.Precondition{Name: MaxPerJob, Passed: true}
}

func maxPerDay(rec restart.Record, limits policy.Restart, now time.Time) restart.Precondition {
	recent := rec.RestartsOfDay(now)
	if limits.MaxPerDay <= 0 || len(recent) < limits.MaxPerDay {
		return restart.Precondition{Name: MaxPerDay, Passed: true}
	}
	next := recent[len(recent)-limits.MaxPerDay].Add(restart.Day)
	return delayed(MaxPerDay, next.Sub(now), "BudgetPerDay",
		fmt.Sprintf("it was restarted %d times in 24 hours, and maxPerDay is %d; the next restart may begin at %s",
			len(recent), limits.MaxPerDay, next.UTC().Format(time.RFC3339)))
}

func backedOff(rec restart.Record, limits policy.Restart, now time.Time) restart.Precondition {
	last := rec.LastStop()
	if last == nil {
		return restart.Precondition{Name: BackOff, Passed: true}
	}
	pause := backOff(last.Streak, limits.BackOff)
	next := last.EndedAt.Add(pause)
	if !now.Before(next) {
		return restart.Precondition{Name: BackOff, Passed: true}
	}
	return delayed(BackOff, next.Sub(now), "BackOff",
		fmt.Sprintf("its last restart ended at %s, the back-off after %d in a row is %s; the next one may begin at %s",
			last.EndedAt.UTC().Format(time.RFC3339), last.Streak, pause, next.UTC().Format(time.RFC3339)))
}

// shareOfNamespace is which part of maxConcurrent one namespace may take for failed pods and stalled jobs.
const shareOfNamespace = 4

// maxConcurrent bounds the restarts under way. A tenant can bring about as many failed pods and stalled jobs as it likes. So restarts for
// them hold up none for the fault of a node, wait for all others, and a namespace has its share.
func maxConcurrent(t restart.Trigger, namespace string, others []Other, limits policy.Restart) restart.Precondition {
	if limits.MaxConcurrent <= 0 {
		return restart.Precondition{Name: MaxConcurrent, Passed: true}
	}
	n := Concurrent(t, others)
	if n >= limits.MaxConcurrent {
		return delayed(MaxConcurrent, retryCrowded, "Concurrency", fmt.Sprintf(
			"%d other jobs are being restarted, and maxConcurrent is %d", n, limits.MaxConcurrent))
	}
	if t.Kind == restart.NodeQuarantined {
		return restart.Precondition{Name: MaxConcurrent, Passed: true}
	}
	its := Concurrent(t, slices.DeleteFunc(slices.Clone(others), func(o Other) bool { return o.NodeFault || o.Namespace != namespace }))
	if share := max(1, limits.MaxConcurrent/shareOfNamespace); its >= share {
		return delayed(MaxConcurrent, retryCrowded, "Concurrency", fmt.Sprintf(
			"%d other jobs of namespace %s are being restarted for failed pods or stalls, and its share of maxConcurrent is %d",
			its, namespace, share))
	}
	return restart.Precondition{Name: MaxConcurrent, Passed: true}
}

// Concurrent counts the restarts under way that take a place of maxConcurrent. Held ones do not, and for the fault of a node only those
// for such faults do.
func Concurrent(t restart.Trigger, others []Other) (n int) {
	for _, o := range others {
		if o.Held == "" && (o.NodeFault || t.Kind != restart.NodeQuarantined) {
			n++
		}
	}
	return n
}

// InTurns orders the jobs that are to be restarted for one fault: the first one of each namespace comes before the second one of any, and
// namespaces with few come first. Places are few, and a tenant may have as many jobs on a node as pods.
func InTurns[T any](jobs []T, namespace func(T) string) []T {
	type waiting struct {
		job          T
		turn, number int
		namespace    string
	}
	number := map[string]int{}
	all := make([]waiting, len(jobs))
	for i, job := range jobs {
		all[i] = waiting{job: job, namespace: namespace(job)}
		all[i].turn = number[all[i].namespace]
		number[all[i].namespace]++
	}
	for i := range all {
		all[i].number = number[all[i].namespace]
	}
	slices.SortStableFunc(all, func(a, b waiting) int {
		return cmp.Or(cmp.Compare(a.turn, b.turn), cmp.Compare(a.number, b.number), cmp.Compare(a.namespace, b.namespace))
	})
	ordered := make([]T, len(all))
	for i, w := range all {
		ordered[i] = w.job
	}
	return ordered
}

// delayed is a limit that holds a restart which would be right.
func delayed(name string, after time.Duration, reason, text string) restart.Precondition {
	return restart.Precondition{Name: name, Reason: reason, Text: text, RetryAfter: after}
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

// Claims are what the ranks of restarts under way need that have to move, room that none of their pods has taken yet. Those of failed pods
// and stalls hold up no restart for the fault of a node. What the records say has to be bounded by the pods of the jobs before, see
// [restart.Restart.Moving].
func Claims(t restart.Trigger, all []Other) (claims []capacity.Claim) {
	for _, o := range all {
		switch {
		case t.Kind == restart.NodeQuarantined && !o.NodeFault:
		case o.Claims != nil:
			claims = append(claims, o.Claims...)
		case o.Moving > 0:
			claims = append(claims, capacity.Claim{Ranks: min(o.Moving, restart.MaxPods)})
		}
	}
	return claims
}
