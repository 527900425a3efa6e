package main

import (
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ran is what became of a program.
type ran struct {
	Argv []string `json:"argv"`
	// Exit is its exit code, -1 if it has none: Failed says why.
	Exit    int     `json:"exit"`
	Seconds float64 `json:"seconds"`
	// CPU is the time that it and its children have used, in seconds.
	CPU    float64 `json:"cpuSeconds"`
	Failed string  `json:"failed,omitempty"`
	// Hung says that it was killed at its limit, Stuck that it is still there after that: it sleeps uninterruptibly in the kernel.
	Hung  bool `json:"hung,omitempty"`
	Stuck bool `json:"stuck,omitempty"`
	// Left are processes of the kit's programs that still run, or hold a device, after its end.
	Left []string `json:"left,omitempty"`
	// Says is the first line of its output.
	Says string `json:"says,omitempty"`

	stdout, stderr string
}

// mostOutput is how much of an output is kept, in bytes.
const mostOutput = 8 << 20

// killing is how long a killed program may take to end.
const killing = 2 * time.Second

// program is what to run.
type program struct {
	// name is that of its output in dumps.tar.gz, "" if it is not kept.
	name  string
	limit time.Duration
	argv  []string
	env   []string
}

// run runs a program to its end or to its limit, when its process group is killed. Its output goes into files: a pipe would be held open
// by what cannot be killed, and nothing here waits for that.
func (k *kit) run(ctx context.Context, p program) (r ran) {
	r = ran{Argv: p.argv, Exit: -1}
	out, err := os.CreateTemp(k.work, "out-")
	if err != nil {
		r.Failed = err.Error()
		return r
	}
	defer out.Close()
	logs, err := os.CreateTemp(k.work, "err-")
	if err != nil {
		r.Failed = err.Error()
		return r
	}
	defer logs.Close()
	begun := time.Now()
	cmd := exec.Command(p.argv[0], p.argv[1:]...) //nolint:noctx // the kill below takes the whole group
	cmd.Stdout, cmd.Stderr, cmd.Dir = out, logs, k.work
	cmd.Env = append(append(os.Environ(), "LC_ALL=C"), p.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		r.Failed = err.Error()
		return r
	}
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	limit := time.NewTimer(p.limit)
	defer limit.Stop()
	select {
	case err = <-done:
	case <-ctx.Done():
		r.Failed = "the run was over"
		err = r.kill(cmd.Process.Pid, done)
	case <-limit.C:
		r.Hung, r.Failed = true, "no end within "+p.limit.String()
		err = r.kill(cmd.Process.Pid, done)
	}
	r.Seconds = seconds(time.Since(begun))
	if !r.Stuck {
		r.CPU = seconds(cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime())
		if r.Failed == "" {
			r.Exit = cmd.ProcessState.ExitCode()
		}
		if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) || r.Exit < 0 && r.Failed == "" {
			r.Failed = err.Error()
		}
	}
	r.stdout, r.stderr = head(out), head(logs)
	r.Says, _, _ = strings.Cut(strings.TrimSpace(r.stdout), "\n")
	return r
}

// try is [kit.run] with nothing beside it: it keeps the output, and looks for what the program has left.
func (k *kit) try(ctx context.Context, p program) ran {
	r := k.run(ctx, p)
	if r.Failed != "" {
		k.end()
	}
	r.Left = k.left()
	if p.name != "" {
		k.kept.add(p.name, r.stdout)
		k.kept.add(p.name+".stderr", r.stderr)
	}
	return r
}

// kill ends a group of processes and waits a moment for the end of the first.
func (r *ran) kill(group int, done <-chan error) error {
	if err := syscall.Kill(-group, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
		r.Failed += ", and cannot be killed: " + err.Error()
	}
	select {
	case err := <-done:
		return err
	case <-time.After(killing):
		r.Stuck = true
		r.Failed += ", and is still there after SIGKILL"
		return nil
	}
}

// head is the begin of a file.
func head(f *os.File) string {
	text, _ := io.ReadAll(io.NewSectionReader(f, 0, mostOutput))
	return string(text)
}

// end kills what still runs of the programs that this kit has unpacked, and nothing else: what was killed may have started some in other
// process groups.
func (k *kit) end() {
	for _, p := range programsIn(k.programs, k.devices) {
		if pid, err := strconv.Atoi(p.pid); err == nil {
			// One that has ended meanwhile is not there.
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// left returns the processes of the kit's own programs that are there although the kit waits for none, with the devices that they hold,
// each once. What has been killed may take a moment.
func (k *kit) left() (all []string) {
	for end := time.Now().Add(killing / 4); ; {
		found := slices.DeleteFunc(programsIn(k.programs, k.devices), func(p process) bool { return k.stuck[p.pid] })
		if len(found) > 0 && time.Now().Before(end) {
			<-time.After(20 * time.Millisecond)
			continue
		}
		for _, p := range found {
			k.stuck[p.pid] = true
			all = append(all, p.String())
		}
		return all
	}
}
