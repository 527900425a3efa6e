package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
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
	var state xid.State
	var joiner xid.Joiner
	var now time.Duration
	const longest = 1 << 20
	lines := bufio.NewScanner(f)
	lines.Buffer(make([]byte, 0, 64<<10), longest)
	for lines.Scan() && ctx.Err() == nil {
		line := xid.ParseText(lines.Text())
		if line.HasTime {
			now = line.At
		}
		if line.User && !r.allowInjected {
			continue
		}
		body := kmsg.Unescape(line.Body)
		if xid.NewBoot(body) {
			state = state.NextBoot()
		}
		if gpu, uuid, ok := xid.ParseIdentity(body); ok {
			state.Identify(gpu, uuid)
		} else if e, ok := joiner.Parse(body); ok {
			e.At, e.Injected = now, line.User
			state.Add(e)
		}
	}
	if err := lines.Err(); err != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", r.text, err)
	}
	if ctx.Err() != nil {
		return snapshot{}, fmt.Errorf("read %s: %w", r.text, ctx.Err())
	}
	// A file is no live log: nothing in it is still settling.
	return snapshot{Now: now + time.Hour, GPUs: gpus(state.UUIDs, nil), Overrides: overrides}.complete(state), nil
}
