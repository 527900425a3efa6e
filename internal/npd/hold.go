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
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hold makes a polled plugin answer like an event: it returns at once when the answer differs from what this NPD
// was told last, else it keeps looking and repeats the answer when the hold ends. NPD starts the next run a few
// milliseconds later, so the node is watched without a gap and without a resident agent.
func hold[S any](ctx context.Context, l *looker[S], npd process, args []string, stdout io.Writer) Status {
	deadline := time.Now().Add(l.p.Hold)
	// NPD's death ends us too; the look below catches one that died before this call.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		slog.Warn("no parent death signal", "err", err)
	}
	file := toldFile{path: filepath.Join(l.p.StateDir, fmt.Sprintf("told-%s-%s-%s.json", l.p.Name(), hash(args), npd))}
	told, err := file.begin()
	if err != nil {
		// Without the file nobody knows what NPD was told. Full holds then, never a hot loop.
		slog.Warn("holding without a record of what was told", "err", err)
	}

	now := l.look(ctx)
	if err != nil {
		told = &now
	}
	for told != nil && *told == now && time.Now().Before(deadline) && ctx.Err() == nil && npd.isParent() {
		pause, cancel := context.WithDeadline(ctx, earliest(deadline, time.Now().Add(l.p.Every)))
		// Beside a Read that has not come back nothing else may touch what it works on.
		if l.stuck != nil || l.c.Wait == nil || l.c.Wait(pause) != nil {
			<-pause.Done()
		}
		cancel()
		now = l.look(ctx)
	}
	status := say(stdout, now)
	// Last, so that a run killed before NPD has its answer leaves a file that makes the next one answer at once.
	if err == nil {
		if err := file.end(now); err != nil {
			slog.Warn("what was told is not recorded", "err", err)
		}
	}
	return status
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

// toldFile records what one NPD process was told last by one plugin with one set of arguments.
type toldFile struct{ path string }

type told struct {
	Begun bool    `json:"begun,omitempty"`
	Told  *answer `json:"told,omitempty"`
}

// begin marks a run as begun and returns what the run before told; nil if there was none or if it was killed.
func (f toldFile) begin() (*answer, error) {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o755); err != nil {
		return nil, err
	}
	f.sweep()
	var before told
	data, err := os.ReadFile(f.path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, err
	default:
		if err := json.Unmarshal(data, &before); err != nil {
			slog.Warn("unreadable told state, answering at once", "path", f.path, "err", err)
			before = told{}
		}
	}
	return before.Told, f.write(told{Begun: true})
}

func (f toldFile) end(a answer) error { return f.write(told{Told: &a}) }

func (f toldFile) write(t told) error {
	data, err := json.Marshal(t)
	if err != nil {
		return err
	}
	return writeFile(f.path, data)
}

// sweep removes the files of NPD processes that are long gone: a live one rewrites its file with every hold.
func (f toldFile) sweep() {
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
