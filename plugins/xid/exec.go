package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// lock takes the lock of a program that may hang and then cannot be killed. The program inherits it: when it is left
// behind, it keeps the lock, so that there is never a second one beside it.
func (r *reader) lock(name string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(r.plugin.StateDir, name), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("the program of an earlier run has not ended: lock %s: %w", name, err), lock.Close())
	}
	return lock, nil
}

// startJournalctl starts journalctl on what the kernel logged in this boot. wait returns when it has ended; ctx ends it.
func (r *reader) startJournalctl(ctx context.Context, lock *os.File) (out io.Reader, wait func() error, err error) {
	args := []string{
		"--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP",
		"_TRANSPORT=kernel", "SYSLOG_FACILITY=0", "_BOOT_ID=" + strings.ReplaceAll(r.store.BootID, "-", ""),
	}
	if r.journalDir != "" {
		args = append(args, "--directory="+r.journalDir)
	}
	cmd := exec.CommandContext(ctx, r.journalctl, args...)
	cmd.ExtraFiles = []*os.File{lock}
	if out, err = cmd.StdoutPipe(); err != nil {
		return nil, nil, err
	}
	return out, cmd.Wait, cmd.Start()
}

// printGPUs runs this plugin with -gpus and returns what it prints, nothing if it fails.
func (r *reader) printGPUs(ctx context.Context, lock *os.File) []byte {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-procfs", r.procfs, "-gpus")
	cmd.ExtraFiles = []*os.File{lock}
	// The caller reports a list that is missing.
	out, _ := cmd.Output()
	return out
}
