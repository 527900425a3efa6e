package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

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

// startJournalctl starts journalctl on what the kernel logged in this boot, from behind the record that the cursor names. Reads of out fail
// shortly before ctx ends. wait says how journalctl ended, in its own words; it does not wait for one that cannot be killed.
func (r *reader) startJournalctl(ctx context.Context, lock *os.File, cursor string) (out *os.File, wait func() error, err error) {
	args := []string{
		"--quiet", "--no-pager", "--output=json", "--output-fields=MESSAGE,_SOURCE_MONOTONIC_TIMESTAMP",
		"_TRANSPORT=kernel", "SYSLOG_FACILITY=0", "_BOOT_ID=" + strings.ReplaceAll(r.store.BootID, "-", ""),
	}
	if r.journalDir != "" {
		args = append(args, "--directory="+r.journalDir)
	}
	if cursor != "" {
		args = append(args, "--after-cursor="+cursor)
	}
	// Before journalctl is killed, so that a line which that cuts short is not read.
	const early = 50 * time.Millisecond
	out, in, err := os.Pipe()
	if err != nil {
		return nil, nil, err
	}
	defer in.Close()
	if deadline, ok := ctx.Deadline(); ok {
		if err := out.SetReadDeadline(deadline.Add(-early)); err != nil {
			return nil, nil, errors.Join(err, out.Close())
		}
	}
	var words bytes.Buffer
	cmd := exec.CommandContext(ctx, r.journalctl, args...)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles, cmd.WaitDelay = in, &words, []*os.File{lock}, 100*time.Millisecond
	if err := cmd.Start(); err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	return out, func() error {
		select {
		case err := <-ended:
			if text := strings.Join(strings.Fields(words.String()), " "); err != nil && text != "" {
				return fmt.Errorf("%s: %w: %.200s", r.journalctl, err, text)
			} else if err != nil {
				return fmt.Errorf("%s: %w", r.journalctl, err)
			}
			return nil
		case <-time.After(time.Second):
			return fmt.Errorf("%s has not ended", r.journalctl)
		}
	}, nil
}

// printGPUs runs this plugin with -gpus and returns what it prints, nothing if it fails.
func (r *reader) printGPUs(ctx context.Context, lock *os.File) []byte {
	cmd := exec.CommandContext(ctx, "/proc/self/exe", "-procfs", r.procfs, "-gpus")
	cmd.ExtraFiles = []*os.File{lock}
	// The caller reports a list that is missing.
	out, _ := cmd.Output()
	return out
}
