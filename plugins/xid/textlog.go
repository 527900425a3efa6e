package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg/textlog"
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
	// What takes longer is answered from what was read until then.
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout*3/4)
	defer cancel()
	in := newLines(f)
	for number := 1; ctx.Err() == nil && err == nil; number++ {
		var line []byte
		if line, err = in.next(); err == nil {
			t.take(number, string(line))
		}
	}
	switch {
	case errors.Is(err, io.EOF) && !t.known && t.unread == "":
		t.unread = r.text + " has no line of a kernel log in a form that is known"
	case err == nil:
		t.unread = fmt.Sprintf("%s has more lines than can be read in %s, use a longer -timeout", r.text, r.plugin.Timeout*3/4)
	case !errors.Is(err, io.EOF):
		t.unread = err.Error()
	}
	// A file is no live log: nothing in it is still settling.
	return snapshot{
		Now: t.now + time.Hour, GPUs: gpus(t.state.UUIDs, nil), Overrides: overrides, Unread: t.unread, Storms: r.storms,
	}.complete(t.state), nil
}

// textLog is what is known from the lines so far.
type textLog struct {
	allowInjected bool
	state         xid.State
	joiner        xid.Joiner
	now           time.Duration
	// ofUser is true if the last line that was not indented is a user's.
	ofUser bool
	// known is true once a line had a known form.
	known bool
	// unread describes the first line with words of the driver that could not be read.
	unread string
}

func (t *textLog) take(number int, text string) {
	line := textlog.Parse(text)
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
	t.known = t.known || line.Form || xid.NewBoot(body) || strings.HasPrefix(body, "NVRM: ")
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
		t.doubt(number, line.Unsure || xid.QuotesDriver(body) || xid.IsUnreadDriverLine(body), body)
	}
}

// doubt keeps the first line that may be the driver's.
func (t *textLog) doubt(number int, unsure bool, body string) {
	if t.unread == "" && unsure && xid.HasDriverWords(body) {
		t.unread = fmt.Sprintf("line %d has words of the driver, in a form that is not known: %.120q", number, body)
	}
}
