package main

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// account is the user of the remediator in the audit log.
const account = "system:serviceaccount:pitcrew:pitcrew-remediator"

// sample is what a process has used so far, and what all remediators have asked for.
type sample struct {
	at        time.Time
	cpu       time.Duration
	rss, peak float64 // MB
	requests  map[string]int
}

func (b *bench) sample(p *cluster.Process) (sample, error) {
	s, err := usedBy(p.PID())
	if err == nil {
		s.requests, err = b.requests()
	}
	return s, err
}

// usedBy is what a process has used so far.
func usedBy(pid int) (sample, error) {
	s := sample{at: time.Now()}
	var err error
	if s.cpu, err = cpuTime(pid); err != nil {
		return s, err
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return s, fmt.Errorf("read the memory of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(status)) {
		var kb float64
		if _, err := fmt.Sscanf(line, "VmRSS: %f kB", &kb); err == nil {
			s.rss = kb / 1024
		}
		if _, err := fmt.Sscanf(line, "VmHWM: %f kB", &kb); err == nil {
			s.peak = kb / 1024
		}
	}
	return s, nil
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

// requests counts the requests of the remediators by verb and resource. Watches are not counted, nor what concerns the lease.
func (b *bench) requests() (map[string]int, error) {
	log, err := b.AuditLog()
	if err != nil {
		return nil, err
	}
	counts := map[string]int{}
	for _, a := range log {
		if a.User.Username == account && a.Verb != "watch" && a.ObjectRef.Resource != "leases" {
			counts[a.Verb+" "+a.ObjectRef.Resource]++
		}
	}
	return counts, nil
}

// since is what was used and asked for after an earlier sample.
func (s sample) since(earlier sample) sample {
	s.cpu -= earlier.cpu
	requests := map[string]int{}
	for what, n := range s.requests {
		if n -= earlier.requests[what]; n > 0 {
			requests[what] = n
		}
	}
	s.requests = requests
	return s
}

func (s sample) total() int {
	total := 0
	for _, n := range s.requests {
		total += n
	}
	return total
}

// String is the number of requests, and of which kinds.
func (s sample) String() string {
	if s.total() == 0 {
		return "0"
	}
	var kinds []string
	for _, what := range slices.SortedFunc(maps.Keys(s.requests), func(a, b string) int { return s.requests[b] - s.requests[a] }) {
		kinds = append(kinds, fmt.Sprintf("%s %d", what, s.requests[what]))
	}
	return fmt.Sprintf("%d (%s)", s.total(), strings.Join(kinds, ", "))
}

// percent is CPU time in percent of one core over a time.
func percent(cpu, over time.Duration) float64 { return 100 * cpu.Seconds() / over.Seconds() }

func msPer(cpu time.Duration, n int) float64 {
	return float64(cpu) / float64(time.Millisecond) / float64(n)
}
