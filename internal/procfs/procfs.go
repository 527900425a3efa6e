// Package procfs reads what the kernel shows of processes and of mounts. Nothing here waits for the memory of a process, as its command
// line does: that of one that sleeps in the kernel may never come.
package procfs

import (
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
)

// Attribute returns a file of a process or thread without the white space around it; "" if it cannot be read: each may end at any moment.
func Attribute(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// Stat is what proc_pid_stat(5) says of a process or thread; the zero value: nothing.
type Stat struct {
	// State is one letter: D sleeps in the kernel, Z has ended.
	State string
	// Threads is the number of threads of the process.
	Threads int
	// Start is when it started, in ticks of the clock after the boot.
	Start string
}

// ParseStat reads a stat file.
func ParseStat(stat string) Stat {
	// The name is in parentheses and may hold anything.
	fields := strings.Fields(stat[strings.LastIndex(stat, ")")+1:])
	if len(fields) < 20 {
		return Stat{}
	}
	threads, _ := strconv.Atoi(fields[17])
	return Stat{State: fields[0], Threads: threads, Start: fields[19]}
}

// PendingKill reports whether SIGKILL is among the pending signals of a status file, proc_pid_status(5).
func PendingKill(status string) bool {
	for line := range strings.Lines(status) {
		key, value, _ := strings.Cut(line, ":")
		if key != "SigPnd" && key != "ShdPnd" {
			continue
		}
		mask, err := strconv.ParseUint(strings.TrimSpace(value), 16, 64)
		if err == nil && mask&(1<<(syscall.SIGKILL-1)) != 0 {
			return true
		}
	}
	return false
}

// function is what proc_pid_wchan(5) shows to those who may see it; others get 0.
var function = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,60}$`)

// Wchan returns the function of the kernel in which the thread of a folder sleeps; "" where that is not shown.
func Wchan(thread string) string {
	if in := Attribute(filepath.Join(thread, "wchan")); function.MatchString(in) {
		return in
	}
	return ""
}

// InPod reports whether the process of a folder is one of a pod.
func InPod(process string) bool {
	return strings.Contains(Attribute(filepath.Join(process, "cgroup")), "kubepods")
}
