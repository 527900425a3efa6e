package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// readText reads a plain text log from end to end. What it says of earlier boots is no longer true.
func (r *reader) readText(ctx context.Context) (snapshot, error) {
	overrides, err := r.overrides()
	if err != nil {
		return snapshot{}, err
	}
	f, err := os.Open(r.text)
	if err != nil {
		return snapshot{}, err
	}
	defer f.Close()
	t := textLog{allowInjected: r.allowInjected}
	const longest = 1 << 20
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, 64<<10), longest)
	for number := 1; lines.Scan() && ctx.Err() == nil; number++ {
		t.take(number, lines.Text())
	}
	if err := lines.Err(); err != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", r.text, err)
	}
	if ctx.Err() != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", r.text, ctx.Err())
	}
	// A file is no live log: nothing in it is still settling.
	return snapshot{Now: t.now + time.Hour, GPUs: gpus(t.state.UUIDs, nil), Overrides: overrides, Unread: t.unread}.complete(t.state), nil
}

// textLog is what is known from the lines so far.
type textLog struct {
	allowInjected bool
	state         xid.State
	joiner        xid.Joiner
	now           time.Duration
	// ofUser is true if the last line that was not indented is a user's.
	ofUser bool
	// unread describes the first line with words of the driver that could not be read.
	unread string
}

func (t *textLog) take(number int, text string) {
	line := xid.ParseText(text)
	// Further lines of a message are indented, also those of a user's.
	if strings.HasPrefix(text, " ") || strings.HasPrefix(text, "\t") {
		line.User = line.User || t.ofUser
	} else {
		t.ofUser = line.User
	}
	if line.HasTime {
		t.now = line.At
	}
	body := kmsg.Unescape(line.Body)
	if line.User && !t.allowInjected {
		t.doubt(number, line.Unsure, body)
		return
	}
	if xid.NewBoot(body) {
		t.state = t.state.NextBoot()
	}
	if gpu, uuid, ok := xid.ParseIdentity(body); ok {
		t.state.Identify(gpu, uuid)
	} else if e, ok := t.joiner.Parse(body); ok {
		e.At, e.Injected = t.now, line.User
		t.state.Add(e)
	} else {
		t.doubt(number, line.Unsure, body)
	}
}

// doubt keeps the first line that may be the driver's.
func (t *textLog) doubt(number int, unsure bool, body string) {
	if t.unread == "" && unsure && xid.HasDriverWords(body) {
		t.unread = fmt.Sprintf("line %d has words of the driver, in a form that is not known: %.120q", number, body)
	}
}
