package xid

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

const (
	// burst is the silence that ends a burst of equal lines (NVIDIA Fleet Intelligence uses the same 3 minutes).
	burst = 3 * time.Minute
	// maxEvents bounds the state; the weakest and oldest go first, several at once: to find them, each event is classified.
	maxEvents   = 512
	droppedOnce = 64
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
	// UUIDs are the identities of the GPUs as the driver reports them, by Device.
	UUIDs map[string]string `json:"uuids,omitempty"`
	// Journal is true if the journal has been read for the records that the ring had lost before the first run.
	Journal bool `json:"journal,omitempty"`
	// Reading is how far that has got, if it is not at the end.
	Reading *Reading `json:"reading,omitempty"`
	// Unread is the start of a line that has words of the driver and could not be understood.
	Unread string `json:"unread,omitempty"`
	// History is what earlier boots showed, the latest first. It outlives a boot only where the state directory does.
	History []Past `json:"history,omitempty"`
}

// Past is a fault of earlier boots.
type Past struct {
	Subject string `json:"subject"`
	Kind    Kind   `json:"kind"`
	Code    int    `json:"code,omitempty"`
	Boots   int    `json:"boots"`
}

const (
	maxHistory = 64
	// maxUUIDs is more than any node has GPUs.
	maxUUIDs = 64
)

// NextBoot is what a new boot starts with: no events, but the memory of what was seen. Only what needed a repair is
// worth remembering.
func (s State) NextBoot() State {
	var next State
	s.Events = slices.Clone(s.Events)
	s.DropInjected()
	for _, f := range (Case{Events: s.Events}).Judge() {
		if f.Repair >= conditions.Inspect {
			next.History = append(next.History, Past{f.Subject, f.Kind, f.Code, 1 + s.seenBefore(f)})
		}
	}
	for _, p := range s.History {
		if !slices.ContainsFunc(next.History, p.same) {
			next.History = append(next.History, p)
		}
	}
	next.History = next.History[:min(len(next.History), maxHistory)]
	return next
}

func (p Past) same(o Past) bool {
	return p.Subject == o.Subject && p.Kind == o.Kind && p.Code == o.Code
}

func (s State) seenBefore(f Fault) int {
	i := slices.IndexFunc(s.History, Past{Subject: f.Subject, Kind: f.Kind, Code: f.Code}.same)
	if i < 0 {
		return 0
	}
	return s.History[i].Boots
}

// Remember fills in how many boots, this one included, have shown each fault. Faults of one boot only stay at 0.
func (s State) Remember(faults []Fault) {
	for i, f := range faults {
		if before := s.seenBefore(f); before > 0 {
			faults[i].SeenBoots = before + 1
		}
	}
}

// Identify notes a GPU's UUID and reports whether it is news.
func (s *State) Identify(gpu, uuid string) bool {
	if s.UUIDs[gpu] == uuid || s.UUIDs[gpu] == "" && len(s.UUIDs) >= maxUUIDs {
		return false
	}
	if s.UUIDs == nil {
		s.UUIDs = map[string]string{}
	}
	s.UUIDs[gpu] = uuid
	return true
}

// Add takes one event in. A line that repeats a recent one only counts: a crashing application can print thousands.
func (s *State) Add(e Event) {
	e.Last, e.SeenLast, e.Count = e.At, e.Seen, 1
	if e.Kind == KindHardware {
		e.Rate = Rate{From: e.At, Lines: 1, Most: 1}
	}
	s.add(e)
}

