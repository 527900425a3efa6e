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
	"strconv"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
)

// check runs the local checks. One that says 1 fails the node; one that cannot tell leaves it open.
func check(ctx context.Context, commands []string) report.Check {
	result := report.Passed
	for _, command := range commands {
		out, err := shell(ctx, command).Output()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit) && exit.ExitCode() == 1:
			slog.Error("This node is bad", "check", command, "says", string(bytes.TrimSpace(out)))
			return report.Failed
		default:
			slog.Warn("A local check cannot tell", "check", command, "says", string(bytes.TrimSpace(out)), "err", err)
			result = report.Skipped
		}
	}
	if len(commands) == 0 {
		return report.Skipped
	}
	return result
}

// figure is what a command measures of this node.
type figure struct{ name, command string }

// measure runs the figures' commands. One without a figure is left out: the others go on.
func (o options) measure(ctx context.Context) map[string]float64 {
	figures := map[string]float64{}
	for _, f := range o.figures {
		v, err := o.figure(ctx, f.command)
		if err != nil {
			slog.Warn("A figure is not known", "figure", f.name, "err", err)
			continue
		}
		slog.Info("Measured", "figure", f.name, "value", v)
		figures[f.name] = v
	}
	return figures
}

func (o options) figure(ctx context.Context, command string) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, o.pair.timeout)
	defer cancel()
	out, err := shell(ctx, command).Output()
	if err != nil {
		return 0, fmt.Errorf("run %q: %w", command, err)
	}
	m := o.figurePattern.FindSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("%q printed no figure", command)
	}
	v, err := strconv.ParseFloat(string(m[1]), 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) {
		return 0, fmt.Errorf("the figure of %q is %.40q", command, m[1])
	}
	return v, nil
}

// shell is a command that ends with all that it has started: a benchmark that outlives its test would slow down the next.
func shell(ctx context.Context, command string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "sh", "-c", command)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	cmd.Stderr = os.Stderr
	return cmd
}

// storageBytes is what is written to the job's storage: more than its caches would hide for long, quick to write.
const storageBytes = 64 << 20

// store writes to the folder, syncs, reads it back and compares.
func store(folder string) report.Check {
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
		return fmt.Errorf("%s does not hold what was written", f.Name())
	}
	return nil
}
