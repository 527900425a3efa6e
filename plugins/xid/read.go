package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// snapshot is all that the judge needs.
type snapshot struct {
	// BootID is empty for a plain text log.
	BootID string `json:"bootID"`
	// Now is the clock of the events at the look.
	Now time.Duration `json:"now"`
	// Gap reports that records of this boot were overwritten before they could be read.
	Gap bool `json:"gap"`
	// Dropped counts events that did not fit.
	Dropped int         `json:"dropped,omitempty"`
	Events  []xid.Event `json:"events"`
	// Latched is what stands against each subject; it follows from the rest and is there for people.
	Latched   []xid.Fault        `json:"latched"`
	GPUs      map[string]xid.GPU `json:"gpus,omitempty"`
	Overrides xid.Overrides      `json:"overrides,omitempty"`
	// Recovered is what the ecc check saw of GPUs that needed a reset and then needed none.
	Recovered map[string]time.Duration `json:"recovered,omitempty"`
	// Storms is -storms.
	Storms bool `json:"storms,omitempty"`
	// Unread is why the kernel log could not be read, Unshared why the state could not be kept.
	Unread   string `json:"unread,omitempty"`
	Unshared string `json:"unshared,omitempty"`
}

// complete adds what follows from the state and from what else is known.
func (s snapshot) complete(state xid.State) snapshot {
	s.Gap, s.Dropped, s.Events = state.Lost > 0, state.Dropped, state.Events
	s.Events = append([]xid.Event{}, s.asCase().Classified()...)
	s.Latched = append([]xid.Fault{}, s.faults()...)
	state.Remember(s.Latched)
	return s
}

func (s snapshot) asCase() xid.Case {
	return xid.Case{Events: s.Events, Now: s.Now, GPUs: s.GPUs, Overrides: s.Overrides, Recovered: s.Recovered, Storms: s.Storms}
}

func (s snapshot) faults() []xid.Fault { return s.asCase().Judge() }

// reader follows the kernel log from look to look of one run and merges what it finds into the state of all runs.
type reader struct {
	plugin                  *npd.Plugin
	kmsg, text, procfs      string
	journalctl, journalDir  string
	overridesFile           string
	hardware, allowInjected bool
	storms                  bool
	journal                 bool

	store  *npd.Store[xid.State]
	notes  *npd.Store[gpu.Recoveries]
	log    *kmsg.Reader
	oldest time.Duration // of the first record that the ring still had
	// journalErr is why this run cannot read the journal.
	journalErr error
	joiner     xid.Joiner
	pending    pending
	// list is the driver's list of GPUs, if it was asked for.
	list   map[string]xid.GPU
	listed bool
	// settled is how long it takes until no line waits for those beside it, 0 if none does.
	settled time.Duration
	// lost is how much of the log's count of lost records is in the state.
	lost uint64
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	if r.text != "" {
		return r.readText(ctx)
	}
	overrides, err := r.overrides()
	if err != nil {
		return snapshot{}, err
	}
	if err := r.open(); err != nil {
		return snapshot{}, err
	}
	// What takes longer is answered from what was read until then.
	reading, cancel := context.WithTimeout(ctx, r.plugin.Timeout*3/4)
	defer cancel()
	logErr := r.follow(reading)
	state, storeErr := r.merge(nil)
	if r.journal && state.Reading != nil {
		logErr = cmp.Or(logErr, r.readJournal(reading))
		state, storeErr = r.merge(nil)
	}
	// After the log was read, so that nothing in it is from the future.
	now, err := npd.Uptime()
	if err != nil {
		return snapshot{}, err
	}
	var list map[string]xid.GPU
	if len(state.Events) > 0 {
		list = r.driverList(ctx)
	}
	if !r.allowInjected {
		// A drill beside this run shares the state.
		state.Events = slices.Clone(state.Events)
		state.DropInjected()
	}
	s := snapshot{
		BootID: r.store.BootID, Now: now, GPUs: gpus(state.UUIDs, list), Overrides: overrides, Recovered: r.recovered(),
		Storms: r.storms,
	}.complete(state)
	r.settled = s.asCase().Settled()
	switch {
	case logErr != nil:
		s.Unread = logErr.Error()
	case state.Unread != "" && !r.hardware:
		s.Unread = fmt.Sprintf("a line has words of the driver and is not understood: %q", state.Unread)
	}
	if storeErr != nil {
		s.Unshared = storeErr.Error()
	}
	return s, nil
}

