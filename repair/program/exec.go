// Package program runs programs that may hang in a driver: each has a limit, and is killed with all that it has started.
package program

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

	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// Command is a program that may hang in a driver.
type Command struct {
	// Root is the directory that it takes for /, "" for this container's.
	Root string
	// Path is where it is, below Root.
	Path  string
	Stdin string
	Args  []string
	// Limit is how long it may take.
	Limit time.Duration
	// Log gets its stderr, and with Echo also its stdout; nil: stderr is part of the output.
	Log  io.Writer
	Echo bool
	// Out gets its stdout instead of the text that Run returns.
	Out io.Writer
	// Grace is the time between SIGTERM and SIGKILL when it has to end; 0: SIGKILL at once.
	Grace time.Duration
}

// maxOutput is how much of the end of a program's output is kept, in bytes.
const maxOutput = 64 << 10

// killing is how long a killed program may take to end. One that does not hangs in the kernel.
const killing = 3 * time.Second

// HungError reports that a program hangs and cannot be killed. Only a reboot helps.
type HungError struct{ program string }

func (e *HungError) Error() string {
	return e.program + " hangs in the driver and cannot be killed"
}

// ExitError reports that a program ended with another status than 0.
type ExitError struct {
	program string
	Code    int
	// Text is its output.
	Text string
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("%s exited %d: %.300s", e.program, e.Code, OneLine(e.Text))
}

// OneLine returns a text with one space in the place of all white space.
func OneLine(text string) string { return strings.Join(strings.Fields(text), " ") }

// Run runs the program and returns what it wrote on stdout and stderr. It is killed when its time is over or when ctx is done, with
// what it has started, and when this program dies.
func (c Command) Run(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, c.Limit)
	defer cancel()
	name := filepath.Base(c.Path)
	if len(c.Args) > 0 && c.Out == nil { // a filter takes arguments out of what is said about a part of a bundle
		name += " " + c.Args[0]
	}
	output := &bounded{}
	cmd := exec.Command(c.Path, c.Args...) //nolint:noctx // the kill below takes the whole group
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(c.Stdin), output, output
	if c.Log != nil {
		cmd.Stderr = c.Log
	}
	if c.Echo {
		cmd.Stdout = io.MultiWriter(output, c.Log)
	}
	if c.Out != nil {
		cmd.Stdout = c.Out
	}
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL, Chroot: c.Root}
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
		return "", c.kill(ctx, name, cmd.Process.Pid, done)
	}
	text := output.String()
	if c.Out != nil {
		slog.Info("Ran", "program", c.Path, "exit", cmd.ProcessState.ExitCode())
	} else {
		slog.Info("Ran", "program", c.Path, "args", c.Args, "exit", cmd.ProcessState.ExitCode(), "output", fmt.Sprintf("%.2000s", text))
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.Exited() {
		return text, &ExitError{name, exit.ExitCode(), text}
	}
	if err != nil && !errors.Is(err, exec.ErrWaitDelay) {
		return text, fmt.Errorf("%s: %w", name, err)
	}
	return text, nil
}

// kill ends a program whose time is over, and returns why.
func (c Command) kill(ctx context.Context, name string, pid int, done <-chan error) error {
	if c.Grace == 0 || !ends(pid, syscall.SIGTERM, done, c.Grace) {
		if !ends(pid, syscall.SIGKILL, done, killing) {
			return &HungError{name}
		}
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return fmt.Errorf("%s gave no answer within %s", name, c.Limit)
	}
	return fmt.Errorf("%s was stopped: %w", name, context.Cause(ctx))
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

// Roots are where the driver's files are looked for, if no flag says so: those of a driver container, those of the node, and this
// container's.
var Roots = []string{"/host/run/nvidia/driver", "/host", ""}

// folders are where vendors install their tools.
var folders = []string{"/usr/bin", "/usr/local/bin", "/usr/local/sbin", "/usr/sbin", "/opt/mxdriver/bin", "/opt/bin"}

// Find looks for a vendor's tool: at path, if that is set, below root, if that is set.
func Find(name, path, root string) (Command, error) {
	among := Roots
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
				return Command{Root: root, Path: candidate}, nil
			}
		}
	}
	if path != "" {
		name = path
	}
	if root != "" {
		return Command{}, repairresult.Refuse("there is no %s below %s", name, root)
	}
	return Command{}, repairresult.Refuse("there is no %s below %s, and none in this container", name, strings.Join(Roots[:2], " and "))
}

// With returns the command with arguments and a limit.
func (c Command) With(limit time.Duration, args ...string) Command {
	c.Limit, c.Args = limit, args
	return c
}
