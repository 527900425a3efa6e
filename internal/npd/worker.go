package npd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
)

// A process that hangs in a driver cannot be killed, and with NPD's pipes open it would freeze NPD's rule permanently
// (NPD reads both pipes to their end before it looks at its timeout). So a check that calls into a driver reads in a
// worker: the same binary with the same arguments, in a process group of its own, without NPD's pipes. It gives its
// snapshot back in memory that it shares with its parent, and it holds a file lock, which the kernel keeps until the
// last process of the group is really gone: no second worker starts before that.

const (
	// workerEnv makes a plugin be its own worker. Its value is what the worker reads: what this check judges, or what all checks do
	// that share.
	workerEnv = "PITCREW_WORKER"
	readsOwn  = "own"
	readsAll  = "all"
	// threadsEnv is Go's own. A worker does one thing at a time, and each thread costs its start.
	threadsEnv = "GOMAXPROCS"
	// replyFD and lockFD are the worker's ends of what it shares with its parent.
	replyFD, lockFD = 3, 4
)

// lostError is the error of a read whose worker ended without a reply.
type lostError struct{ error }

func noAnswer(limit time.Duration) error { return lostError{fmt.Errorf("no answer within %s", limit)} }

// reply is what a worker sends to its parent.
type reply struct {
	Snapshot json.RawMessage `json:"snapshot,omitempty"`
	Err      string          `json:"err,omitempty"`
}

// limit is how long a worker may take. What remains of the look's time is for killing it and for the answer.
func (p *Plugin) limit() time.Duration { return p.Timeout * 3 / 4 }

// maintenance reports whether an operator works on the node's accelerators: nothing may be opened then. With an error it is
// not known, and nothing may be opened either.
func (p *Plugin) maintenance() (bool, error) {
	if p.Work != "" {
		return false, nil
	}
	return maintenance.Active(Proc, p.StateDir)
}

func (p *Plugin) workerName() string {
	if p.Work != "" {
		return "worker-" + p.Name() + "-" + p.Work
	}
	return "worker-" + p.Name()
}

// work is the worker's side: it reads once and hands the snapshot to its parent.
func work(p *Plugin, read func(context.Context) (any, error)) Status {
	// For ps and top; exec of /proc/self/exe names it "exe".
	if err := os.WriteFile("/proc/self/comm", []byte(p.Name()), 0); err != nil {
		slog.Warn("the worker has no name", "err", err)
	}
	// Whatever Read starts is not a worker of its own.
	if err := errors.Join(os.Unsetenv(workerEnv), os.Unsetenv(threadsEnv)); err != nil {
		slog.Error("the worker cannot change its environment", "err", err)
		return Unknown
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.limit())
	defer cancel()
	var r reply
	s, err := readOrPanic(ctx, read)
	if err == nil {
		r.Snapshot, err = json.Marshal(s)
	}
	if err != nil {
		r.Err = err.Error()
	}
	if err := json.NewEncoder(os.NewFile(replyFD, "reply")).Encode(r); err != nil {
		slog.Error("the worker cannot give its snapshot to its parent", "err", err)
		return Unknown
	}
	return OK
}

func readOrPanic(ctx context.Context, read func(context.Context) (any, error)) (s any, err error) {
	defer func() {
		if v := recover(); v != nil {
			slog.Error("panic", "value", v, "stack", string(debug.Stack()))
			err = fmt.Errorf("panic: %v", v)
		}
	}()
	return read(ctx)
}

// worker is the parent's side.
type worker struct {
	p *Plugin
	// name is that of its files, reads the value of workerEnv.
	name   string
	reads  string
	args   []string
	driver func() string
	calls  *Store[call]
	last   *Store[answer]
}

func newWorker(p *Plugin, name string, driver func() string, args []string) (*worker, error) {
	calls, err := BootStore[call](Proc, p.StateDir, name)
	if err != nil {
		return nil, err
	}
	last, err := BootStore[answer](Proc, p.StateDir, "last-"+p.Name()+"-"+hash(args))
	return &worker{p: p, name: name, reads: readsOwn, args: args, driver: driver, calls: calls, last: last}, err
}