// recovered is when each GPU was last seen to need no reset any more, as the ecc check noted it. Without that check, or
// when its notes cannot be read, nothing has recovered.
func (r *reader) recovered() map[string]time.Duration {
	known, ok := r.notes.Unchanged()
	if !ok {
		if _, err := os.Stat(r.notes.Path); err != nil {
			return nil
		}
		var err error
		known, err = r.notes.Update(func(*gpu.Recoveries) bool { return false })
		if err != nil {
			return nil
		}
	}
	recovered := map[string]time.Duration{}
	for device, note := range known {
		if note.Recovered > 0 {
			recovered[device] = note.Recovered
		}
	}
	return recovered
}

// clear reads the log to its end first, so that it forgets all that happened before it.
func (r *reader) clear(ctx context.Context, subject string) (cleared []string, err error) {
	if r.text != "" {
		return nil, errors.New("a plain text log has nothing to clear")
	}
	now, err := npd.Uptime()
	if err != nil {
		return nil, err
	}
	if err := r.open(); err != nil {
		return nil, err
	}
	if err := r.follow(ctx); err != nil {
		return nil, err
	}
	_, err = r.merge(func(s *xid.State) bool {
		cleared = s.Clear(subject, r.hardware, now)
		return true
	})
	return cleared, err
}

func (r *reader) overrides() (xid.Overrides, error) {
	if r.overridesFile == "" {
		return nil, nil
	}
	data, err := os.ReadFile(r.overridesFile)
	if err != nil {
		return nil, err
	}
	overrides, err := xid.ParseOverrides(data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", r.overridesFile, err)
	}
	return overrides, nil
}

// open binds the state to this boot.
func (r *reader) open() (err error) {
	if r.store != nil {
		return nil
	}
	if r.notes, err = npd.BootStore[gpu.Recoveries](r.procfs, r.plugin.StateDir, gpu.RecoveryFile); err != nil {
		return err
	}
	r.store, err = npd.BootStore[xid.State](r.procfs, r.plugin.StateDir, "xid")
	if err == nil {
		r.store.Carry = xid.State.NextBoot
	}
	return err
}

// merge brings what was read into the state that all runs share, and then the change if it is not nil. Another run may
// have got further: what it has merged is not merged again.
func (r *reader) merge(change func(*xid.State) (changed bool)) (xid.State, error) {
	if state, ok := r.store.Unchanged(); ok && change == nil && !r.news(state) {
		return state, nil
	}
	state, err := r.store.Update(func(s *xid.State) bool {
		changed := false
		for gpu, uuid := range r.pending.uuids {
			changed = s.Identify(gpu, uuid) || changed
		}
		for _, p := range r.pending.events {
			if p.seq >= s.Next {
				s.Add(p.event)
				changed = true
			}
		}
		if r.log != nil {
			if lost := r.log.Lost(); lost > r.lost {
				s.Lost += lost - r.lost
				r.lost, changed = lost, true
			}
			if next := r.log.Seq(); next > s.Next {
				s.Next, changed = next, true
			}
		}
		if r.pending.unread != "" && s.Unread == "" {
			s.Doubt(r.pending.unread)
			changed = changed || s.Unread != ""
		}
		if change != nil {
			changed = change(s) || changed
		}
		return changed
	})
	r.pending = pending{}
	return state, err
}

// news reports whether anything was read that the state does not have. That the log got longer by lines of no interest
// can wait for the next write: whoever starts from there reads them again.
func (r *reader) news(state xid.State) bool {
	const mark = 256
	return len(r.pending.events) > 0 || len(r.pending.uuids) > 0 || r.pending.unread != "" ||
		r.log != nil && (r.log.Lost() > r.lost || r.log.Seq() > state.Next+mark)
}
