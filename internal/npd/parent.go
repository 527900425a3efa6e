package npd

import (
	"fmt"
	"os"
	"strconv"
	"strings"
)

// comm is how the kernel names an NPD process: 15 bytes of the binary's name.
const comm = "node-problem-de"

// process identifies a process beyond the reuse of its number: boot-relative start time in clock ticks.
type process struct {
	pid   int
	start string
}

func (p process) String() string { return fmt.Sprintf("%d-%s", p.pid, p.start) }

func (p process) isParent() bool { return os.Getppid() == p.pid }

// parentNPD returns the parent process if it is a Node Problem Detector. By hand there is a shell instead, and under
// `kubectl exec` the parent is in another PID namespace and reads as 0.
func parentNPD() (process, bool) {
	pid := os.Getppid()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return process{}, false
	}
	s, err := parseStat(string(data))
	return process{pid, s.start}, err == nil && s.name == comm
}

// stat is what we use of /proc/PID/stat, see proc_pid_stat(5).
type stat struct {
	name, state string
	group       int
	// start is the boot-relative start time in clock ticks.
	start string
}

// parseStat reads fields 2, 3, 5 and 22. The name is in parentheses and may itself hold spaces and parentheses.
func parseStat(text string) (stat, error) {
	open, end := strings.IndexByte(text, '('), strings.LastIndexByte(text, ')')
	if open < 0 || end < open {
		return stat{}, fmt.Errorf("malformed stat %.80q", text)
	}
	fields := strings.Fields(text[end+1:])
	// Field 3 is the first after the name.
	const state, group, startTime = 0, 2, 19
	if len(fields) <= startTime {
		return stat{}, fmt.Errorf("malformed stat %.80q", text)
	}
	g, err := strconv.Atoi(fields[group])
	if err != nil {
		return stat{}, fmt.Errorf("malformed stat %.80q: %w", text, err)
	}
	return stat{text[open+1 : end], fields[state], g, fields[startTime]}, nil
}
