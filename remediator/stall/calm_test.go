package stall

import (
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
