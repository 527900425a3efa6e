package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
)

// account is the user of the remediator in the audit log.
const account = "system:serviceaccount:pitcrew:pitcrew-remediator"

// sample is what a process has used so far, and what all remediators have asked for.
type sample struct {
	cluster.Usage
	requests map[string]int
}

func (b *bench) sample(p *cluster.Process) (s sample, err error) {
	if s.Usage, err = cluster.UsageOf(p.PID()); err == nil {
		s.requests, err = b.requests()
	}
	return s, err
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
	s.CPU -= earlier.CPU
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
