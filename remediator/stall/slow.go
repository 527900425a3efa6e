package stall

import (
	"slices"
	"time"
)

const (
	// pieceTime is how long the steps that are measured as one piece take together, at least.
	pieceTime = Interval / 2
	// window is of how many of the last pieces the median is compared with that of the best hour, and hourTime how long the pieces of an hour
	// take together, at least.
	window, hourTime = 15, time.Hour
)

// stepSpan is the time that steps took, by the lines of one answer. Each line counts as the end of the steps since the one before it, so
// lines for every ten steps, and lines that were written late and together, add up to the right time.
type stepSpan struct {
	took  time.Duration
	steps float64
	// whole: it is all the time from the last step that the look before has shown to the last one of this.
	whole bool
}

// meter adds up the time between the lines of an answer, the last line first. The time between two lines is left out if one of them is no
// step, if the steps have begun anew, or if the clock was set back.
type meter struct {
	stepSpan
	// on: more lines are to be taken. broken: some time was left out.
	on, broken bool
	// hasSteps: a line was a step. isStep, number and at are of the line that was taken last.
	hasSteps, isStep bool
	number           uint64
	at               time.Time
}

// line takes a line that matches. old: the look before has read it.
func (m *meter) line(one *Sighting, at string, old bool) {
	t, err := time.Parse(time.RFC3339Nano, at)
	isStep := one.kind == step && !one.bar && err == nil
	switch {
	case isStep && m.isStep && one.number <= m.number && !t.After(m.at):
		m.took += m.at.Sub(t)
		m.steps += float64(m.number - one.number)
	case m.hasSteps:
		m.broken = true
	}
	m.isStep, m.number, m.at, m.hasSteps = isStep, one.number, t, m.hasSteps || isStep
	if old {
		m.on, m.whole = false, !m.broken
	}
}

// stepTimes is how long the steps of these pods take.
type stepTimes struct {
	// after is a time, by the reader's clock, after which the last step was printed; zero: none is known.
	after time.Time
	// took and steps are those of the piece that is not full yet.
	took  time.Duration
	steps float64
	// fresh is the step time of the last piece, in seconds; 0: it was asked for already.
	fresh float64
	// recent are the step times of the last pieces, hour those since the last hour, which took hourTook. best is that of the best hour.
	recent, hour []float64
	hourTook     time.Duration
	best         float64
	// slow: it was reported, and has not recovered.
	slow bool
}

// take takes what a look at the log of a rank has shown after another look. Where the answer does not show all of the steps since then, it has
// to show most of that time: of lines that a rank has held back and written together the last ones show many steps and no time. A span that
// is longer than the reader's clock allows is none: the node's clock was set.
func (t *stepTimes) take(span stepSpan, before, now time.Time, counts, progress bool) {
	if counts && !t.after.IsZero() && span.took-Interval <= now.Sub(t.after) && (span.whole || 4*span.took >= 3*now.Sub(before)) {
		t.add(span)
	}
	if progress {
		t.after = before
	}
}

func (t *stepTimes) add(span stepSpan) {
	t.took += span.took
	t.steps += span.steps
	if t.took < pieceTime || t.steps == 0 {
		return
	}
	t.fresh = t.took.Seconds() / t.steps
	t.recent = append(t.recent, t.fresh)
	t.recent = t.recent[max(0, len(t.recent)-window):]
	t.hour = append(t.hour, t.fresh)
	t.hourTook += t.took
	t.took, t.steps = 0, 0
	if t.hourTook < hourTime || len(t.hour) < window {
		return
	}
	if median := medianOf(t.hour); t.best == 0 || median < t.best {
		t.best = median
	}
	t.hour, t.hourTook = t.hour[:0], 0
}

func medianOf(all []float64) float64 {
	return slices.Sorted(slices.Values(all))[len(all)/2]
}

// Slow are the medians of the step times of a job that has become slow, in seconds: of the last pieces, and of its best hour.
type Slow struct{ Now, Best float64 }

// StepTime returns the mean time of the steps in the last piece, in seconds, once; 0: there is no new one. slow is set when the steps have
// become slow, and again only after they have recovered from half of that.
func (j *Job) StepTime(s Settings) (seconds float64, slow *Slow) {
	t := &j.steps
	seconds, t.fresh = t.fresh, 0
	if t.best == 0 {
		return seconds, nil
	}
	now := medianOf(t.recent)
	switch {
	case !t.slow && now >= s.SlowAfter*t.best:
		t.slow = true
		return seconds, &Slow{now, t.best}
	case now < (1+s.SlowAfter)/2*t.best:
		t.slow = false
	}
	return seconds, nil
}
