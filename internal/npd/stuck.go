package npd

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// call is the last worker that was started.
type call struct {
	// PID is the worker's process and process group.
	PID int `json:"pid"`
	// Start tells it from a later process with the same number.
	Start string `json:"start"`
	// Until is when its parent kills it, later the time from which it counts as hung. CLOCK_MONOTONIC.
	Until time.Duration `json:"until"`
	// Driver is the driver that was loaded then, "" for none.
	Driver string `json:"driver"`
}

// hungError is the error of a look that an earlier worker prevents.
type hungError struct {
	// fault reports that the driver hangs; else the worker may still end.
	fault bool
	after time.Duration
}

func (e hungError) Error() string { return "driver: " + e.text() }

func (e hungError) text() string {
	if e.fault {
		return fmt.Sprintf("a call into it has not returned for %s and cannot be killed", e.after)
	}
	return "an earlier call into it has not returned"
}

func (e hungError) result() (r Result) {
	const driver = "driver"
	if e.fault {
		r.Found(conditions.Reboot, driver, e.text())
	} else {
		r.NotRead(driver, e.text())
	}
	return r
}

// record notes a worker that has just been started.
func (w *worker) record(pid int, limit time.Duration) error {
	now, err := Uptime()
	if err != nil {
		return err
	}
	start, err := startOf(pid)
	if err != nil {
		return err
	}
	_, err = w.calls.Update(func(c *call) bool {
		*c = call{pid, start, now + limit, w.driver()}
		return true
	})
	return err
}

func startOf(pid int) (string, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return "", err
	}
	s, err := parseStat(string(data))
	return s.start, err
}

// hung judges the worker that holds the lock.
func (w *worker) hung() error {
	now, err := Uptime()
	if err != nil {
		return err
	}
	verdict := hungError{after: w.p.HungAfter}
	if _, err := w.calls.Update(func(c *call) (changed bool) {
		start, err := startOf(c.PID)
		reused := err == nil && start != c.Start
		if c.PID == 0 || now < c.Until || reused {
			return false // another run's worker, which still has time
		}
		kill(c.PID)
		verdict.fault, changed = c.judge(now, verdict.after, groupAlive(c.PID), w.driver())
		return changed
	}); err != nil {
		return fmt.Errorf("an earlier call into the driver has not returned: %w", err)
	}
	return verdict
}

// resetHungTimer starts the wait for a stuck worker again: under maintenance a fault of the driver cannot be told from
// work on it.
func (w *worker) resetHungTimer() error {
	now, err := Uptime()
	if err != nil {
		return err
	}
	_, err = w.calls.Update(func(c *call) bool {
		stale := c.PID != 0 && now > c.Until
		if stale {
			c.Until = now
		}
		return stale
	})
	return err
}

// judge reports whether a worker that was killed is evidence against the driver. An absent or another driver restarts
// the wait: then it is being changed.
func (c *call) judge(now, after time.Duration, alive bool, driver string) (fault, changed bool) {
	if driver == "" || driver != c.Driver {
		c.Driver, c.Until = driver, now
		return false, true
	}
	return alive && now-c.Until >= after, false
}

// groupAlive reports whether a process of the group is still there, other than as a zombie. After SIGKILL a process whose
// main thread has ended reads as a zombie while another thread still hangs in the kernel.
func groupAlive(group int) bool {
	alive := func(s stat) bool { return s.group == group && s.state != "Z" && s.state != "X" }
	member := func(s stat) bool { return s.group == group }
	for _, process := range stats("/proc/[0-9]*/stat", member) {
		if len(stats(filepath.Join(filepath.Dir(process), "task/[0-9]*/stat"), alive)) > 0 {
			return true
		}
	}
	return false
}

// stats returns those of the stat files that match. A process may end at any moment.
func stats(pattern string, match func(stat) bool) (paths []string) {
	// The pattern is good, and only a bad one is an error.
	all, _ := filepath.Glob(pattern)
	for _, path := range all {
		data, err := os.ReadFile(path)
		if err != nil {
			continue
		}
		if s, err := parseStat(string(data)); err == nil && match(s) {
			paths = append(paths, path)
		}
	}
	return paths
}

// Module identifies the loaded kernel module of a driver for [Check.Driver]: its version, or "" while it is absent,
// being loaded or being removed. sysfs is where the sys filesystem lies. Source: the kernel's
// Documentation/ABI/testing/sysfs-module and kernel/module/sysfs.c (initstate is live, coming or going).
func Module(sysfs, name string) string {
	dir := filepath.Join(sysfs, "module", name)
	state, err := os.ReadFile(filepath.Join(dir, "initstate"))
	if err != nil || strings.TrimSpace(string(state)) != "live" {
		return ""
	}
	// A module without a version is identified by its name alone.
	version, _ := os.ReadFile(filepath.Join(dir, "version"))
	return name + " " + strings.TrimSpace(string(version))
}

// Uptime is the time since the boot, without suspends: CLOCK_MONOTONIC, the clock of kernel log records.
func Uptime() (time.Duration, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return 0, fmt.Errorf("read CLOCK_MONOTONIC: %w", err)
	}
	return time.Duration(ts.Nano()), nil
}
