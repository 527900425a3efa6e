// Command thermal answers for the NodeCondition GPUOverheated: GPUs that are too hot, or that the hardware slows down
// because of heat or a power brake.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

func main() {
	p := npd.New("thermal", "checks the GPUs' temperatures and slowdowns through NVML")
	r := &reader{plugin: p}
	r.source.Flags(p)
	l := &limits{}
	p.DurationVar(&r.window, "window", 10*time.Minute, "how far back slowdowns count", 10*time.Second, flags.Day)
	p.Float64Var(&l.slowedPercent, "slowed-percent", 10, "a GPU held down for this share of the window needs Inspect", 0.1, 100)
	// gpud's rate for drivers without the counters: 0.6 events a minute, seen once a minute.
	p.Float64Var(&l.slowMinutesPercent, "slow-minutes-percent", 60,
		"without time counters: a GPU seen held down in this share of the window's minutes needs Inspect", 0.1, 100)
	p.Float64Var(&l.minClock, "min-clock", 0, "a GPU that is busy for a window and whose SM clock stays below this share of its highest, in "+
		"`percent`, needs Inspect; 0: clocks are not judged", 0, 100)
	r.source.More = func() bool { return l.minClock > 0 }
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge, Driver: r.source.Module, Shared: r.source.Shared(nvml.Thermal)})
}
