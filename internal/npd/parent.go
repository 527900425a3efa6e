package npd

import (
	"fmt"
	"os"
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
	name, start, err := parseStat(string(data))
	return process{pid, start}, err == nil && name == comm
}

// parseStat returns the name and the start time of /proc/PID/stat, fields 2 and 22 of proc_pid_stat(5). The name is in
// parentheses and may itself hold spaces and parentheses.
func parseStat(stat string) (name, start string, err error) {
	open, end := strings.IndexByte(stat, '('), strings.LastIndexByte(stat, ')')
	if open < 0 || end < open {
		return "", "", fmt.Errorf("malformed stat %.80q", stat)
	}
	fields := strings.Fields(stat[end+1:])
	const startTime = 22 - 3
	if len(fields) <= startTime {
		return "", "", fmt.Errorf("malformed stat %.80q", stat)
	}
	return stat[open+1 : end], fields[startTime], nil
}
