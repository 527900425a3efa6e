package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// runChecks runs the local checks. Exit 1 of one fails the node; any other failure, or the time limit of one, makes the result unknown.
func runChecks(ctx context.Context, commands []string, limit time.Duration) report.Check {
	result := report.Passed
	for _, command := range commands {
		out, err := output(ctx, command, limit)
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit) && exit.ExitCode() == 1:
			slog.Error("A local check failed: this node is bad", "check", command, "output", string(bytes.TrimSpace(out)))
			return report.Failed
		default:
			slog.Warn("The result of a local check is unknown", "check", command, "output", string(bytes.TrimSpace(out)), "err", err)
			result = report.Skipped
		}
	}
	if len(commands) == 0 {
		return report.Skipped
	}
	return result
}

// figure is the name and the command of a measurement of this node.
type figure struct{ name, command string }

// measureFigures runs the figures' commands. A figure that cannot be measured is left out.
func (o options) measureFigures(ctx context.Context) map[string]float64 {
	figures := map[string]float64{}
	for _, f := range o.figures {
		v, err := o.measureFigure(ctx, f.command)
		if err != nil {
			slog.Warn("Failed to measure a figure; leaving it out", "figure", f.name, "err", err)
			continue
		}
		slog.Info("Measured a figure", "figure", f.name, "value", v)
		figures[f.name] = v
	}
	return figures
}

func (o options) measureFigure(ctx context.Context, command string) (float64, error) {
	out, err := output(ctx, command, o.pair.timeout)
	if err != nil {
		return 0, fmt.Errorf("run %q: %w", command, err)
	}
	text, found := number(o.figurePattern, out)
	if !found {
		return 0, fmt.Errorf("%q printed no number", command)
	}
	v, err := strconv.ParseFloat(string(text), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("%q printed %.40q, which is not a positive number", command, text)
	}
	return v, nil
}

// number returns the first group of a pattern in an output. What ends together with the output may be half of a number: in a pipe, a
// program that was killed leaves no exit code.
func number(pattern *regexp.Regexp, out []byte) (text []byte, found bool) {
	at := pattern.FindSubmatchIndex(out)
	if at == nil || at[2] < 0 || at[3] == len(out) {
		return nil, false
	}
	return out[at[2]:at[3]], true
}

// output is what a command prints within a time limit.
func output(ctx context.Context, command string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return shell(ctx, command).Output()
}

// shell is a command that is killed together with its children: a benchmark that outlives its test would slow down the next
// one.
func shell(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	cmd.Stderr = os.Stderr
	return cmd
}

// storageBytes is the size of the test file. It is too large for most write caches, and still written quickly.
const storageBytes = 64 << 20

// checkStorage writes a file to the folder, syncs it, reads it back and compares it.
func checkStorage(folder string) report.Check {
	if folder == "" {
		return report.Skipped
	}
	if err := writeAndRead(folder); err != nil {
		slog.Error("The storage of this node is bad", "err", err)
		return report.Failed
	}
	return report.Passed
}

func writeAndRead(folder string) (err error) {
	f, err := os.CreateTemp(folder, ".preflight-*")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close(), os.Remove(f.Name())) }()
	want := make([]byte, storageBytes)
	if _, err := rand.Read(want); err != nil {
		return fmt.Errorf("make random bytes: %w", err)
	}
	if _, err := f.Write(want); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	got := make([]byte, storageBytes)
	if _, err := f.ReadAt(got, 0); err != nil {
		return err
	}
	if !bytes.Equal(got, want) {
		return fmt.Errorf("%s does not contain what was written", f.Name())
	}
	return nil
}
