package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"
)

// command is a program that may hang in a driver.
type command struct {
	// root is the directory that it takes for /, "" for this container's.
	root string
	// path is where it is, below root.
	path  string
	stdin string
	args  []string
	// limit is how long it may take.
	limit time.Duration
	// log gets its stderr, and with echo also its stdout; nil: stderr is part of the output.
	log  io.Writer
	echo bool
	// grace is the time between SIGTERM and SIGKILL when it has to end; 0: SIGKILL at once.
	grace time.Duration
}

// maxOutput is how much of the end of a program's output is kept, in bytes.
const maxOutput = 64 << 10

// killing is how long a killed program may take to end. One that does not hangs in the kernel.
const killing = 3 * time.Second

// hungError says that a program hangs and cannot be killed. Only a reboot helps.
type hungError struct{ program string }

func (e *hungError) Error() string {
	return e.program + " hangs in the driver and cannot be killed"
}

// exitError says that a program ended with another status than 0.
type exitError struct {
	program string
	code    int
	// text is its output.
	text string
}

func (e *exitError) Error() string {
	return fmt.Sprintf("%s exited %d: %.300s", e.program, e.code, oneLine(e.text))
}

func oneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// run runs the program and returns what it wrote on stdout and stderr. It is killed when its time is over or when ctx is done, with
// what it has started, and when this program dies.
func (c command) run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.limit)
	defer cancel()
	name := filepath.Base(c.path)
	if len(c.args) > 0 {
		name += " " + c.args[0]
	}
	output := &bounded{}
	cmd := exec.Command(c.path, c.args...) //nolint:noctx // the kill below takes the whole group
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.stdin), output, output
	if c.log != nil {
		cmd.Stderr = c.log
	}
	if c.echo {
		cmd.Stdout = io.MultiWriter(output, c.log)
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Chroot: c.root}
	// What it has started may keep its output open.
	cmd.WaitDelay = time.Second
	done := make(chan error, 1)
	started := make(chan error, 1)
	go func() {
		// The signal of Pdeathsig comes when the thread dies that started it, so this goroutine keeps its thread.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			done <- cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		return "", fmt.Errorf("%s: %w", name, err)
	}
	var err error
	select {
	case err = <-done:
	case <-ctx.Done():
		if c.grace == 0 || !ends(cmd.Process.Pid, syscall.SIGTERM, done, c.grace) {
			if !ends(cmd.Process.Pid, syscall.SIGKILL, done, killing) {
				return "", &hungError{name}
			}
		}
		if errors.Is(ctx.Err(), context.DeadlineExceeded) {
			return "", fmt.Errorf("%s gave no answer within %s", name, c.limit)
		}
		return "", fmt.Errorf("%s was stopped: %w", name, context.Cause(ctx))
	}
	text := output.String()
	slog.Info("Ran", "program", c.path, "args", c.args, "exit", cmd.ProcessState.ExitCode(), "output", fmt.Sprintf("%.2000s", text))
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return text, &exitError{name, exit.ExitCode(), text}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return text, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// ends sends a signal to a group of processes and reports whether its first one ends in time.
func ends(group int, signal syscall.Signal, done <-chan error, limit time.Duration) bool {
	if err := syscall.Kill(-group, signal); err != nil && !errors.Is(err, syscall.ESRCH) {
		slog.Warn("A program gets no signal", "pid", group, "signal", signal, "err", err)
	}
	select {
	case <-done:
		return true
	case <-time.After(limit):
		return false
	}
}

// bounded keeps the end of what is written to it.
type bounded struct{ text []byte }

func (b *bounded) Write(p []byte) (int, error) {
	b.text = append(b.text, p...)
	if over := len(b.text) - maxOutput; over > maxOutput {
		b.text = slices.Clone(b.text[over:])
	}
	return len(p), nil
}

func (b *bounded) String() string { return string(b.text[max(0, len(b.text)-maxOutput):]) }

// roots are where the driver's files are looked for, if no flag says so: those of a driver container, those of the node, and this
// container's.
var roots = []string{"/host/run/nvidia/driver", "/host", ""}

// folders are where vendors install their tools.
var folders = []string{"/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/opt/mxdriver/bin", "/opt/bin"}

// find looks for a vendor's tool: at path, if that is set, below root, if that is set.
func find(name, path, root string) (command, error) {
	among := roots
	if root != "" {
		among = []string{root}
	}
	for _, root := range among {
		candidates := []string{path}
		if path == "" {
			candidates = nil
			for _, folder := range folders {
				candidates = append(candidates, filepath.Join(folder, name))
			}
			if found, err := exec.LookPath(name); root == "" && err == nil {
				candidates = []string{found}
			}
		}
		for _, candidate := range candidates {
			// Not what a link leads to: that is relative to the other root.
			if info, err := os.Lstat(filepath.Join(root, candidate)); err == nil && !info.IsDir() {
				return command{root: root, path: candidate}, nil
			}
		}
	}
	if path != "" {
		name = path
	}
	if root != "" {
		return command{}, refuse("there is no %s below %s", name, root)
	}
	return command{}, refuse("there is no %s below %s, and none in this container", name, strings.Join(roots[:2], " and "))
}

// with returns the command with arguments and a limit.
func (c command) with(limit time.Duration, args ...string) command {
	c.limit, c.args = limit, args
	return c
}
