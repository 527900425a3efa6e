package cluster

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// Usage is what a process has used so far.
type Usage struct {
	At        time.Time
	CPU       time.Duration
	RSS, Peak float64 // MB
}

// UsageOf reads proc_pid_stat(5) and proc_pid_status(5).
func UsageOf(pid int) (Usage, error) {
	u := Usage{At: time.Now()}
	var err error
	if u.CPU, err = cpuTime(pid); err != nil {
		return u, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return u, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kb); err == nil {
			u.RSS = kb / 1024
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err == nil {
			u.Peak = kb / 1024
		}
	}
	return u, nil
}

// cpuTime is what a process has used, in user and kernel mode.
func cpuTime(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	const tick = 10 * time.Millisecond // USER_HZ is 100 on every architecture that Go knows
	// The name, in parentheses, may contain spaces. After it come fields 3, 4, ...; utime is 14, stime 15.
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	if len(fields) < 13 {
		return 0, fmt.Errorf("read the CPU time: %q", stat)
	}
	utime, err := strconv.Atoi(fields[11])
	if err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	stime, err := strconv.Atoi(fields[12])
	if err != nil {
		return 0, fmt.Errorf("read the CPU time: %w", err)
	}
	return time.Duration(utime+stime) * tick, nil
}
