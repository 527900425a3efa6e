package main

import (
	"fmt"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "all GPUs are on the PCI bus and known to the driver"}
	add := func(repair conditions.Repair, subject, format string, a ...any) {
		result.Findings = append(result.Findings, conditions.Finding{Repair: repair, Subject: subject, Text: fmt.Sprintf(format, a...)})
	}
	// What is not there yet may come while the node starts.
	absent := func(subject, format string, a ...any) {
		if s.Uptime < s.Grace {
			result.Unread = append(result.Unread, npd.Unread{Subject: subject, Why: fmt.Sprintf(format, a...)})
			return
		}
		add(conditions.Reboot, subject, format, a...)
	}

	onBus := map[string]bool{}
	for _, d := range s.Bus {
		onBus[d.Address] = true
		if d.Width > 0 && d.Width < d.MaxWidth {
			add(conditions.Inspect, "gpu "+d.Address, "PCIe link is x%d of x%d", d.Width, d.MaxWidth)
		}
	}
	missing := 0
	for _, address := range s.Seen {
		if !onBus[address] {
			missing++
			add(conditions.Reboot, "gpu "+address, "gone from the PCI bus")
		}
	}
	if short := s.Expected - len(s.Bus) - missing; s.Expected > 0 && short > 0 {
		absent("gpu count", "%d of %d GPUs on the PCI bus", len(s.Bus), s.Expected)
	} else if s.Expected > 0 && len(s.Bus) > s.Expected {
		add(conditions.Inspect, "gpu count", "%d GPUs on the PCI bus, expected %d", len(s.Bus), s.Expected)
	}

	if nothing, ok := s.Absent(); ok {
		if f, ok := s.NoDriver(s.Grace); ok {
			result.Findings = append(result.Findings, f)
			return result
		}
		result.Healthy = nothing.Healthy
		result.Unread = append(result.Unread, nothing.Unread...)
		return result
	}
	for _, g := range s.GPUs {
		known(s, g, add, absent)
		if g.Unread != "" {
			result.Unread = append(result.Unread, npd.Unread{Subject: g.Subject(), Why: g.Unread})
		}
	}
	return result
}

// known compares what the driver says about a GPU on the bus.
func known(s snapshot, g gpu.GPU, add func(conditions.Repair, string, string, ...any), absent func(string, string, ...any)) {
	switch {
	case g.Lost:
		add(conditions.Reboot, g.Subject(), "lost by the driver")
	case g.NotInNVML:
		absent(g.Subject(), "on the PCI bus but not in NVML")
	}
	if g.Minor != nil && len(s.Files) > 0 && !slices.Contains(s.Files, *g.Minor) {
		add(conditions.Inspect, g.Subject(), "has no /dev/nvidia%d", *g.Minor)
	}
	if g.Persistence != nil && !*g.Persistence {
		add(conditions.Monitor, g.Subject(), "persistence mode is off")
	}
}
