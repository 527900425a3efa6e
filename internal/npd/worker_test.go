package npd

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

// isolatedPlugin is a plugin whose Read does what a file says, in a worker: "hang" for ever, "write PATH" (in
// uninterruptible sleep while PATH's filesystem is frozen), "crash", "panic", else it reports the text.
func isolatedPlugin() {
	p := New(os.Getenv("TEST_PLUGIN"), "checks a file in a worker")
	path := p.String("file", "", "what to do")
	driver := p.String("driver", "d 1", "the loaded driver")
	Main(p, Check[string]{
		Driver: func() string { return *driver },
		Read: func(context.Context) (string, error) {
			data, err := os.ReadFile(*path)
			if err != nil {
				return "", err
			}
			text := string(data)
			target, frozen := strings.CutPrefix(text, "write ")
			switch {
			case text == "hang":
				select {}
			case text == "crash":
				if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
					return "", err
				}
				select {}
			case text == "panic":
				panic("in the worker")
			case frozen && strings.HasSuffix(target, "-later"):
				go func() { _ = os.WriteFile(target, []byte("x"), 0o600) }()
				for !sleeping(os.Getpid()) {
					runtime.Gosched()
				}
				return "answered before", nil
			case frozen:
				return "written", os.WriteFile(target, []byte("x"), 0o600)
			}
			return text, nil
		},
		Judge: func(s string) Result {
			if s == "sick" {
				return Result{Findings: []conditions.Finding{{Repair: conditions.Inspect, Subject: "file", Text: s}}}
			}
			return Result{Healthy: s}
		},
	})
}

// sleeping reports whether a thread of a process sleeps uninterruptibly.
func sleeping(pid int) bool {
	return len(stats(fmt.Sprintf("/proc/%d/task/[0-9]*/stat", pid), func(s stat) bool { return s.state == "D" })) > 0
}

// isolatedName is the plugin's name and that of its workers, in this run of the tests only.
func isolatedName() string { return fmt.Sprint("iso-", os.Getpid()) }

// isolated runs isolatedPlugin on one file and one state directory.
type isolated struct {
	t           *testing.T
	file, state string
}

func newIsolated(t *testing.T) *isolated {
	return &isolated{t, filepath.Join(t.TempDir(), "file"), t.TempDir()}
}

func (i *isolated) want(what, want string, args ...string) {
	i.t.Helper()
	write(i.t, i.file, what)
	start := time.Now()
	args = append([]string{"-file", i.file, "-state-dir", i.state, "-timeout", patience.String()}, args...)
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Env = append(os.Environ(), "TEST_PLUGIN="+isolatedName())
	cmd.Stderr = os.Stderr
	// Output waits for the end of stdout: it does not return while a worker holds the pipe.
	out, err := cmd.Output()
	if err != nil && !errors.As(err, new(*exec.ExitError)) {
		i.t.Fatal(err)
	}
	if took := time.Since(start); took >= patience {
		i.t.Errorf("answered after %s", took)
	}
	if got := string(out); got != want+"\n" {
		i.t.Errorf("%s: got %q (exit %d), want %q", what, got, cmd.ProcessState.ExitCode(), want)
	}
}

// patience is how long a test waits for what takes some milliseconds.
const patience = time.Minute

// soon is the timeout of a look at what hangs. A look waits for three quarters of it. The rest has to be enough to judge and to answer on a
// machine on which fifty other processes want to run.
const soon = "12s"

const (
	stillStuck = "unknown: driver: an earlier call into it has not returned"
	hungDriver = "Reboot driver: a call into it has not returned for 1ns and cannot be killed"
)

func TestAWorkerReadsForItsParent(t *testing.T) {
	i := newIsolated(t)
	i.want("fine", "fine")
	i.want("sick", "Inspect file: sick")
	i.want("panic", "unknown: panic: in the worker")
	i.want("crash", "unknown: the worker gave no answer: signal: killed")
	i.want("hang", "unknown: no answer within 9s", "-timeout", soon)
	// It was killable, so it is gone and nothing stands against the driver.
	i.want("fine", "fine", "-hung-after", "1ns")
}

