package xid

import (
	"slices"
	"time"
)

// Reading is how far another log has been read for what the ring had lost before the first run.
type Reading struct {
	// Until is the time of the oldest record that the ring still had.
	Until time.Duration `json:"until"`
	// Lost is how many records the ring had lost.
	Lost uint64 `json:"lost"`
	// Cursor is the other log's name for the last record that was read; empty if its records have none.
	Cursor string `json:"cursor,omitempty"`
	// Read counts the records that were read.
	Read int `json:"read,omitempty"`
	// Whole is true if the other log reaches back to the boot.
	Whole bool `json:"whole,omitempty"`
	// Joiner has the first part of a message of several records.
	Joiner Joiner `json:"joiner,omitzero"`
	// Cleared is what was cleared since: what happened before that may still come.
	Cleared []Clearing `json:"cleared,omitempty"`
}

// Clearing is one call of [State.Clear].
type Clearing struct {
	Subject  string `json:"subject,omitempty"`
	Hardware bool   `json:"hardware,omitempty"`
}

// maxCleared bounds the state. After more of them nothing that was before them is reported.
const maxCleared = 32

// Begin notes that the ring had lost records before the oldest one that it had, unless they were looked for already. It reports whether the
// state has changed.
func (s *State) Begin(until time.Duration) bool {
	if s.Journal || s.Reading != nil {
		return false
	}
	s.Reading = &Reading{Until: until, Lost: s.Lost}
	return true
}

// ReadOn takes in what was found in the other log up to r. done says that r is its end, or reaches to what the ring has.
func (s *State) ReadOn(r Reading, found State, done bool) {
	if s.Reading == nil {
		return
	}
	r.Cleared = s.Reading.Cleared
	for _, c := range r.Cleared {
		found.Clear(c.Subject, c.Hardware, 0)
	}
	s.precede(r.Until, found)
	s.Reading = &r
	if !done {
		return
	}
	s.Reading, s.Journal = nil, true
	if r.Whole {
		s.Lost -= min(r.Lost, s.Lost)
	}
}

// precede takes in what another log had from before a time.
func (s *State) precede(until time.Duration, older State) {
	i := slices.IndexFunc(s.Events, func(e Event) bool { return e.At >= until })
	if i < 0 {
		i = len(s.Events)
	}
	later := slices.Clone(s.Events[i:])
	s.Events = s.Events[:i]
	for _, e := range older.Events {
		s.add(e)
	}
	s.Events = append(s.Events, later...)
	s.Dropped += older.Dropped
	s.doubt(older.Unread)
	s.bound()
}

// Doubt notes a line that has words of the driver and is not understood.
func (s *State) Doubt(line string) {
	const longest = 120
	if HasDriverWords(line) {
		s.doubt(line[:min(len(line), longest)])
	}
}

// doubt keeps the first one.
func (s *State) doubt(line string) {
	if s.Unread == "" {
		s.Unread = line
	}
}
