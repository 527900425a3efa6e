package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits are shares of the window.
type limits struct{ slowedPercent, slowMinutesPercent float64 }

func (l limits) judge(s snapshot) npd.Result {
	if nothing, ok := s.Absent(); ok {
		return nothing
	}
	result := npd.Result{Healthy: "no GPU is too hot or slowed down"}
	for _, g := range s.GPUs {
		add := func(sick bool, repair conditions.Repair, text string) {
			if sick {
				result.Found(repair, g.Subject(), text)
			}
		}
		if why := g.NotRead(); why != "" {
			result.NotRead(g.Subject(), why)
		}
		history := s.History[g.Address]
		if g.Thermal == nil || len(history) == 0 {
			continue
		}
		add(atShutdown(*g.Thermal), conditions.Reboot, "at the temperature of its shutdown")
		// One look at the limit may be a peak.
		if len(history) > 1 {
			before := history[len(history)-2].Thermal
			add(over(g.Thermal.Core, g.Thermal.CoreMax) && over(before.Core, before.CoreMax), conditions.Inspect, "core over its maximum temperature")
			add(over(g.Thermal.HBM, g.Thermal.HBMMax) && over(before.HBM, before.HBMMax), conditions.Inspect, "HBM over its maximum temperature")
			add(noMargin(*g.Thermal) && noMargin(before), conditions.Inspect, "no margin left to its temperature limit")
		}
		add(l.slowed(history, s.Window), conditions.Inspect, "slowed down by heat or power brake")
	}
	if s.Unshared != "" {
		result.NotRead("state", "not kept between runs: "+s.Unshared)
	}
	return result
}

func over(value, limit *int) bool { return value != nil && limit != nil && *value > *limit }

func noMargin(t gpu.Thermal) bool { return t.Margin != nil && *t.Margin <= 0 }

func atShutdown(t gpu.Thermal) bool {
	byTemperature := t.Core != nil && t.Shutdown != nil && *t.Core >= *t.Shutdown
	byMargin := t.Margin != nil && t.ShutdownMargin != nil && *t.ShutdownMargin < 0 && *t.Margin <= *t.ShutdownMargin
	return byTemperature || byMargin
}

// slowed reports whether the hardware held the GPU's clocks down for too much of the window. What was not watched does
// not count.
func (l limits) slowed(history []sample, window time.Duration) bool {
	first, last := history[0], history[len(history)-1]
	if first.Thermal.Slowed != nil && last.Thermal.Slowed != nil {
		slowed := *last.Thermal.Slowed - *first.Thermal.Slowed
		return float64(slowed) >= l.slowedPercent/100*float64(window)
	}
	minutes := map[time.Duration]bool{}
	for _, s := range history {
		if s.Thermal.Slow != nil && *s.Thermal.Slow {
			minutes[s.At/time.Minute] = true
		}
	}
	return float64(len(minutes)) >= l.slowMinutesPercent/100*window.Minutes()
}
