package main

import (
	"strings"
	"time"
)

// busyPercent is the utilization from which a GPU is busy, as in the check stall.
const busyPercent = 95

// fewestLooks is how many looks a window must have at least.
const fewestLooks = 5

// lowClock reports whether a GPU was busy and its clock low in all looks of nearly a window, and the reasons that the driver gave in all
// of them. A run that does not judge clocks does not read them.
func (l *limits) lowClock(history []sample, window time.Duration) (reasons uint64, low bool) {
	reasons = allReasons
	var first, last time.Duration
	looks := 0
	for _, s := range history {
		c := s.Thermal.Clocks
		if c == nil {
			continue
		}
		if c.SM == nil || c.Most == nil || c.Busy == nil || *c.Busy < busyPercent || float64(*c.SM) >= l.minClock/100*float64(*c.Most) {
			return 0, false
		}
		if s.Thermal.Reasons != nil {
			reasons &= *s.Thermal.Reasons
		} else {
			reasons = 0
		}
		if looks == 0 {
			first = s.At
		}
		last = s.At
		looks++
	}
	return reasons, l.minClock > 0 && looks >= fewestLooks && last-first >= window*3/4
}

// allReasons are the bits that have a word.
const allReasons = 1<<9 - 1

// words names the bits of nvmlClocksEventReasons (nvml.h) as `nvidia-smi -q -d PERFORMANCE` does.
func words(reasons uint64) string {
	var held []string
	for bit, word := range []string{
		"Idle", "Applications Clocks Setting", "SW Power Cap", "HW Slowdown", "Sync Boost", "SW Thermal Slowdown", "HW Thermal Slowdown",
		"HW Power Brake Slowdown", "Display Clock Setting",
	} {
		if reasons>>bit&1 != 0 {
			held = append(held, word)
		}
	}
	if held == nil {
		return "the driver gives no reason"
	}
	return "reasons of the driver: " + strings.Join(held, ", ")
}
