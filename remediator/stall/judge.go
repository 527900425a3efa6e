package stall

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// State is how a job does.
type State string

// The states of a job.
const (
	Starting   State = "starting" // no rank has printed a step yet
	Running    State = "running"
	Paused     State = "paused"      // the last line that matches begins a pause
	NotRunning State = "not-running" // not all of its ranks run
	Unknown    State = "unknown"     // for longer than it may be quiet nothing can be told
	Stalled    State = "stalled"
)

// Verdict is what follows from the looks at a job so far.
type Verdict struct {
	State State
	// Since is since when it is quiet, if it is stalled or overdue.
	Since time.Time
	// Overdue: reads have shown that it is quiet for longer than ever before, though not yet for as long as it may be.
	Overdue bool
	// Why nothing can be told.
	Why string
	// Behind are the indexes of the ranks that stand at another step than most, if it is stalled.
	Behind []int
	// Step is that of most ranks. HasStep is false if they have printed none.
	Step    uint64
	HasStep bool
	// Reported: it was found to be stalled, and since then no step was seen, though a look may have failed.
	Reported bool
	// Next is when to look again.
	Next time.Duration
}

// Judge tells how the job does.
func (j *Job) Judge(s Settings, now time.Time) Verdict {
	rank := slices.IndexFunc(j.ranks, func(r rank) bool { return r.paused })
	if rank < 0 {
		j.pausedSince = time.Time{}
	}
	v := Verdict{State: Running, Reported: j.reported, Next: Interval}
	switch {
	case j.runningSince.IsZero():
		j.clearAt, j.pausedSince = now, time.Time{}
		v.State = NotRunning
		v.Next = min(max(Interval, now.Sub(j.waitingSince)/2), often) // each look is two requests
		return v
	case rank >= 0:
		if j.pausedSince.IsZero() {
			j.pausedSince = now
		}
		j.clearAt = now
		v.State = Paused
		if now.Sub(j.pausedSince) >= longPause {
			v.State = Unknown
			v.Why = fmt.Sprintf("for %s no step was seen after the line of pod %s on node %s that begins a pause",
				longPause, j.ranks[rank].Name, j.ranks[rank].Node)
		}
		return v
	case !j.matched():
		v.State = Starting
	}
	limit, since := j.limit(s), j.QuietSince()
	if left := limit - now.Sub(since); left > 0 {
		v.Next = min(Interval, max(left, again))
	}
	if j.matched() && j.lastRead().Sub(since) > j.longest+Interval {
		v.Overdue, v.Since = true, since
	}
	why := j.doubt(s, since, limit)
	if why == "" {
		j.clearAt = now
		if now.Sub(since) >= limit {
			j.reported = true
			v.State, v.Overdue, v.Since = Stalled, false, since
			v.Behind, v.Step, v.HasStep = j.behind()
		}
		return v
	}
	if now.Sub(j.clearAt) >= limit+often {
		v.State, v.Why = Unknown, why
	}
	return v
}

// doubt is why the silence of the job proves nothing; empty: it proves what it lasts. A rank that is yet to be looked at is a doubt from
// the time on at which the job would be stalled.
func (j *Job) doubt(s Settings, since time.Time, limit time.Duration) string {
	if !j.matched() && !s.GraceNamed {
		return "no line has matched the expression since its ranks run"
	}
	for i := range j.ranks {
		r := &j.ranks[i]
		switch {
		case r.wrong != "":
			return fmt.Sprintf("the log of pod %s on node %s cannot be read: %s", r.Name, r.Node, r.wrong)
		case r.hidden:
			return fmt.Sprintf("pod %s on node %s prints so much, or such long lines, that lines are missed", r.Name, r.Node)
		case !r.missed.IsZero() && s.pause != nil:
			return fmt.Sprintf("lines of pod %s on node %s were missed, of which one may begin a pause", r.Name, r.Node)
		case r.bar:
			return fmt.Sprintf("pod %s on node %s ends its steps with carriage returns, as progress bars do, which reach its log only after 16 KiB",
				r.Name, r.Node)
		}
	}
	late := slices.IndexFunc(j.ranks, func(r rank) bool { return !r.quietFor(since, limit) })
	if at := j.lastLook(); late >= 0 && at.Sub(since) >= limit {
		return fmt.Sprintf("pod %s on node %s has not been looked at for long enough", j.ranks[late].Name, j.ranks[late].Node)
	}
	return ""
}

func (j *Job) lastRead() (at time.Time) {
	for i := range j.ranks {
		at = later(at, j.ranks[i].last)
	}
	return at
}

func (j *Job) lastLook() (at time.Time) {
	for i := range j.ranks {
		at = later(at, j.ranks[i].tried)
	}
	return at
}

// behind are the ranks at another step than most of those that have printed one, and that step. Where no step is that of most, no rank is
// named. Steps may start over with each epoch, so which one is behind is not told by which number is lower.
func (j *Job) behind() (ranks []int, most uint64, known bool) {
	count, all := map[uint64]int{}, 0
	for i := range j.ranks {
		if j.ranks[i].hasStep {
			count[j.ranks[i].step]++
			all++
		}
	}
	for _, step := range slices.Sorted(maps.Keys(count)) {
		if count[step] >= count[most] {
			most, known = step, true
		}
	}
	if 2*count[most] < all {
		return nil, most, known
	}
	for i := range j.ranks {
		if j.ranks[i].hasStep && j.ranks[i].step != most {
			ranks = append(ranks, i)
		}
	}
	return ranks, most, known
}

// Rank is what is known of one rank, for the evidence. It holds nothing of a log but the number of a step and times.
type Rank struct {
	Rank      int    `json:"rank"`
	Pod       string `json:"pod"`
	Node      string `json:"node"`
	Container string `json:"container"`
	// Step is the last one that it has printed, none: it has printed none.
	Step *uint64 `json:"step,omitempty"`
	// StepAt and LineAt are when it printed that and its last line, by its node's clock.
	StepAt string `json:"stepAt,omitempty"`
	LineAt string `json:"lineAt,omitempty"`
	// NotRead is why its log could not be read.
	NotRead string `json:"notRead,omitempty"`
}

// Ranks is what is known of the ranks.
func (j *Job) Ranks() []Rank {
	all := make([]Rank, len(j.ranks))
	for i, r := range j.ranks {
		all[i] = Rank{Rank: i, Pod: r.Name, Node: r.Node, Container: r.Container, StepAt: r.at, LineAt: r.anchor, NotRead: r.wrong}
		if r.hasStep {
			all[i].Step = &r.step
		}
	}
	return all
}

// Incarnation are the UIDs of the present pods, sorted: they tell these from the pods before and after them.
func (j *Job) Incarnation() (all []types.UID) {
	for i := range j.ranks {
		all = append(all, j.ranks[i].UID)
	}
	slices.Sort(all)
	return all
}
