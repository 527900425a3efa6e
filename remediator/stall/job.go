// Package stall decides whether a training job makes progress, by what its ranks print.
//
// It is pure: it has no client, no clock and no goroutine. Package remediator/progress reads the logs, gives each answer to a [Job] and
// asks it what to read next and what follows.
//
// Tenants write the logs, and the clocks of nodes differ. So silence is counted by the reader's clock, and a look that may have missed a
// line proves no silence: it starts over. What a log shows of the time before the first look counts only if the node's clock was right when
// the pod began, see [Pod.ClockTrusted].
package stall

import (
	"maps"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

const (
	// Interval is the time between two looks at a job.
	Interval = time.Minute
	// again is after what time the same is asked again. The pace may leave a part of a look for a later one.
	again = Interval / 2
	// MaxLooks is how many logs one look at a job reads.
	MaxLooks = 128
	// often is the time between two looks at all ranks of a job that has been reported.
	often = 10 * time.Minute
	// fresh is how long the list of a job's pods is used while nothing speaks against it.
	fresh = 10 * time.Minute
	// clockError is how far the clock of a node may be off that is trusted.
	clockError = time.Minute
	// longPause is how long a job may be in a pause before it is said that nothing can be told.
	longPause = 3 * time.Hour
	// beginning is how long after its container began a log may have its first line, if none before it is missing.
	beginning = 5 * time.Minute
)

// Pod is a pod of the job that is to run.
type Pod struct {
	Name, Node, Container string
	UID                   types.UID
	// Restarts counts the restarts of the container.
	Restarts int32
	// Running: the container runs, and the pod is not being deleted.
	Running bool
	// StartedAt is when the container began, by the node's clock.
	StartedAt time.Time
	// ClockTrusted: by the node's clock the pod did not begin before it was bound to the node.
	ClockTrusted bool
}

// rank is what is known of one pod.
type rank struct {
	Pod
	seen    bool // its log was read
	matched bool
	paused  bool
	bar     bool
	hidden  bool
	// missed is when lines were found to be missed of which one may begin a pause; zero: none were, or such a pause is over.
	missed     time.Time
	step       uint64
	hasStep    bool
	at         string    // when its last line with a step was written, by the node's clock
	pausedSeen time.Time // when its pause was seen first
	pausedAt   string
	// anchor is when the last line of its log was written, by the node's clock; empty: the log is empty.
	anchor     string
	quietSince time.Time
	// first and last are when its log was first and last read, tried when that was last tried.
	first, last, tried time.Time
	// wrong is why it could not be read the last time.
	wrong string
}

// Job is the progress of one job. The zero value knows nothing.
type Job struct {
	ranks   []rank
	speaker int
	// listedAt is when the pods were listed; zero: they are to be listed again.
	listedAt time.Time
	// runningSince is since when all ranks run; zero: they do not.
	runningSince time.Time
	// waitingSince is when its pods last changed while not all of them run.
	waitingSince time.Time
	// clearAt is when the job was last known to make progress or to be quiet, and not neither of them.
	clearAt time.Time
	// pausedSince is since when each look has found it in a pause; zero: the last one has not.
	pausedSince time.Time
	// longest is the longest silence that a new step has ended, pauses not counted.
	longest time.Duration
	// reported: it is known to be stalled.
	reported bool
	// movedAfter is a time, by the reader's clock, after which a rank has printed a new step for certain.
	movedAfter time.Time
}

// NeedsPods reports whether the pods of the job are to be listed before the next look, and given to [Job.Observe].
func (j *Job) NeedsPods(s Settings, now time.Time) bool {
	if j.listedAt.IsZero() || j.runningSince.IsZero() || now.Sub(j.listedAt) >= fresh {
		return true
	}
	pause := again
	if j.reported {
		pause = often
	}
	return j.late(s, now) && now.Sub(j.listedAt) >= pause
}

// late reports whether the job has been quiet for half of the time that it may be.
func (j *Job) late(s Settings, now time.Time) bool {
	return now.Sub(j.QuietSince()) >= j.limit(s)/2
}

// limit is how long the job may be quiet.
func (j *Job) limit(s Settings) time.Duration {
	if j.matched() {
		return s.StalledAfter
	}
	return s.StartupGrace
}

func (j *Job) matched() bool {
	return slices.ContainsFunc(j.ranks, func(r rank) bool { return r.matched })
}

// QuietSince is since when no rank has made progress, as far as is known.
func (j *Job) QuietSince() time.Time {
	since := j.runningSince
	for i := range j.ranks {
		if r := &j.ranks[i]; r.seen && r.quietSince.After(since) {
			since = r.quietSince
		}
	}
	return since
}

// Observe takes the job's pods in the order of their ranks, and whether these are all that the job is to have. What was known of a
// container that has been replaced is forgotten.
func (j *Job) Observe(pods []Pod, complete bool, now time.Time) {
	first := len(j.ranks) == 0
	moved, changed := j.replaceRanks(pods)
	if j.listedAt = now; moved || changed {
		j.waitingSince = now
	}
	running, began := complete && len(pods) > 0, time.Time{}
	for _, p := range pods {
		running = running && p.Running
		began = later(began, credit(p, p.StartedAt, now))
	}
	switch {
	case !running:
		j.runningSince, j.reported = time.Time{}, false
	case j.runningSince.IsZero() && first:
		j.runningSince = began
	case j.runningSince.IsZero(), changed:
		j.runningSince, j.reported = now, false
	}
	if first || j.clearAt.IsZero() {
		j.clearAt = now
	}
}

// replaceRanks makes the pods the ranks, with what was known of those whose containers are the same. moved: one of these runs that did
// not, or the other way round, or the job was not waiting. changed: there are others.
func (j *Job) replaceRanks(pods []Pod) (moved, changed bool) {
	moved, changed = j.waitingSince.IsZero() || !j.runningSince.IsZero(), len(j.ranks) != len(pods)
	known, speaker := map[types.UID]rank{}, types.UID("")
	for i, r := range j.ranks {
		known[r.UID] = r
		if i == j.speaker {
			speaker = r.UID
		}
	}
	j.ranks, j.speaker = make([]rank, len(pods)), 0
	for i, p := range pods {
		if old, same := known[p.UID]; same && old.Restarts == p.Restarts && old.Container == p.Container {
			j.ranks[i] = old
			moved = moved || old.Running != p.Running
		} else {
			changed = true
		}
		j.ranks[i].Pod = p
		if p.UID == speaker {
			j.speaker = i
		}
	}
	return moved, changed
}

// credit is the latest time at which something can have happened at a time of the node's clock.
func credit(p Pod, at, now time.Time) time.Time {
	if at = at.Add(clockError); p.ClockTrusted && at.Before(now) {
		return at
	}
	return now
}

// Look is one log to read.
type Look struct {
	// Rank is the index of the pod in what [Job.Observe] was given.
	Rank   int
	Pod    Pod
	Anchor string
}

// Wanted are the logs to read now, the most urgent ones first.
func (j *Job) Wanted(s Settings, now time.Time) []Look {
	if j.runningSince.IsZero() {
		return nil
	}
	wanted := map[int]bool{}
	for i := range j.ranks {
		if j.ranks[i].paused {
			wanted[i] = true
		}
	}
	// The first look at a job reads one log: a job that a new leader finds is late only as long as nothing of it is known.
	if since := j.QuietSince(); j.late(s, now) && !j.ranks[j.speaker].tried.IsZero() {
		for i := range j.ranks {
			if j.ranks[i].wanted(since, j.limit(s), j.reported, now) {
				wanted[i] = true
			}
		}
	}
	delete(wanted, j.speaker)
	others := slices.Sorted(maps.Keys(wanted))
	// The one that was not tried for longest: one that never answers does not keep the others waiting.
	slices.SortStableFunc(others, func(a, b int) int { return j.ranks[a].tried.Compare(j.ranks[b].tried) })
	looks := make([]Look, 0, 1+len(others))
	for _, i := range append([]int{j.speaker}, others...) {
		if now.Sub(j.ranks[i].tried) >= again {
			looks = append(looks, Look{i, j.ranks[i].Pod, j.ranks[i].anchor})
		}
	}
	return looks[:min(len(looks), MaxLooks)]
}

// wanted reports whether a rank of a job that is quiet since a time is to be looked at: once when the job is late, and when it has been
// quiet for as long as it may be. A job that has been reported is looked at less often.
func (r *rank) wanted(since time.Time, limit time.Duration, reported bool, now time.Time) bool {
	switch {
	case reported:
		return now.Sub(r.tried) >= often
	case !r.seen || r.last.Sub(since) < limit/2:
		return true
	}
	return now.Sub(since) >= limit && !r.quietFor(since, limit)
}

// quietFor reports whether looks at a rank have proved that it was quiet since a time for some time. One look proves nothing.
func (r *rank) quietFor(since time.Time, limit time.Duration) bool {
	return r.seen && r.last.Sub(since) >= limit && r.last.Sub(r.first) >= Interval
}

// Failed notes that the log of a rank could not be read. Nothing follows about its progress.
func (j *Job) Failed(i int, why string, now time.Time) {
	r := &j.ranks[i]
	r.wrong, r.tried = why, now
	if i == j.speaker {
		j.listedAt = time.Time{} // its pod may be gone
	}
}

// Answer takes what a look at the log of a rank has shown.
func (j *Job) Answer(i int, s Sighting, now time.Time) {
	r := &j.ranks[i]
	firstLook, before, wasHidden := !r.seen, r.last, r.hidden
	progress := r.answer(s, j.movedAfter, now)
	if progress {
		if !wasHidden {
			j.movedAfter = later(j.movedAfter, before)
		}
		since := j.QuietSince()
		r.quietSince = later(before, creditText(r.Pod, s.from, now))
		j.longest = max(j.longest, r.quietSince.Sub(since))
		j.progress(i, before, now)
	} else if firstLook && r.matched && !j.ranks[j.speaker].matched {
		j.speaker = i
	}
	if s.hidden || r.paused {
		r.quietSince = now
	}
}

// answer takes what a look has shown, and reports whether the rank has printed a new step since the look before. movedAfter is
// [Job.movedAfter].
func (r *rank) answer(s Sighting, movedAfter, now time.Time) (progress bool) {
	firstLook := !r.seen
	if firstLook {
		r.seen, r.first, r.quietSince = true, now, r.quietAtFirst(s, now)
	}
	r.last, r.tried, r.wrong = now, now, ""
	r.hidden = s.hidden
	if s.last != "" || s.whole && !s.hidden { // what follows in a log that is empty now is all there
		r.anchor = s.last
	}
	switch s.kind {
	case step:
		isSame := r.matched && r.step == s.number && (s.hasNumber || r.at == s.at)
		if r.paused {
			r.quietSince = now
		}
		r.matched, r.step, r.hasStep, r.at, r.paused, r.bar = true, s.number, s.hasNumber, s.at, false, s.bar
		r.missed = time.Time{}
		return !firstLook && !isSame
	case pause:
		r.missed = time.Time{}
		// A rank has printed a new step after a pause of another one began, so that it is over. Clocks of different nodes are not compared:
		// the step is later than a look, and the pause earlier than its own node's clock allows.
		isOver := movedAfter.After(creditText(r.Pod, s.at, now))
		if s.at != r.pausedAt && !isOver {
			r.paused, r.pausedSeen = true, now
		}
		r.pausedAt = s.at
	case nothing:
		if r.mayHideAPause(s, firstLook) {
			r.missed = now
		}
		if !firstLook && !s.contiguous {
			r.quietSince = later(r.quietSince, creditText(r.Pod, s.first, now))
		}
	}
	return false
}

// quietAtFirst is since when a rank is known to be quiet after the first look at it.
func (r *rank) quietAtFirst(s Sighting, now time.Time) time.Time {
	switch {
	case s.hidden:
		return now
	case s.Found():
		return creditText(r.Pod, s.from, now)
	case s.first != "":
		return creditText(r.Pod, s.first, now) // all of these lines say nothing
	}
	return now // it may have been rotated just now
}

func creditText(p Pod, at string, now time.Time) time.Time {
	t, err := time.Parse(time.RFC3339Nano, at)
	if err != nil {
		return now
	}
	return credit(p, t, now)
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// mayHideAPause reports whether lines were missed in a look that has found no line that matches. The first look at a log misses none if its
// first line is of the time at which the container began.
func (r *rank) mayHideAPause(s Sighting, firstLook bool) bool {
	if s.hidden || s.Missed() || !firstLook {
		return s.hidden || !s.contiguous
	}
	first, err := time.Parse(time.RFC3339Nano, s.first)
	return err == nil && first.After(r.StartedAt.Add(beginning))
}

// progress notes that a rank has printed a new step since the look before. That ends the pauses that were known then.
func (j *Job) progress(i int, before, now time.Time) {
	for k := range j.ranks {
		if !j.ranks[k].pausedSeen.After(before) {
			j.ranks[k].paused = false
		}
		if !j.ranks[k].missed.After(before) {
			j.ranks[k].missed = time.Time{}
		}
	}
	if j.ranks[i].quietSince.After(j.ranks[j.speaker].quietSince) {
		j.speaker = i
	}
	j.reported, j.clearAt = false, now
}
