package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
)

// state is what this program keeps on the node: its lock, and what it has changed and must put back. It is written before each
// change, so that a run that is killed leaves nothing that the next one does not know.
type state struct {
	// dir is the state directory of the plugins.
	dir string
	// systemd is its private socket.
	systemd string
	// lock is held as long as it is open.
	lock *os.File
	// changed is what is not as it was found.
	changed changes
	// persist turns persistence mode on again for GPUs and returns those where it failed; nil without a vendor's tool.
	persist func(ctx context.Context, gpus []string) (left []string, err error)
}

// changes is the form of the file.
type changes struct {
	// BootID is the boot that they were made in. A reboot puts everything back.
	BootID string `json:"bootID"`
	// Units are the services that were stopped, in this order.
	Units []string `json:"units,omitempty"`
	// Persistence are the GPUs whose persistence mode was turned off.
	Persistence []string `json:"persistence,omitempty"`
}

func (s *state) path() string { return filepath.Join(s.dir, "repair.json") }

// open takes the lock, which ends with this process, and reads what a run before has left.
func (s *state) open() error {
	if err := os.MkdirAll(s.dir, 0o755); err != nil {
		return refuse("the state directory: %v", err)
	}
	lock, err := os.OpenFile(filepath.Join(s.dir, "repair.lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return refuse("the lock: %v", err)
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return refuse("another run of this program works on the node: lock %s: %v", lock.Name(), err)
	}
	s.lock = lock
	id, err := boot.ID(procfs)
	if err != nil {
		return refuse("the boot id: %v", err)
	}
	data, err := os.ReadFile(s.path())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return refuse("what a run before has left is not known: %v", err)
	}
	if err == nil {
		if err := json.Unmarshal(data, &s.changed); err != nil {
			// Written by renaming: not by a crash. Services that it named are started by the next boot.
			slog.Error("What a run before has left is not known", "path", s.path(), "err", err)
			s.changed = changes{}
		}
	}
	if s.changed.BootID != id {
		s.changed = changes{BootID: id}
	}
	return nil
}

// change notes a change before it is made.
func (s *state) change(f func(*changes)) error {
	f(&s.changed)
	data, err := json.Marshal(s.changed)
	if err != nil {
		return err
	}
	part := s.path() + ".part"
	if err := errors.Join(os.WriteFile(part, data, 0o600), os.Rename(part, s.path())); err != nil {
		return fmt.Errorf("note what is changed: %w", err)
	}
	return nil
}

func (s *state) stopping(unit string) error {
	return s.change(func(c *changes) {
		if !slices.Contains(c.Units, unit) {
			c.Units = append(c.Units, unit)
		}
	})
}

// restore puts everything back: services first, because one of them may set the persistence mode. What it cannot put back stays noted.
// It has its own time: ctx may be over.
func (s *state) restore() error {
	ctx := context.Background()
	var errs []error
	left := changes{BootID: s.changed.BootID}
	var err error
	left.Units, err = startUnits(ctx, s.systemd, s.changed.Units)
	errs = append(errs, err)
	left.Persistence = s.changed.Persistence
	if len(left.Persistence) > 0 && s.persist != nil {
		ctx, cancel := context.WithTimeout(ctx, unitLimit)
		defer cancel()
		left.Persistence, err = s.persist(ctx, s.changed.Persistence)
		errs = append(errs, err)
	}
	s.changed = left
	if len(left.Units)+len(left.Persistence) > 0 {
		errs = append(errs, s.change(func(*changes) {}))
	} else if err := os.Remove(s.path()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		errs = append(errs, err)
	}
	return errors.Join(append(errs, maintenance.End(s.dir))...)
}
