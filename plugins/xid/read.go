package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// snapshot is all that the judge needs.
type snapshot struct {
	BootID string `json:"bootID"`
	// Now is the kernel's monotonic clock at the look.
	Now time.Duration `json:"now"`
	// Gap says that records of this boot were overwritten before they could be read.
	Gap    bool        `json:"gap"`
	Events []xid.Event `json:"events"`
	// Latched is what stands against each GPU; it follows from Events and Now and is there for people.
	Latched []xid.Fault `json:"latched"`
	// Unread says why the kernel log could not be read, Unshared why the state could not be kept.
	Unread   string `json:"unread,omitempty"`
	Unshared string `json:"unshared,omitempty"`
}

// reader follows the kernel log from look to look of one run and merges what it finds into the state of all runs.
type reader struct {
	plugin        *npd.Plugin
	kmsg, procfs  string
	allowInjected bool

	store *npd.Store[xid.State]
	log   *kmsg.Reader
	// pending are events that were read but are not in the state yet.
	pending []seen
	// lost is how much of the log's count of lost records is in the state.
	lost uint64
}

// seen is an event and the sequence number of its record.
type seen struct {
	seq   uint64
	event xid.Event
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	now, err := monotonic()
	if err != nil {
		return snapshot{}, err
	}
	if err := r.open(); err != nil {
		return snapshot{}, err
	}
	logErr := r.follow(ctx)
	state, storeErr := r.merge(func(*xid.State) bool { return false })
	s := snapshot{
		BootID: r.store.BootID, Now: now, Gap: state.Lost > 0,
		Events: append([]xid.Event{}, state.Events...), Latched: append([]xid.Fault{}, xid.Judge(state.Events, now)...),
	}
	if logErr != nil {
		s.Unread = logErr.Error()
	}
	if storeErr != nil {
		s.Unshared = storeErr.Error()
	}
	return s, nil
}

// clear reads the log to its end first, so that it forgets all that happened before it.
func (r *reader) clear(ctx context.Context, subject string) (cleared []string, err error) {
	now, err := monotonic()
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
		cleared = s.Clear(subject, now)
		return true
	})
	return cleared, err
}

// wait returns when the driver has written something that matters.
func (r *reader) wait(ctx context.Context) error {
	if r.log == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for len(r.pending) == 0 {
		if err := r.log.Wait(ctx); err != nil {
			return err
		}
		if err := r.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}

// open binds the state to this boot.
func (r *reader) open() error {
	if r.store != nil {
		return nil
	}
	bootID, err := os.ReadFile(filepath.Join(r.procfs, "sys/kernel/random/boot_id"))
	if err != nil {
		return err
	}
	r.store = &npd.Store[xid.State]{
		Path:   filepath.Join(r.plugin.StateDir, "xid.json"),
		BootID: strings.TrimSpace(string(bootID)),
	}
	return nil
}

// follow reads the log to its end, from where the runs before this one got to.
func (r *reader) follow(ctx context.Context) error {
	if r.log == nil {
		state, _ := r.merge(func(s *xid.State) bool { return !r.allowInjected && s.DropInjected() })
		log, err := kmsg.Open(r.kmsg, state.Next)
		if err != nil {
			return err
		}
		r.log = log
	}
	return r.drain(ctx)
}

// drain parses what the kernel log holds now.
func (r *reader) drain(ctx context.Context) error {
	now, err := monotonic()
	if err != nil {
		return err
	}
	wall := time.Now()
	for ctx.Err() == nil {
		rec, err := r.log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, kmsg.ErrMalformed):
			slog.Warn("kernel log", "err", err)
			continue
		case err != nil:
			return err
		}
		injected := rec.Facility != 0
		if injected && !r.allowInjected {
			continue
		}
		if e, ok := xid.Parse(rec.Body); ok {
			e.Injected, e.At = injected, rec.Time
			e.Time = wall.Add(rec.Time - now).Round(time.Millisecond)
			r.pending = append(r.pending, seen{rec.Seq, e})
		}
	}
	return nil
}

// merge brings what was read into the state that all runs share. Another run may have got further: what it has
// merged is not merged again.
func (r *reader) merge(change func(*xid.State) (changed bool)) (xid.State, error) {
	state, err := r.store.Update(func(s *xid.State) bool {
		changed := false
		for _, p := range r.pending {
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
		return change(s) || changed
	})
	r.pending = nil
	return state, err
}

// monotonic is the clock of kernel log records. It is CLOCK_MONOTONIC, which starts at 0 with the boot.
func monotonic() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
