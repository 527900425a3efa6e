package npd

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hold makes a polled plugin answer like an event: it returns at once when the answer differs from the last one that
// this NPD got, else it goes on looking and repeats the answer when the hold ends. NPD starts the next run a few
// milliseconds later, so the node is watched without a gap and without a resident agent.
func hold[S any](ctx context.Context, r *runner[S], npd process, args []string, stdout io.Writer) Status {
	// A look does one thing at a time. With more, each of them wakes a second thread, which finds nothing to do.
	runtime.GOMAXPROCS(1)
	deadline := time.Now().Add(r.p.length())
	// NPD's death ends us too; the loop below notices an NPD that died before this call.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		slog.Warn("no parent death signal", "err", err)
	}
	file := lastAnswer{path: filepath.Join(r.p.StateDir, fmt.Sprintf("told-%s-%s-%s.json", r.p.Name(), hash(args), npd))}
	last, err := file.begin()
	if err != nil {
		// Without the file the last answer is not known. Full holds then, never a hot loop.
		slog.Warn("holding without a record of the last answer", "err", err)
	}

	now := r.look(ctx)
	if err != nil {
		last = &now
	}
	for last != nil && *last == now && time.Now().Before(deadline) && ctx.Err() == nil && npd.isParent() {
		pause, cancel := context.WithDeadline(ctx, earliest(deadline, time.Now().Add(r.pause())))
		// Beside a Read that has not come back nothing else may touch what it works on.
		if r.stuck != nil || r.c.Wait == nil || r.c.Wait(pause) != nil {
			<-pause.Done()
		}
		cancel()
		now = r.look(ctx)
	}
	status := respond(stdout, now)
	// Last, so that a run killed before NPD has its answer leaves a file that makes the next one answer at once.
	if err == nil {
		if err := file.finish(now); err != nil {
			slog.Warn("the last answer is not recorded", "err", err)
		}
	}
	return status
}

// pause is the time to the next look: they are at whole multiples of -every or -healthy-every since the boot. So checks that share a
// reading look at the same moment, and the reading is as fresh for all of them.
func (r *runner[S]) pause() time.Duration {
	every := r.p.Every
	if r.healthy {
		every = r.p.longest()
	}
	now, err := Uptime()
	if err != nil {
		return every
	}
	return toNext(now, every)
}

// longest is the longest pause between two looks.
func (p *Plugin) longest() time.Duration { return max(p.Every, p.HealthyEvery) }

func toNext(now, every time.Duration) time.Duration {
	if every <= 0 {
		return 0
	}
	return every - now%every
}

// length is the length of a hold.
func (p *Plugin) length() time.Duration {
	now, err := Uptime()
	if err != nil {
		return p.Hold
	}
	return whole(now, p.Hold, p.longest())
}

// whole shortens a hold, so that it ends with one of the looks and not with one more.
func whole(now, hold, every time.Duration) time.Duration {
	if every <= 0 || every > hold {
		return hold
	}
	return hold - (now+hold)%every
}

func earliest(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

func hash(args []string) string {
	sum := sha256.Sum256([]byte(strings.Join(args, "\x00")))
	return fmt.Sprintf("%x", sum[:6])
}

// lastAnswer is the file with the last answer that one NPD process got from one plugin with one set of arguments.
type lastAnswer struct{ path string }

// answered is the form of the file.
type answered struct {
	Begun bool    `json:"begun,omitempty"`
	Last  *answer `json:"told,omitempty"`
}

// begin marks a run as begun and returns the answer of the run before; nil if there was none or if it was killed.
func (f lastAnswer) begin() (*answer, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return nil, err
	}
	f.removeStale()
	var before answered
	data, err := os.ReadFile(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &before); err != nil {
			slog.Warn("the last answer is unreadable, answering at once", "path", f.path, "err", err)
			before = answered{}
		}
	}
	return before.Last, f.write(answered{Begun: true})
}

func (f lastAnswer) finish(a answer) error { return f.write(answered{Last: &a}) }

func (f lastAnswer) write(a answered) error {
	data, err := json.Marshal(a)
	if err != nil {
		return err
	}
	return writeFile(f.path, data)
}

// removeStale removes the files of NPD processes that are long gone: a live one rewrites its file with every hold.
func (f lastAnswer) removeStale() {
	others, err := filepath.Glob(filepath.Join(filepath.Dir(f.path), "told-*"))
	if err != nil {
		return
	}
	for _, other := range others {
		info, err := os.Stat(other)
		if err == nil && time.Since(info.ModTime()) > time.Hour {
			// Another run may have removed it already.
			_ = os.Remove(other)
		}
	}
}
