package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// Process is one program of the cluster. It has a separate process group, so that Ctrl-C reaches only the
// program that owns the cluster, and the kernel kills it when that program dies, however it dies.
type Process struct {
	// Name is the program's name in errors.
	Name string
	// LogPath is the file with everything the program wrote to stdout and stderr.
	LogPath string

	cmd     *exec.Cmd
	done    chan struct{}
	err     error       // how it ended; set before done is closed
	stopped atomic.Bool // its end is intended
}

// startProcess starts cmd with its output appended to logPath.
func startProcess(name, logPath string, cmd *exec.Cmd) (*Process, error) {
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer log.Close()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	p := &Process{Name: name, LogPath: logPath, cmd: cmd, done: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The parent-death signal is sent when the thread that forked ends, not when the process does
		// (golang/go#27505), so this thread stays until the child is gone.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			p.err = cmd.Wait()
			close(p.done)
		}
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	return p, nil
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the program has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Wait waits until the program ends. The error quotes the end of its log; it is nil after exit status 0.
func (p *Process) Wait() error {
	<-p.done
	if p.err == nil {
		return nil
	}
	return p.ended()
}

// Stop asks the program to end, kills it and its children after grace, and returns when it is gone.
func (p *Process) Stop(grace time.Duration) {
	p.stopped.Store(true)
	p.signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(grace):
	}
	p.Kill()
}

// Kill kills the program and its children, as the end of a container does, and returns when the program is gone.
func (p *Process) Kill() {
	p.stopped.Store(true)
	if !p.running() {
		return
	}
	// A stopped program starts no further children. NPD gives each plugin a separate process group.
	p.signal(syscall.SIGSTOP)
	for _, child := range children(p.PID()) {
		_ = syscall.Kill(child, syscall.SIGKILL)
	}
	p.signal(syscall.SIGKILL)
	<-p.done
}

// Freeze stops the program, as a hung machine does, until [Process.Thaw].
func (p *Process) Freeze() { p.signal(syscall.SIGSTOP) }

// Thaw continues a frozen program.
func (p *Process) Thaw() { p.signal(syscall.SIGCONT) }

// Log returns everything the program wrote.
func (p *Process) Log() string {
	text, err := os.ReadFile(p.LogPath)
	if err != nil {
		return err.Error()
	}
	return string(text)
}

// children lists the children of a process.
func children(pid int) []int {
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if err != nil {
		panic(err) // a bad pattern
	}
	var all []int
	for _, list := range lists {
		text, err := os.ReadFile(list)
		if err != nil {
			continue // that thread has ended
		}
		for _, child := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(child); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}

// signal signals the process group of a program that has not ended yet. After its end the number may belong to another group.
func (p *Process) signal(sig syscall.Signal) {
	if p.running() {
		_ = syscall.Kill(-p.PID(), sig)
	}
}

func (p *Process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// ended returns how the program ended. Call it only after done is closed.
func (p *Process) ended() error {
	how := "exit status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	return fmt.Errorf("%s ended: %s; %s", p.Name, how, p.logTail())
}

func (p *Process) logTail() string {
	lines := strings.Split(strings.TrimSpace(p.Log()), "\n")
	return "the end of its log:\n" + strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// ready polls until check succeeds. It gives up when the program ends or ctx does.
func (p *Process) ready(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.done:
			cancel(p.ended())
		case <-ctx.Done():
		}
	}()
	err := Poll(ctx, check)
	if err != nil && p.running() {
		return fmt.Errorf("%s is not ready: %w; %s", p.Name, err, p.logTail())
	}
	return err
}

// The pauses of [Poll].
const (
	shortestPause = 50 * time.Millisecond
	longestPause  = 300 * time.Millisecond
)

// Poll calls check until it returns nil or ctx ends. It pauses for a tenth of the time that it has waited so far, and at least as long as a
// check took: many tests wait side by side, and they must leave the processors to what they wait for.
func Poll(ctx context.Context, check func(context.Context) error) error {
	first := time.Now()
	for {
		begun := time.Now()
		err := check(ctx)
		if err == nil {
			return nil
		}
		now := time.Now()
		pause := max(shortestPause, now.Sub(begun), now.Sub(first)/10)
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (last seen: %w)", context.Cause(ctx), err)
		case <-time.After(min(pause, longestPause)):
		}
	}
}

// Pause waits for a time; it returns why not if ctx ends before.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// Scrape returns the metrics of a remediator. One that is not ready is an error.
func Scrape(ctx context.Context, address string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/metrics", nil)
	if err != nil {
		return "", err //nolint:wrapcheck // names the URL
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return "", err //nolint:wrapcheck // names the URL
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil {
		return "", fmt.Errorf("read the metrics of %s: %w", address, err)
	}
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("metrics of %s: %s %.500s", address, response.Status, text)
	}
	return string(text), nil
}

// run starts a program in the cluster's folder. The cluster kills it when it is closed.
func (c *Cluster) run(name, path string, env []string, args ...string) (*Process, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, fmt.Errorf("start %s: the cluster is closed", name)
	}
	// It outlives the call: [Cluster.Close] ends it.
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Dir = c.Dir
	cmd.Env = os.Environ()
	if os.Getenv("GOGC") != "" { // as `make test` sets it, an API server with large objects would take 8 GB
		cmd.Env = append(cmd.Env, "GOMEMLIMIT=1500MiB")
	}
	cmd.Env = append(cmd.Env, env...)
	p, err := startProcess(name, filepath.Join(c.Dir, fmt.Sprintf("%02d-%s.log", len(c.processes), name)), cmd)
	if err != nil {
		return nil, err
	}
	c.processes = append(c.processes, p)
	return p, nil
}

// need ends the cluster's context when the program ends without having been stopped.
func (c *Cluster) need(p *Process) {
	go func() {
		<-p.done
		if !p.stopped.Load() {
			c.fail(p.ended())
		}
	}()
}

// keep starts a program that the cluster needs. Once the API server has been stopped, the program is started again when it ends, as a
// kubelet does: the scheduler ends itself when a pod was bound by a request that it took for failed.
func (c *Cluster) keep(start func() (*Process, error)) error {
	p, err := start()
	if err != nil {
		return err
	}
	go func() {
		<-p.done
		switch {
		case p.stopped.Load():
		case !c.wasDown.Load():
			c.fail(p.ended())
		default:
			if err := c.keep(start); err != nil {
				c.fail(err)
			}
		}
	}()
	return nil
}

// parallel runs all functions concurrently and returns the first error, after all have returned.
func parallel(ctx context.Context, all ...func(context.Context) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make(chan error)
	for _, f := range all {
		go func() {
			err := f(ctx)
			if err != nil {
				cancel(err)
			}
			errs <- err
		}()
	}
	var failed []error
	for range all {
		failed = append(failed, <-errs)
	}
	if err := errors.Join(failed...); err != nil {
		return context.Cause(ctx)
	}
	return nil
}
