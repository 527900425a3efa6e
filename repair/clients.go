package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/systemd"
)

// unitLimit is how long all services together may take to stop or to start.
const unitLimit = time.Minute

// stopUnits stops those of the services that run. before is called before each with its name.
func stopUnits(ctx context.Context, socket string, units []string, before func(unit string) error) error {
	if _, err := os.Stat(socket); len(units) == 0 || errors.Is(err, fs.ErrNotExist) {
		slog.Info("No service is stopped", "units", units, "systemd", socket, "err", err)
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	conn, err := systemd.Connect(ctx, socket)
	if err != nil {
		return err
	}
	defer conn.Close()
	statuses, err := conn.ListUnitsByNamesContext(ctx, units)
	if err != nil {
		return fmt.Errorf("systemd at %s: %w", socket, err)
	}
	var stopped []string
	for _, s := range statuses {
		running := slices.Contains([]string{"active", "activating", "reloading"}, s.ActiveState)
		// An alias comes under the name of its unit.
		if !running || slices.Contains(stopped, s.Name) {
			continue
		}
		stopped = append(stopped, s.Name)
		if err := before(s.Name); err != nil {
			return err
		}
		if err := job(ctx, conn.StopUnitContext, s.Name); err != nil {
			return fmt.Errorf("stop %s: %w", s.Name, err)
		}
	}
	return nil
}

const (
	// startTries is how often a service is started that fails at once: systemd itself fails to start one whose control group it is still
	// removing after the stop.
	startTries = 3
	// startSettles is after which time a service that was started has not failed at once.
	startSettles = time.Second
)

// startUnits starts services, the last first, and returns those that did not start, in their order.
func startUnits(ctx context.Context, socket string, units []string) (left []string, err error) {
	if len(units) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, unitLimit)
	defer cancel()
	conn, err := systemd.Connect(ctx, socket)
	if err != nil {
		return units, err
	}
	defer conn.Close()
	left = units
	for try := 1; ; try++ {
		failed := map[string]error{}
		for _, unit := range slices.Backward(left) {
			if err := job(ctx, conn.StartUnitContext, unit); err != nil {
				failed[unit] = fmt.Errorf("start %s: %w", unit, err)
			}
		}
		select {
		case <-time.After(startSettles):
		case <-ctx.Done():
		}
		statuses, err := conn.ListUnitsByNamesContext(ctx, left)
		if err != nil {
			return left, fmt.Errorf("systemd at %s: %w", socket, err)
		}
		for _, s := range statuses {
			if s.ActiveState == "failed" && failed[s.Name] == nil {
				failed[s.Name] = fmt.Errorf("start %s: it has failed at once", s.Name)
			}
		}
		left = slices.DeleteFunc(slices.Clone(left), func(unit string) bool { return failed[unit] == nil })
		if len(left) == 0 {
			return nil, nil
		}
		err = errors.Join(slices.Collect(maps.Values(failed))...)
		if try == startTries {
			return left, err
		}
		slog.Warn("Some services are started again", "units", left, "err", err)
	}
}

// job starts a job of systemd and waits for its end.
func job(ctx context.Context, start func(context.Context, string, string, chan<- string) (int, error), unit string) error {
	done := make(chan string, 1)
	if _, err := start(ctx, unit, "replace", done); err != nil {
		return err
	}
	select {
	case result := <-done:
		if result != "done" {
			return errors.New("systemd's job ended: " + result)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
