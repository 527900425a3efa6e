package main

import (
	"cmp"
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// pending is what was read but is not in the state yet.
type pending struct {
	events []seen
	uuids  map[string]string
	// unread is a line that has words of the driver and is no record.
	unread string
}

// mostPending bounds the memory of a reader.
const mostPending = 16384

// seen is an event and the sequence number of its record.
type seen struct {
	seq   uint64
	event xid.Event
}

func (p *pending) identify(gpu, uuid string) {
	if p.uuids == nil {
		p.uuids = map[string]string{}
	}
	p.uuids[gpu] = uuid
}

// follow reads the log to its end, from where the runs before this one got to.
func (r *reader) follow(ctx context.Context) error {
	first := false
	if r.log == nil {
		state, _ := r.merge(func(s *xid.State) bool { return !r.allowInjected && s.DropInjected() })
		log, err := kmsg.Open(r.kmsg, state.Next)
		if err != nil {
			return err
		}
		// What the ring loses later was read, or is reported as a gap.
		r.log, first = log, state.Next == 0
	}
	err := r.drain(ctx)
	if first && r.journal && r.log.Lost() > 0 {
		// What cannot be shared is reported by the next merge.
		_, _ = r.merge(func(s *xid.State) bool { return s.Begin(r.oldest) })
	}
	return err
}

// drain parses what the kernel log holds now.
func (r *reader) drain(ctx context.Context) error {
	now, err := npd.Uptime()
	if err != nil {
		return err
	}
	wall := time.Now()
	for ctx.Err() == nil {
		// Equal events are folded in the state.
		if len(r.pending.events) >= mostPending {
			_, _ = r.merge(nil)
		}
		rec, err := r.log.Next()
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case errors.Is(err, kmsg.ErrMalformed):
			slog.Warn("malformed record of the kernel log", "err", err)
			r.pending.unread = cmp.Or(r.pending.unread, err.Error())
			continue
		case err != nil:
			return err
		}
		r.take(rec, wall, now)
	}
	return errors.New("still reading the kernel log")
}

// take takes in a record that was read at a time of the wall clock, which is now by the kernel's.
func (r *reader) take(rec kmsg.Record, wall time.Time, now time.Duration) {
	if r.oldest == 0 {
		r.oldest = rec.Time
	}
	injected := rec.Facility != 0
	if injected && !r.allowInjected {
		return
	}
	if e, ok := r.joiner.Parse(rec.Body); ok {
		e.Injected, e.At, e.Seen = injected, rec.Time, now
		e.Time = wall.Add(rec.Time - now).Round(time.Millisecond)
		r.pending.events = append(r.pending.events, seen{rec.Seq, e})
	} else if gpu, uuid, ok := xid.ParseIdentity(rec.Body); ok {
		r.pending.identify(gpu, uuid)
	} else if xid.IsUnreadDriverLine(rec.Body) {
		r.pending.unread = cmp.Or(r.pending.unread, rec.Body)
	}
}

// wait returns when the driver has written something that matters, or when the class of a line that it has written may be decided.
func (r *reader) wait(ctx context.Context) error {
	if r.settled > 0 {
		settled, cancel := context.WithTimeout(ctx, r.settled)
		defer cancel()
		if err := r.await(settled); settled.Err() == nil || ctx.Err() != nil {
			return err
		}
		return nil
	}
	return r.await(ctx)
}

func (r *reader) await(ctx context.Context) error {
	if r.log == nil {
		<-ctx.Done()
		return ctx.Err()
	}
	for len(r.pending.events) == 0 {
		if err := r.log.Wait(ctx); err != nil {
			return err
		}
		if err := r.drain(ctx); err != nil {
			return err
		}
	}
	return nil
}