// read runs one worker.
func (w *worker) read(ctx context.Context) ([]byte, error) { return w.locked(ctx, w.run) }

// locked calls a function with the lock, when no worker is left. It returns well before the look's end, whatever becomes of a worker.
func (w *worker) locked(ctx context.Context, f func(context.Context, *os.File) ([]byte, error)) ([]byte, error) {
	maintenance, err := w.p.maintenance()
	if err != nil {
		return nil, err
	}
	if maintenance {
		return nil, errors.New("maintenance, nothing is opened")
	}
	ctx, cancel := context.WithTimeout(ctx, w.p.limit())
	defer cancel()
	lock, err := w.lock(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		return nil, w.hung()
	}
	if err != nil {
		return nil, fmt.Errorf("no worker may start: %w", err)
	}
	defer lock.Close()
	return f(ctx, lock)
}

// run runs one worker, which inherits the lock.
func (w *worker) run(ctx context.Context, lock *os.File) ([]byte, error) {
	out, err := memory("reply")
	if err != nil {
		return nil, err
	}
	defer out.Close()
	logs, err := memory("stderr")
	if err != nil {
		return nil, err
	}
	defer logs.Close()

	cmd := exec.Command("/proc/self/exe", w.args...) //nolint:noctx // the kill below takes the whole group
	cmd.Args[0] = os.Args[0]
	cmd.Env = append(os.Environ(), workerEnv+"="+w.reads, threadsEnv+"=1")
	cmd.Stderr = logs
	cmd.ExtraFiles = []*os.File{replyFD - 3: out, lockFD - 3: lock}
	// The signal comes when the thread dies that started the worker, so this goroutine keeps its thread.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	deadline, _ := ctx.Deadline()
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start a worker: %w", err)
	}
	if err := w.record(cmd.Process.Pid, time.Until(deadline)); err != nil {
		slog.Warn("a worker that gets stuck will not be noticed", "err", err)
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	progress := time.NewTicker(30 * time.Second)
	defer progress.Stop()
	for start := time.Now(); ctx.Err() == nil; {
		select {
		case err := <-done:
			forward(logs)
			return result(out, err)
		case <-progress.C:
			if w.p.Work != "" {
				slog.Info("still running", "work", w.p.Work, "for", time.Since(start).Round(time.Second), "limit", w.p.limit())
			}
		case <-ctx.Done():
		}
	}
	kill(cmd.Process.Pid)
	select {
	case <-done:
		forward(logs)
		err = noAnswer(w.p.limit())
	case <-time.After(w.p.Timeout / 8):
		err = w.hung()
	}
	// It may have answered and not have ended, because one of its calls hangs.
	if data, unanswered := result(out, nil); unanswered == nil {
		return data, nil
	}
	return nil, err
}

// lock waits for the end of the worker before. The worker inherits the lock, so it is released when the last process
// of its group ends.
func (w *worker) lock(ctx context.Context) (*os.File, error) {
	if err := os.MkdirAll(w.p.StateDir, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(filepath.Join(w.p.StateDir, w.name+".alive"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return f, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), f.Close())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// memory returns a file without a path.
func memory(name string) (*os.File, error) {
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("memfd_create: %w", err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// kill ends a worker and all that it started.
func kill(pid int) {
	if err := unix.Kill(-pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
		slog.Warn("kill a worker", "pid", pid, "err", err)
	}
}

// forward gives a worker's stderr to our own.
func forward(logs *os.File) {
	const most = 64 << 10
	if _, err := io.Copy(os.Stderr, io.NewSectionReader(logs, 0, most)); err != nil {
		slog.Warn("a worker's log is lost", "err", err)
	}
}

func result(out *os.File, ended error) ([]byte, error) {
	const most = 16 << 20
	data, err := io.ReadAll(io.NewSectionReader(out, 0, most))
	if err != nil {
		return nil, err
	}
	var r reply
	if err := json.Unmarshal(data, &r); err != nil {
		if ended == nil {
			ended = err
		}
		return nil, lostError{fmt.Errorf("the worker gave no answer: %w", ended)}
	}
	if r.Err != "" {
		return nil, errors.New(r.Err)
	}
	return r.Snapshot, nil
}
