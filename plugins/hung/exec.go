package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// askArg makes the plugin ask one mount and end.
const askArg = "-ask-mount"

// unusable is the exit code of a process that could not ask. Others are an errno, errno(3), which is smaller; 0 is an answer.
const unusable = 255

// ask asks a mount's server for attributes, past all caches, and for its room. It may never return.
func ask(path string) (code int) {
	// For ps and top; exec of /proc/self/exe names it "exe".
	_ = os.WriteFile("/proc/self/comm", []byte("hung-ask"), 0)
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_FORCE_SYNC|unix.AT_NO_AUTOMOUNT|unix.AT_SYMLINK_NOFOLLOW, unix.STATX_BASIC_STATS,
		new(unix.Statx_t))
	if err == nil {
		err = unix.Statfs(path, new(unix.Statfs_t))
	}
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.As(err, &errno) && errno < unusable:
		return int(errno)
	}
	return unusable
}

// answer is what became of a question.
type answer struct {
	// Errno is the error that the mount answered with.
	Errno syscall.Errno `json:"errno,omitempty"`
	// Since is the uptime at which the question was asked that has no answer yet; 0 if there is none.
	Since time.Duration `json:"since,omitempty"`
	// Unasked is why nothing could be asked.
	Unasked string `json:"unasked,omitempty"`
}

// question is one that waits for its answer, or has it.
type question struct {
	now   answer
	ended chan answer
}

// start asks a mount in a process of its own. That process is never killed: it ends when the server answers. Until then it holds a lock, by
// which every later run knows that the question has no answer, so there is never a second process for the same filesystem. One that sleeps
// in the kernel keeps its lock, whatever becomes of its parent, of the pod and of NPD.
func start(dir, path, id string, uptime time.Duration) question {
	lock, err := os.OpenFile(filepath.Join(dir, fmt.Sprintf("hung-%.8x.asked", sha256.Sum256([]byte(id)))), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return unasked(err)
	}
	defer lock.Close()
	err = unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		return question{now: waiting(lock, uptime)}
	}
	if err == nil {
		err = lock.Truncate(0)
	}
	if err == nil {
		_, err = lock.WriteAt([]byte(uptime.String()), 0)
	}
	if err != nil {
		return unasked(fmt.Errorf("lock %s: %w", lock.Name(), err))
	}
	cmd := exec.Command("/proc/self/exe", askArg, path) //nolint:noctx // it outlives this run
	cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
	cmd.ExtraFiles = []*os.File{lock}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return unasked(err)
	}
	q := question{now: answer{Since: uptime}, ended: make(chan answer, 1)}
	go func() {
		err := cmd.Wait()
		switch code := cmd.ProcessState.ExitCode(); {
		case code >= 0 && code < unusable:
			q.ended <- answer{Errno: syscall.Errno(code)}
		default:
			q.ended <- answer{Unasked: fmt.Sprintf("the process that asks ended with %v", err)}
		}
	}()
	return q
}

func unasked(err error) question { return question{now: answer{Unasked: err.Error()}} }

// answer returns what is known at the end of ctx, or as soon as there is an answer.
func (q question) answer(ctx context.Context) answer {
	if q.ended == nil {
		return q.now
	}
	select {
	case a := <-q.ended:
		return a
	case <-ctx.Done():
		return q.now
	}
}

// waiting reads since when the question of another run waits. The file is of this boot, because its lock is held.
func waiting(lock *os.File, uptime time.Duration) answer {
	data := make([]byte, 64)
	n, _ := lock.ReadAt(data, 0)
	since, err := time.ParseDuration(string(data[:n]))
	if err != nil || since <= 0 || since > uptime {
		return answer{Unasked: "it is being asked, and " + lock.Name() + " does not show since when: " + strconv.Quote(string(data[:n]))}
	}
	return answer{Since: since}
}
