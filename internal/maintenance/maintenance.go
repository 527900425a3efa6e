// Package maintenance is the mark on a node that somebody works on its accelerators: the file "maintenance" in the state directory of
// the plugins. While it is there, no plugin opens a driver.
package maintenance

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
)

// A Mark is the content of a file that a program made: it ends by itself, because a program may be killed. A file with any other
// content, or with none, is a person's and counts until it is removed.
type Mark struct {
	// By is who made it.
	By string `json:"by"`
	// BootID is the boot that it counts in, Until the time of that boot (CLOCK_MONOTONIC) when it ends, in nanoseconds.
	BootID string        `json:"bootID"`
	Until  time.Duration `json:"until"`
}

// Path is where the mark is in a state directory.
func Path(stateDir string) string { return filepath.Join(stateDir, "maintenance") }

// Active reports whether the mark of a state directory counts now. With an error it is not known.
func Active(procfs, stateDir string) (bool, error) {
	path := Path(stateDir)
	_, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("maintenance or not: %w", err)
	}
	m, err := read(path)
	switch {
	case errors.Is(err, fs.ErrNotExist): // removed just now
		return false, nil
	case err != nil:
		return false, fmt.Errorf("maintenance or not: %w", err)
	case m == nil:
		return true, nil
	}
	id, err := boot.ID(procfs)
	if err != nil {
		return false, fmt.Errorf("maintenance or not: %w", err)
	}
	now, err := uptime()
	if err != nil {
		return false, fmt.Errorf("maintenance or not: %w", err)
	}
	return m.BootID == id && now < m.Until, nil
}

// read returns nil for a file that no program made.
func read(path string) (*Mark, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var m Mark
	if err := json.Unmarshal(data, &m); err != nil || m.By == "" || m.BootID == "" {
		return nil, nil //nolint:nilerr // a person may write anything
	}
	return &m, nil
}

// Begin makes the mark of a program for a time. A person's mark stays as it is.
func Begin(procfs, stateDir, by string, limit time.Duration) error {
	if err := os.MkdirAll(stateDir, 0o755); err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	path := Path(stateDir)
	m, err := read(path)
	if err == nil && m == nil {
		return nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("maintenance: %w", err)
	}
	id, err := boot.ID(procfs)
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	now, err := uptime()
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	data, err := json.Marshal(Mark{By: by, BootID: id, Until: now + limit})
	if err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	// Renamed into place: a file that is empty or cut is a person's.
	part := path + ".part"
	if err := errors.Join(os.WriteFile(part, data, 0o644), os.Rename(part, path)); err != nil {
		return fmt.Errorf("maintenance: %w", err)
	}
	return nil
}

// End removes the mark of a program, whichever made it. A person's mark stays.
func End(stateDir string) error {
	path := Path(stateDir)
	m, err := read(path)
	if err == nil && m != nil {
		err = os.Remove(path)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("maintenance: %w", err)
	}
	return nil
}

func uptime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
