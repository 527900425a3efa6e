package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/preflight/report"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict"
	"github.com/pitcrew-dev/pitcrew/internal/preflight/verdict/simulate"
)

// speed reads and judges the reports of runs of the largest size on one core. It counts processor time, which other
// work on the machine does not change much.
func speed() error {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	for name, s := range map[string]simulate.Scenario{
		"50 slow":               {Nodes: report.MaxRanks, Slow: 50, Drop: 0.3, Noise: 0.03},
		"1250 slow, all faults": {Nodes: report.MaxRanks, Slow: 1250, Drop: 0.15, Spread: 1, Noise: 0.05, Missing: 0.15, BadLinks: 0.1, Intermittent: 0.8},
	} {
		var files [][]byte
		for _, r := range simulate.New(s, 1).Reports(rounds) {
			data, err := json.Marshal(r)
			if err != nil {
				return err
			}
			files = append(files, data)
		}
		runtime.GC()
		start, err := used()
		if err != nil {
			return err
		}
		var reports []report.Report
		for _, data := range files {
			r, err := report.Parse(data)
			if err != nil {
				return err
			}
			reports = append(reports, r)
		}
		read, err := used()
		if err != nil {
			return err
		}
		v := verdict.Judge("", reports, verdict.Options{})
		end, err := used()
		if err != nil {
			return err
		}
		fmt.Fprintf(os.Stderr, "%d nodes x %d rounds, %s: reports read in %s, judged in %s of one core; %d MB of memory for the whole process; %d nodes named\n",
			report.MaxRanks, rounds, name, (read.cpu - start.cpu).Round(time.Millisecond), (end.cpu - read.cpu).Round(time.Millisecond), end.memory>>20, len(v.Slow))
	}
	return nil
}

// usage is what the process has used so far; memory in bytes, at most at any time.
type usage struct {
	cpu    time.Duration
	memory int64
}

func used() (usage, error) {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return usage{}, fmt.Errorf("ask what the process has used: %w", err)
	}
	return usage{time.Duration(u.Utime.Nano() + u.Stime.Nano()), u.Maxrss << 10}, nil
}
