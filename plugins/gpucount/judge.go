package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "all GPUs are on the PCI bus and known to the driver"}
	// lost is for a GPU that a reboot may bring back, unless it has had one.
	lost := func(subject, text string) {
		if slices.Contains(s.Before, strings.TrimPrefix(subject, "gpu ")) {
			result.Found(conditions.Replace, subject, text+", also after a reboot")
			return
		}
		result.Found(conditions.Reboot, subject, text)
	}
	// What is not there yet may come while the node starts.
	absent := func(subject, text string) {
		if s.Uptime < s.Grace {
			result.NotRead(subject, text)
			return
		}
		lost(subject, text)
	}

	onBus := map[string]bool{}
	for _, d := range s.Bus {
		onBus[d.Address] = true
		if d.Width > 0 && d.Width < d.MaxWidth {
			result.Found(conditions.Inspect, "gpu "+d.Address, fmt.Sprintf("PCIe link is x%d of x%d", d.Width, d.MaxWidth))
		}
	}
	missing := 0
	for _, address := range s.Seen {
		if !onBus[address] {
			missing++
			lost("gpu "+address, "gone from the PCI bus")
		}
	}
	for _, address := range s.Before {
		if !onBus[address] && !slices.Contains(s.Seen, address) {
			missing++
			absent("gpu "+address, "gone from the PCI bus")
		}
	}
	if short := s.Expected - len(s.Bus) - missing; s.Expected > 0 && short > 0 {
		absent("gpu count", fmt.Sprintf("%d of %d GPUs on the PCI bus", len(s.Bus), s.Expected))
	} else if s.Expected > 0 && len(s.Bus) > s.Expected {
		result.Found(conditions.Inspect, "gpu count", fmt.Sprintf("%d GPUs on the PCI bus, expected %d", len(s.Bus), s.Expected))
	}

	if nothing, ok := s.Absent(); ok {
		if nothing.Healthy == "" && s.Mismatch != "" && s.Module != "" && s.MismatchFor >= s.Grace {
			result.Found(conditions.Inspect, "driver", s.Mismatch+": reboot or reload the driver")
			return result
		}
		if f, ok := s.NoDriver(s.Grace); ok {
			result.Found(f.Repair, f.Subject, f.Text)
			return result
		}
		result.Healthy = nothing.Healthy
		if len(s.Bus) == 0 && s.Expected == 0 && !s.MayHaveNone && len(result.Findings) == 0 {
			result.NotRead("gpu count", "no GPU found on the PCI bus, set -expect to how many there should be")
		}
		for _, u := range nothing.Unread {
			result.NotRead(u.Subject, u.Why)
		}
		return result
	}
	for _, g := range s.GPUs {
		switch {
		case g.Lost:
			lost(g.Subject(), "lost by the driver")
		case g.NotInNVML:
			absent(g.Subject(), gpu.Unlisted)
		case s.gone(g):
			absent(g.Subject(), g.NoHandle)
		case g.NoHandle != "":
			result.NotRead(g.Subject(), g.NoHandle)
		case g.Unpowered != "":
			result.Found(conditions.Inspect, g.Subject(), g.Unpowered)
		}
		if g.Minor != nil && len(s.Files) > 0 && !slices.Contains(s.Files, *g.Minor) {
			result.Found(conditions.Inspect, g.Subject(), fmt.Sprintf("has no /dev/nvidia%d", *g.Minor))
		}
		if g.Persistence != nil && !*g.Persistence {
			result.Found(conditions.Monitor, g.Subject(), "persistence mode is off")
		}
		if g.Unread != "" && g.NoHandle == "" {
			result.NotRead(g.Subject(), g.Unread)
		}
	}
	return result
}

// gone reports whether a GPU is as one that is not in NVML: it was asked by its index and by its address, or by every question. Where no
// GPU of several answers otherwise, what hides them may be ours: this check's own access.
func (s snapshot) gone(g gpu.GPU) bool {
	answers := func(g gpu.GPU) bool { return g.NoHandle == "" }
	return g.NoHandle != "" && (len(s.GPUs) == 1 || slices.ContainsFunc(s.GPUs, answers))
}
