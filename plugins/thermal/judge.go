package main

import (
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

type limits struct {
	// slowedPercent and slowMinutesPercent are shares of the window.
	slowedPercent, slowMinutesPercent float64
	// minClock is a share of a GPU's highest clock, 0 if clocks are not judged.
	minClock float64
}

func (l *limits) judge(s snapshot) npd.Result {
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
		coreOver := func(t gpu.Thermal) bool { return over(t.Core, t.CoreMax) }
		hbmOver := func(t gpu.Thermal) bool { return over(t.HBM, t.HBMMax) }
		add(confirmed(history, coreOver), conditions.Inspect, "core over its maximum temperature")
		add(confirmed(history, hbmOver), conditions.Inspect, "HBM over its maximum temperature")
		add(confirmed(history, noMargin), conditions.Inspect, "no margin left to its temperature limit")
		add(l.slowed(history, s.Window), conditions.Inspect, "slowed down by heat or power brake")
		if reasons, low := l.lowClock(history, s.Window); low {
			add(true, conditions.Inspect, "SM clock stays low while it is busy, "+words(reasons))
		}
		if now := *g.Thermal; coreOver(now) || hbmOver(now) || noMargin(now) || slow(now) {
			result.Unconfirmed = true
		}
	}
	if s.Unshared != "" {
		result.NotRead("state", "not kept between runs: "+s.Unshared)
	}
	return result
}

// confirmAfter is the least time between two looks that confirm each other. One look over a limit may be a peak, and two
// looks at one instant, by a second monitor or a person, see the same peak twice. It is longer than such a peak and shorter
// than the pause between two looks of one monitor, which is at least 15 s.
const confirmAfter = 10 * time.Second

// confirmed reports whether a GPU was over a limit in this look and in all looks back to one that is old enough.
func confirmed(history []sample, over func(gpu.Thermal) bool) bool {
	now := history[len(history)-1].At
	for _, s := range slices.Backward(history) {
		if !over(s.Thermal) {
			return false
		}
		if now-s.At >= confirmAfter {
			return true
		}
	}
	return false
}

func over(value, limit *int) bool { return value != nil && limit != nil && *value > *limit }

func noMargin(t gpu.Thermal) bool { return t.Margin != nil && *t.Margin <= 0 }

func slow(t gpu.Thermal) bool { return t.Slow != nil && *t.Slow }

func atShutdown(t gpu.Thermal) bool {
	byTemperature := t.Core != nil && t.Shutdown != nil && *t.Core >= *t.Shutdown
	byMargin := t.Margin != nil && t.ShutdownMargin != nil && *t.ShutdownMargin < 0 && *t.Margin <= *t.ShutdownMargin
	return byTemperature || byMargin
}

// slowed reports whether the hardware held the GPU's clocks down for too much of the window. What was not watched does
// not count.
func (l *limits) slowed(history []sample, window time.Duration) bool {
	first, last := history[0], history[len(history)-1]
	if first.Thermal.Slowed != nil && last.Thermal.Slowed != nil {
		slowed := *last.Thermal.Slowed - *first.Thermal.Slowed
		return float64(slowed) >= l.slowedPercent/100*float64(window)
	}
	minutes := map[time.Duration]bool{}
	for _, s := range history {
		if slow(s.Thermal) {
			minutes[s.At/time.Minute] = true
		}
	}
	return float64(len(minutes)) >= l.slowMinutesPercent/100*window.Minutes()
}
