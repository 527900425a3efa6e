package xid

import (
	"slices"
	"strings"
	"time"
)

const (
	// burst is the silence that ends a burst of equal lines (NVIDIA Fleet Intelligence uses the same 3 minutes).
	burst = 3 * time.Minute
	// maxEvents bounds the state; the weakest and oldest go first.
	maxEvents = 512
)

// State is what a plugin keeps of one boot's kernel log.
type State struct {
	// Next is the sequence number of the first record that has not been read.
	Next uint64 `json:"next"`
	// Lost counts records that were overwritten before they could be read.
	Lost uint64 `json:"lost,omitempty"`
	// Dropped counts events that did not fit.
	Dropped int     `json:"dropped,omitempty"`
	Events  []Event `json:"events,omitempty"`
}

// Add takes one event in. A line that repeats a recent one only counts: a crashing application can print thousands.
func (s *State) Add(e Event) {
	e.Last, e.Count = e.At, 1
	for i := len(s.Events) - 1; i >= 0; i-- {
		o := &s.Events[i]
		// After a clearing event the same line is news.
		if o.Kind == KindDriver || o.clears() && o.Device == e.Device {
			break
		}
		if o.same(e) && e.At-o.Last <= e.quiet() {
			o.Last = e.At
			o.Count++
			return
		}
	}
	s.Events = append(s.Events, e)
	if len(s.Events) > maxEvents {
		s.dropWeakest()
	}
}

// quiet is the silence after which an equal line is an event of its own. A line that is judged by its neighbours must
// not grow over those of another one.
func (e Event) quiet() time.Duration {
	if entry, _ := Lookup(e.Code); entry.Rule == "settle" {
		return settle
	}
	return burst
}

// same tells whether two lines say the same thing, apart from their words: those hold addresses and counters.
func (e Event) same(o Event) bool {
	action := e.Action == o.Action || e.Action != nil && o.Action != nil && *e.Action == *o.Action
	return action && e.Kind == o.Kind && e.Code == o.Code && e.Device == o.Device && e.MIG == o.MIG && e.Process == o.Process &&
		e.Cause == o.Cause && e.Unit == o.Unit && e.Injected == o.Injected
}

func (s *State) dropWeakest() {
	weakest := 0
	for i, e := range s.Events {
		if rank(e) < rank(s.Events[weakest]) {
			weakest = i
		}
	}
	s.Events = slices.Delete(s.Events, weakest, weakest+1)
	s.Dropped++
}

// rank orders events by what their loss would cost: what clears must not outlive what it cleared, but not go first.
func rank(e Event) int {
	if e.Kind == KindDriver || e.clears() {
		return int(^uint(0) >> 1)
	}
	repair, _ := classify([]Event{e}, 0, 0)
	return int(repair)
}

// Clear forgets the events of the GPUs whose subject contains the text, "" for all, and returns those subjects that a
// fault stood against.
func (s *State) Clear(subject string, now time.Duration) []string {
	matches := func(device string) bool { return strings.Contains("gpu "+device, subject) }
	var cleared []string
	for _, f := range Judge(s.Events, now) {
		if matches(f.Device) {
			cleared = append(cleared, f.Finding().Subject)
		}
	}
	s.Events = slices.DeleteFunc(s.Events, func(e Event) bool { return e.Kind != KindDriver && matches(e.Device) })
	return cleared
}

// DropInjected forgets what user space wrote and tells whether there was any.
func (s *State) DropInjected() bool {
	n := len(s.Events)
	s.Events = slices.DeleteFunc(s.Events, func(e Event) bool { return e.Injected })
	return len(s.Events) < n
}
