package stall

import (
	"strings"
	"testing"
	"time"
)

// A new leader finds jobs that have run for days. That they print steps shows one log of each.
func TestANewLeaderReadsOneLogOfAJobThatRuns(t *testing.T) {
	w := newWorld(t, 64)
	w.steps(0, 90)
	w.job, w.reads = Job{}, 0
	w.steps(90, 10)
	if w.reads != 10 {
		t.Errorf("%d reads in 10 looks", w.reads)
	}
	// If rank 0 cannot be read, or has stopped, all of them are, from the second look on.
	for name, stops := range map[string]func(){"dead": func() { w.nodes[0].dead = true }, "silent": func() { w.until(10 * time.Minute) }} {
		stops()
		w.job, w.reads = Job{}, 0
		w.look()
		if w.reads != 1 {
			t.Errorf("%s: %d reads in the first look", name, w.reads)
		}
		w.now = w.now.Add(time.Minute)
		w.look()
		if w.reads != 1+64 {
			t.Errorf("%s: %d reads in two looks", name, w.reads)
		}
	}
}

// How long a job is silent as a rule is its own matter.
func TestAJobIsOverdueWhenItIsQuietForLongerThanEverBefore(t *testing.T) {
	for _, c := range []struct {
		name         string
		every, after time.Duration // between two steps; from the last one on
	}{{"a step in each minute", time.Minute, 3 * time.Minute}, {"a step in 8 minutes", 8 * time.Minute, 10 * time.Minute}} {
		w := newWorld(t, 4)
		for n := range 6 {
			w.print("step " + string(rune('1'+n)))
			for end := w.now.Add(c.every); w.now.Before(end); {
				if v := w.look(); n > 0 && v.Overdue {
					t.Fatalf("%s: overdue between two steps: %+v", c.name, v)
				}
				w.now = w.now.Add(time.Minute)
			}
		}
		last, at := w.now.Add(-c.every), time.Time{}
		for w.look(); w.v.State != Stalled; w.look() {
			if w.v.Overdue && at.IsZero() {
				at = w.now
				if w.v.Since.Sub(last) > time.Minute {
					t.Errorf("%s: since %s, and the last step was at %s", c.name, w.v.Since, last)
				}
			}
			w.now = w.now.Add(time.Minute)
		}
		if took := at.Sub(last); took < c.every+time.Minute || took > c.after+time.Minute || w.v.Overdue {
			t.Errorf("%s: overdue after %s", c.name, took)
		}
	}
}

// What is not known to be silence is none that jobs share.
func TestWhatIsNotOverdue(t *testing.T) {
	for name, then := range map[string]func(w *world){
		"a pause":                   func(w *world) { w.print("saving checkpoint", 0) },
		"a log that cannot be read": func(w *world) { w.nodes[0].dead, w.nodes[1].dead = true, true },
		"a log with long lines":     func(w *world) { w.print(strings.Repeat("x", 200<<10)) },
		"pods that do not run":      func(w *world) { w.nodes[1].pod.Running = false; w.list(true) },
		"a start without a step":    func(w *world) { w.job = Job{}; w.nodes[0].lines, w.nodes[1].lines = nil, nil },
	} {
		w := newWorld(t, 2)
		w.steps(0, 10)
		then(w)
		for range 12 {
			w.now = w.now.Add(time.Minute)
			if v := w.look(); v.Overdue {
				t.Errorf("%s: %+v", name, v)
			}
		}
	}
}

// Where all jobs of a namespace fall silent at once, its pace leaves a few reads for each look, and the rest of it is taken ten seconds later.
// What was read just now is not read again before that, or nothing else would ever be.
func TestALookIsTakenInParts(t *testing.T) {
	w := newWorld(t, 16)
	w.steps(0, 10)
	stopped, lists, read := w.now, 0, map[int]int{}
	for ; w.v.State != Stalled && w.now.Before(stopped.Add(time.Hour)); w.now = w.now.Add(10 * time.Second) {
		if w.job.NeedsPods(w.s, w.now) {
			lists++
			w.list(true)
		}
		for _, l := range w.job.Wanted(w.s, w.now)[:min(1, len(w.job.Wanted(w.s, w.now)))] {
			read[l.Rank]++
			w.job.Answer(l.Rank, Read(w.nodes[l.Rank].log(asked), asked, w.s, l.Anchor), w.now)
		}
		w.v = w.job.Judge(w.s, w.now)
	}
	took := w.now.Sub(stopped)
	if w.v.State != Stalled || took > 15*time.Minute+16*20*time.Second {
		t.Errorf("%s after %s: %v", w.v.State, took, read)
	}
	if most := int(took / again); read[0] > most+1 || lists > most {
		t.Errorf("%d reads of rank 0 and %d lists in %s", read[0], lists, took)
	}
}

// A look just before the time is over leaves no look that finds that all was read just now.
func TestTheLastLookBeforeTheTimeIsOverDelaysNothing(t *testing.T) {
	w := newWorld(t, 2)
	w.steps(0, 5)
	w.until(14 * time.Minute)
	w.now = w.job.QuietSince().Add(w.s.StalledAfter - 10*time.Second)
	if v := w.look(); v.State != Running || v.Next != again {
		t.Fatalf("%+v", v)
	}
	w.now = w.now.Add(w.v.Next)
	if v := w.look(); v.State != Stalled {
		t.Errorf("%+v", v)
	}
}

func TestThePodsOfAReportedJobAreListedLessOften(t *testing.T) {
	w := newWorld(t, 4)
	w.steps(0, 5)
	w.until(time.Hour, Stalled)
	w.lists = 0
	if w.until(time.Hour); w.v.State != Stalled || w.lists > 7 {
		t.Errorf("%s, %d lists in an hour", w.v.State, w.lists)
	}
}
