package main

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"

	"github.com/pitcrew-dev/pitcrew/remediator/preflight/verdict"
)

// check runs the local checks. One that says 1 fails the node; one that cannot tell leaves it open.
func check(ctx context.Context, commands []string) verdict.Check {
	result := verdict.Passed
	for _, command := range commands {
		out, err := exec.CommandContext(ctx, "sh", "-c", command).Output()
		var exit *exec.ExitError
		switch {
		case err == nil:
		case errors.As(err, &exit) && exit.ExitCode() == 1:
			slog.Error("This node is bad", "check", command, "says", string(bytes.TrimSpace(out)))
			return verdict.Failed
		default:
			slog.Warn("A local check cannot tell", "check", command, "says", string(bytes.TrimSpace(out)), "err", err)
			result = verdict.Skipped
		}
	}
	if len(commands) == 0 {
		return verdict.Skipped
	}
	return result
}

// storageBytes is what is written to the job's storage: more than its caches would hide for long, quick to write.
const storageBytes = 64 << 20

// store writes to the folder, syncs, reads it back and compares.
func store(folder string) verdict.Check {
	if folder == "" {
		return verdict.Skipped
	}
	if err := writeAndRead(folder); err != nil {
		slog.Error("The storage of this node is bad", "err", err)
		return verdict.Failed
	}
	return verdict.Passed
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