func TestMaintenanceRepeatsTheLastAnswerAndOpensNothing(t *testing.T) {
	i := newIsolated(t)
	mark := filepath.Join(i.state, "maintenance")
	write(t, mark, "")
	i.want("sick", "unknown: maintenance, and nothing is known from before it")
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	i.want("sick", "Inspect file: sick")
	write(t, mark, "")
	i.want("fine", "Inspect file: sick")
	i.want("fine", "unknown: maintenance, nothing is opened", "-dump")
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	i.want("fine", "fine")
}

func TestAMaintenanceThatIsOverIsIgnored(t *testing.T) {
	i := newIsolated(t)
	if err := maintenance.Begin(Proc, i.state, "test", time.Hour); err != nil {
		t.Fatal(err)
	}
	i.want("sick", "unknown: maintenance, and nothing is known from before it")
	// Its program was killed.
	if err := maintenance.Begin(Proc, i.state, "test", 0); err != nil {
		t.Fatal(err)
	}
	i.want("sick", "Inspect file: sick")
}

func TestAMaintenanceFileThatCannotBeAskedForIsNoMaintenance(t *testing.T) {
	i := newIsolated(t)
	i.want("sick", "Inspect file: sick")
	mark := filepath.Join(i.state, "maintenance")
	if err := os.Symlink(mark, mark); err != nil {
		t.Fatal(err)
	}
	// Neither the last answer, which may be old, nor a look into a driver that somebody may work on.
	want := "unknown: maintenance or not: stat " + mark + ": too many levels of symbolic links"
	i.want("fine", want)
	i.want("fine", want, "-dump")
	if err := os.Remove(mark); err != nil {
		t.Fatal(err)
	}
	i.want("fine", "fine")
}

// One of its calls is in uninterruptible sleep when it answers: what the others said is not lost with it.
func TestAWorkerThatAnswersAndDoesNotEnd(t *testing.T) {
	i, mount := newIsolated(t), npdtest.Freeze(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	i.want("write "+filepath.Join(mount.Dir, "file-later"), "answered before", "-hung-after", "1h", "-timeout", soon)
	stuck := workers(t)
	if len(stuck) != 1 {
		t.Fatalf("workers %v, want one that is stuck", stuck)
	}
	i.want("fine", hungDriver, "-hung-after", "1ns", "-timeout", soon)
	mount.Thaw()
	eventually(t, "the worker is dead", func() bool {
		pid, _ := unix.Wait4(stuck[0], nil, unix.WNOHANG, nil)
		return pid == stuck[0]
	})
	i.want("fine", "fine")
}

// TestAWorkerInUninterruptibleSleep makes a worker that SIGKILL does not end: it writes to a frozen filesystem.
func TestAWorkerInUninterruptibleSleep(t *testing.T) {
	i, mount := newIsolated(t), npdtest.Freeze(t)
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		t.Fatal(err)
	}
	target := "write " + filepath.Join(mount.Dir, "file")

	i.want(target, stillStuck, "-hung-after", "1h", "-timeout", soon) // in which the worker begins to write
	first := workers(t)
	if len(first) != 1 {
		t.Fatalf("workers %v, want one that is stuck", first)
	}
	// It is a fault after the wait only, it stays the only worker, and another run of the check does not hang.
	i.want(target, stillStuck, "-hung-after", "1h", "-timeout", soon)
	i.want("fine", hungDriver, "-hung-after", "1ns", "-timeout", soon)
	if now := workers(t); len(now) != 1 || now[0] != first[0] {
		t.Errorf("workers %v, want only %v", now, first)
	}
	// A driver that is being changed starts the wait again.
	i.want("fine", stillStuck, "-hung-after", "1ns", "-driver", "d 2", "-timeout", soon)
	i.want("fine", hungDriver, "-hung-after", "1ns", "-driver", "d 2", "-timeout", soon)

	mount.Thaw()
	// We are the reaper, as a pod's pause process is: one wait, and nothing is left of it.
	eventually(t, "the worker is dead", func() bool {
		pid, _ := unix.Wait4(first[0], nil, unix.WNOHANG, nil)
		return pid == first[0]
	})
	if left := workers(t); len(left) > 0 {
		t.Errorf("workers %v are left", left)
	}
	i.want("fine", "fine")
}

