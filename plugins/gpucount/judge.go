package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "all GPUs are on the PCI bus and known to the driver"}
	add := func(repair conditions.Repair, subject, format string, a ...any) {
		result.Findings = append(result.Findings, conditions.Finding{Repair: repair, Subject: subject, Text: fmt.Sprintf(format, a...)})
	}
	// lost is for a GPU that a reboot may bring back, unless it has had one.
	lost := func(subject, text string) {
		if slices.Contains(s.Before, strings.TrimPrefix(subject, "gpu ")) {
			add(conditions.Replace, subject, "%s, also after a reboot", text)
			return
		}
		add(conditions.Reboot, subject, "%s", text)
	}
	// What is not there yet may come while the node starts.
	absent := func(subject, text string) {
		if s.Uptime < s.Grace {
			result.Unread = append(result.Unread, npd.Unread{Subject: subject, Why: text})
			return
		}
		lost(subject, text)
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
		switch {
		case g.Lost:
			lost(g.Subject(), "lost by the driver")
		case g.NotInNVML:
			absent(g.Subject(), "on the PCI bus but not in NVML")
		}
		if g.Minor != nil && len(s.Files) > 0 && !slices.Contains(s.Files, *g.Minor) {
			add(conditions.Inspect, g.Subject(), "has no /dev/nvidia%d", *g.Minor)
		}
		if g.Persistence != nil && !*g.Persistence {
			add(conditions.Monitor, g.Subject(), "persistence mode is off")
		}
		if g.Unread != "" {
			result.Unread = append(result.Unread, npd.Unread{Subject: g.Subject(), Why: g.Unread})
		}
	}
	return result
}