// add takes in an event or a burst of equal ones.
func (s *State) add(e Event) {
	// What a clearing event clears, a later one clears too: only the latest is needed.
	if e.Kind == KindDriver || e.clears() {
		s.Events = slices.DeleteFunc(s.Events, func(o Event) bool {
			return e.Kind == KindDriver && o.Kind == KindDriver || e.clears() && o.clears() && o.Device == e.Device
		})
	}
	for i := len(s.Events) - 1; i >= 0; i-- {
		o := &s.Events[i]
		// After a clearing event the same line is news.
		if o.Kind == KindDriver || o.Device == e.Device && o.clears() {
			break
		}
		if o.same(&e) && e.At-o.Last <= e.quiet() {
			o.Last, o.SeenLast = e.Last, e.SeenLast
			o.Count += e.Count
			o.Rate.add(e.At, e.Rate)
			return
		}
	}
	s.Events = append(s.Events, e)
	s.bound()
}

// quiet is the silence after which an equal line is an event of its own. A line that is judged by its neighbours must
// not grow over those of another one.
func (e Event) quiet() time.Duration {
	if entry, _ := Lookup(e.Code); entry.Rule == "settle" {
		return settle
	}
	if e.Kind == KindHardware {
		return rateWindow
	}
	return burst
}

// same reports whether two lines mean the same. It ignores texts that are the driver's, which contain addresses and counters.
func (e *Event) same(o *Event) bool {
	return e.Kind == o.Kind && e.Code == o.Code && e.Device == o.Device && e.MIG == o.MIG && e.Cause == o.Cause &&
		e.Detail == o.Detail && e.Injected == o.Injected && (e.Text == o.Text || e.Kind != KindHardware && e.Kind != KindUncoded)
}

// bound drops the weakest events if there are too many.
func (s *State) bound() {
	if len(s.Events) <= maxEvents {
		return
	}
	ranks, weakest := make([]int, len(s.Events)), make([]int, len(s.Events))
	for i, e := range s.Events {
		ranks[i], weakest[i] = rank(e), i
	}
	slices.SortStableFunc(weakest, func(a, b int) int { return cmp.Compare(ranks[a], ranks[b]) })
	weakest = weakest[:len(s.Events)-maxEvents+droppedOnce-1]
	slices.Sort(weakest)
	kept := s.Events[:0]
	for i, e := range s.Events {
		if _, dropped := slices.BinarySearch(weakest, i); !dropped {
			kept = append(kept, e)
		}
	}
	clear(s.Events[len(kept):])
	s.Events = kept
	s.Dropped += len(weakest)
}

// rank orders events by what their loss would cost: what clears must not outlive what it cleared, but not go first.
func rank(e Event) int {
	if e.Kind == KindDriver || e.clears() {
		return math.MaxInt
	}
	repair, _ := Case{Events: []Event{e}}.classify(0, 0)
	return int(repair)
}

// Clear forgets the events of the subjects that contain the text, "" for all, and returns those that a fault stood
// against. It clears either the hardware lines or all others.
func (s *State) Clear(text string, hardware bool, now time.Duration) []string {
	matches := func(kind Kind, subject string) bool {
		return (kind == KindHardware) == hardware && strings.Contains(subject, text)
	}
	if r := s.Reading; r != nil {
		c := Clearing{text, hardware}
		if len(r.Cleared) >= maxCleared {
			c.Subject = ""
		}
		if !slices.Contains(r.Cleared, c) {
			r.Cleared = append(r.Cleared, c)
		}
	}
	if text == "" && !hardware {
		s.Unread = ""
	}
	var cleared []string
	for _, f := range (Case{Events: s.Events, Now: now}).Judge() {
		if matches(f.Kind, f.Subject) {
			cleared = append(cleared, f.Subject)
		}
	}
	s.Events = slices.DeleteFunc(s.Events, func(e Event) bool {
		return e.Kind != KindDriver && e.Kind != KindUnload && matches(e.Kind, e.subject())
	})
	return cleared
}

// DropInjected forgets what user space wrote and reports whether there was any.
func (s *State) DropInjected() bool {
	n := len(s.Events)
	s.Events = slices.DeleteFunc(s.Events, func(e Event) bool { return e.Injected })
	return len(s.Events) < n
}
