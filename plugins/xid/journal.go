package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// readJournal reads what the ring had lost before the first look of this boot.
func (r *reader) readJournal(ctx context.Context) error {
	lock, err := r.lock("xid-journal.lock")
	if err != nil {
		return err
	}
	defer lock.Close()
	now, err := npd.Uptime()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
	defer cancel()
	out, wait, err := r.startJournalctl(ctx, lock)
	if err != nil {
		return err
	}
	read, enough, err := r.parseJournal(out, time.Now(), now)
	if enough || err != nil {
		cancel()
	}
	// After cancel its exit status says nothing.
	if exit := wait(); exit != nil && !enough && err == nil {
		err = fmt.Errorf("%s: %w", r.journalctl, exit)
	}
	if err != nil {
		return err
	}
	for gpu, uuid := range read.uuids {
		r.pending.identify(gpu, uuid)
	}
	r.pending.before, r.pending.journalled, r.pending.whole = read.before, true, read.whole
	return nil
}

// journalRecord is one line of `journalctl -o json`. A message that is not UTF-8 is an array of bytes there.
type journalRecord struct {
	Message   json.RawMessage `json:"MESSAGE"`
	Monotonic string          `json:"_SOURCE_MONOTONIC_TIMESTAMP"`
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

// parseJournal takes the events from before the ring's oldest record out of the journal of this boot. Both carry the
// kernel's own clock, so what stands in both counts once. enough says that it stopped at that record.
func (r *reader) parseJournal(in io.Reader, wall time.Time, now time.Duration) (p pending, enough bool, err error) {
	p.journalled = true
	var joiner xid.Joiner
	const longest = 1 << 20
	lines := bufio.NewScanner(in)
	lines.Buffer(make([]byte, 0, 64<<10), longest)
	for lines.Scan() {
		var rec journalRecord
		if err := json.Unmarshal(lines.Bytes(), &rec); err != nil {
			return pending{}, false, fmt.Errorf("journal line %.80q: %w", lines.Bytes(), err)
		}
		usec, err := strconv.ParseInt(rec.Monotonic, 10, 64)
		if err != nil {
			continue // no record of the kernel's
		}
		at := time.Duration(usec) * time.Microsecond
		if at >= r.oldest {
			return p, true, nil
		}
		body := rec.body()
		if xid.NewBoot(body) {
			p.whole = true
		}
		if gpu, uuid, ok := xid.ParseIdentity(body); ok {
			p.identify(gpu, uuid)
		} else if e, ok := joiner.Parse(body); ok {
			e.At, e.Time = at, wall.Add(at-now).Round(time.Millisecond)
			p.before = append(p.before, e)
		}
	}
	return p, false, lines.Err()
}