// Under a maintenance a fault of the driver cannot be told from work on it.
func TestAMaintenanceStartsTheWaitForAStuckWorkerAgain(t *testing.T) {
	i := newIsolated(t)
	calls, err := BootStore[call](Proc, i.state, "worker-"+isolatedName())
	if err != nil {
		t.Fatal(err)
	}
	before, err := calls.Update(func(c *call) bool {
		*c = call{PID: os.Getpid(), Until: 1}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(i.state, "maintenance"), "")
	i.want("fine", "unknown: maintenance, and nothing is known from before it")
	after, err := calls.Update(func(*call) bool { return false })
	if err != nil {
		t.Fatal(err)
	}
	if now, err := Uptime(); err != nil || after.Until <= before.Until || after.Until > now {
		t.Errorf("the wait begins at %s, want it between %s and %s (%v)", after.Until, before.Until, now, err)
	}
}

func TestJudgeOfAStuckWorker(t *testing.T) {
	const m = time.Minute
	tests := map[string]struct {
		c       call
		now     time.Duration
		lives   bool
		driver  string
		fault   bool
		changed bool
	}{
		"killed long ago and alive": {call{Until: 10 * m, Driver: "d"}, 15 * m, true, "d", true, false},
		"not long enough":           {call{Until: 10 * m, Driver: "d"}, 15*m - 1, true, "d", false, false},
		"dead":                      {call{Until: 10 * m, Driver: "d"}, 15 * m, false, "d", false, false},
		"driver gone":               {call{Until: 10 * m, Driver: "d"}, 15 * m, true, "", false, true},
		"never a driver":            {call{Until: 10 * m}, 15 * m, true, "", false, true},
		"another driver":            {call{Until: 10 * m, Driver: "d"}, 15 * m, true, "e", false, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			fault, changed := test.c.judge(test.now, 5*m, test.lives, test.driver)
			if fault != test.fault || changed != test.changed {
				t.Errorf("fault %v, changed %v", fault, changed)
			}
			if changed && (test.c.Until != test.now || test.c.Driver != test.driver) {
				t.Errorf("the wait was not started again: %+v", test.c)
			}
		})
	}
}

func TestADeadProcessThatNobodyHasWaitedForIsNotStuck(t *testing.T) {
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	group := cmd.Process.Pid
	if !groupAlive(group) {
		t.Error("a process that sleeps is not seen")
	}
	kill(group)
	eventually(t, "the process is a zombie", func() bool {
		data, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", group))
		s, err := parseStat(string(data))
		return err == nil && s.state == "Z"
	})
	if groupAlive(group) {
		t.Error("a zombie is taken for a process that hangs")
	}
	_ = cmd.Wait()
}

func TestModuleIsTheDriverOnlyWhileItIsLive(t *testing.T) {
	sysfs := t.TempDir()
	dir := filepath.Join(sysfs, "module", "nvidia")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for state, want := range map[string]string{"live\n": "nvidia 550.163.01", "going\n": "", "coming\n": ""} {
		write(t, filepath.Join(dir, "version"), "550.163.01\n")
		write(t, filepath.Join(dir, "initstate"), state)
		if got := Module(sysfs, "nvidia"); got != want {
			t.Errorf("%s: %q, want %q", state, got, want)
		}
	}
	if got := Module(sysfs, "absent"); got != "" {
		t.Errorf("absent module: %q", got)
	}
}

// workers returns the workers of isolatedPlugin, dead ones aside.
func workers(t *testing.T) (groups []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range all {
		data, _ := os.ReadFile(path)
		if s, err := parseStat(string(data)); err == nil && s.name == isolatedName() && groupAlive(s.group) {
			groups = append(groups, s.group)
		}
	}
	return groups
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	deadline := time.After(patience)
	for !is() {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-deadline:
			t.Fatalf("not within %s: %s", patience, what)
		}
	}
}
