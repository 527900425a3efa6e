package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// errReading is why the answer is not known while another look, or another run, has to read on in the journal.
var errReading = errors.New("still reading the journal of this boot, which has lines that the kernel's ring has lost")

// readJournal reads on in the journal until it gets to what the ring has, or until ctx ends. A journal that cannot be read is tried again
// by the next run.
func (r *reader) readJournal(ctx context.Context) error {
	if r.journalErr != nil {
		return r.journalErr
	}
	err := r.readOn(ctx)
	if err != nil && !errors.Is(err, errReading) {
		r.journalErr = err
	}
	return err
}

func (r *reader) readOn(ctx context.Context) error {
	lock, err := r.lock("xid-journal.lock")
	if errors.Is(err, unix.EWOULDBLOCK) {
		return errReading
	}
	if err != nil {
		return fmt.Errorf("journal: %w", err)
	}
	defer lock.Close()
	// The run that had the lock may have read on. What cannot be shared is reported by the next merge.
	state, _ := r.store.Update(func(*xid.State) bool { return false })
	if state.Reading == nil {
		return nil
	}
	now, err := npd.Uptime()
	if err != nil {
		return err
	}
	j := journal{Reading: *state.Reading, has: state.Reading.Read > 0, now: now, wall: time.Now(), identify: r.pending.identify}
	reading, cancel := context.WithCancel(ctx)
	defer cancel()
	out, wait, err := r.startJournalctl(reading, lock, j.Cursor)
	if err != nil {
		return err
	}
	defer out.Close()
	reached, err := j.read(out)
	if reached {
		cancel()
	}
	exit := wait()
	// Every boot has lines of the kernel, but not every journal keeps them.
	if !reached && err == nil && exit == nil && !j.has {
		exit = errors.New("journalctl prints no record of this boot's kernel")
	}
	if _, err := r.merge(func(s *xid.State) bool {
		s.ReadOn(j.Reading, j.found, reached || err == nil && exit == nil)
		return true
	}); err != nil {
		slog.Warn("how far the journal was read is not kept", "err", err)
	}
	switch {
	case reached:
		return nil
	case errors.Is(err, os.ErrDeadlineExceeded):
		return errReading
	case err != nil:
		return err
	}
	return exit
}

// journal is a part of the journal as it is read.
type journal struct {
	xid.Reading
	// has is true once the journal has had a record.
	has bool
	// found is what the part has, with equal events folded.
	found    xid.State
	now      time.Duration
	wall     time.Time
	identify func(gpu, uuid string)
}

// read takes in the events from before the ring's oldest record. Both logs carry the kernel's own clock, so what stands in both counts
// once. reached says that it stopped at that record.
func (j *journal) read(in io.Reader) (reached bool, err error) {
	skip := 0
	if j.Cursor == "" {
		skip = j.Read
	}
	for lines := newLines(in); ; {
		line, err := lines.next()
		switch {
		case errors.Is(err, io.EOF):
			return false, nil
		case err != nil:
			return false, err
		case skip > 0:
			skip--
		case j.take(line):
			return true, nil
		}
	}
}

// take takes in one line of `journalctl -o json` and reports whether it is one that the ring has.
func (j *journal) take(line []byte) (reached bool) {
	if bytes.HasPrefix(line, []byte("-- ")) {
		return false // journalctl's own words: -- No entries --
	}
	var rec journalRecord
	if err := json.Unmarshal(line, &rec); err != nil {
		j.Read++
		j.found.Doubt(string(line))
		return false
	}
	usec, err := strconv.ParseInt(rec.Monotonic, 10, 64)
	at := time.Duration(usec) * time.Microsecond
	if err == nil && at >= j.Until {
		return true
	}
	j.Read, j.Cursor, j.has = j.Read+1, rec.Cursor, true
	if err != nil {
		return false // no record of the kernel's
	}
	body := rec.body()
	if body == "" {
		j.found.Doubt(string(rec.Message))
	}
	if xid.NewBoot(body) {
		j.Whole = true
	}
	if gpu, uuid, ok := xid.ParseIdentity(body); ok {
		j.identify(gpu, uuid)
	} else if e, ok := j.Joiner.Parse(body); ok {
		e.At, e.Time = at, j.wall.Add(at-j.now).Round(time.Millisecond)
		j.found.Add(e)
	} else if xid.IsUnreadDriverLine(body) {
		j.found.Doubt(body)
	}
	return false
}

// journalRecord is one line of `journalctl -o json`. A message that is not UTF-8 is an array of bytes there.
type journalRecord struct {
	Message   json.RawMessage `json:"MESSAGE"`
	Monotonic string          `json:"_SOURCE_MONOTONIC_TIMESTAMP"`
	Cursor    string          `json:"__CURSOR"`
}

func (j journalRecord) body() string {
	var text string
	if json.Unmarshal(j.Message, &text) == nil {
		return text
	}
	var raw []int
	if json.Unmarshal(j.Message, &raw) != nil {
		return ""
	}
	var b bytes.Buffer
	for _, c := range raw {
		b.WriteByte(byte(c))
	}
	return b.String()
}
