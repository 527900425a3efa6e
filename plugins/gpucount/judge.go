package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// judgement is a snapshot with what follows from it.
type judgement struct {
	snapshot
	npd.Result
}

func judge(s snapshot) npd.Result {
	j := judgement{s, npd.Result{Healthy: "all GPUs are on the PCI bus and known to the driver"}}
	j.bus()
	if nothing, ok := s.Absent(); ok {
		j.noGPU(nothing)
		return j.Result
	}
	for _, g := range s.GPUs {
		j.reach(g)
		j.setup(g)
	}
	return j.Result
}

// lost is for a GPU that a reboot may bring back, unless it has had one.
func (j *judgement) lost(subject, text string) {
	if slices.Contains(j.Before, strings.TrimPrefix(subject, "gpu ")) {
		j.Found(conditions.Replace, subject, text+", also after a reboot")
		return
	}
	j.Found(conditions.Reboot, subject, text)
}

// missing is for a GPU that may still come while the node starts.
func (j *judgement) missing(subject, text string) {
	if j.Uptime < j.Grace {
		j.NotRead(subject, text)
		return
	}
	j.lost(subject, text)
}

// bus compares the PCI bus with what was there before and with what is expected.
func (j *judgement) bus() {
	onBus := map[string]bool{}
	for _, d := range j.Bus {
		onBus[d.Address] = true
		if d.Width > 0 && d.Width < d.MaxWidth {
			j.Found(conditions.Inspect, "gpu "+d.Address, fmt.Sprintf("PCIe link is x%d of x%d", d.Width, d.MaxWidth))
		}
	}
	gone := 0
	for _, address := range j.Seen {
		if !onBus[address] {
			gone++
			j.lost("gpu "+address, "gone from the PCI bus")
		}
	}
	for _, address := range j.Before {
		if !onBus[address] && !slices.Contains(j.Seen, address) {
			gone++
			j.missing("gpu "+address, "gone from the PCI bus")
		}
	}
	if short := j.Expected - len(j.Bus) - gone; j.Expected > 0 && short > 0 {
		j.missing("gpu count", fmt.Sprintf("%d of %d GPUs on the PCI bus", len(j.Bus), j.Expected))
	} else if j.Expected > 0 && len(j.Bus) > j.Expected {
		j.Found(conditions.Inspect, "gpu count", fmt.Sprintf("%d GPUs on the PCI bus, expected %d", len(j.Bus), j.Expected))
	}
}

// noGPU judges a node whose driver shows no GPU, for the reason in nothing.
func (j *judgement) noGPU(nothing npd.Result) {
	if nothing.Healthy == "" && j.Mismatch != "" && j.Module != "" && j.MismatchFor >= j.Grace {
		j.Found(conditions.Inspect, "driver", j.Mismatch+": reboot or reload the driver")
		return
	}
	if f, ok := j.NoDriver(j.Grace); ok {
		j.Found(f.Repair, f.Subject, f.Text)
		return
	}
	j.Healthy = nothing.Healthy
	if len(j.Bus) == 0 && j.Expected == 0 && !j.MayHaveNone && len(j.Findings) == 0 {
		j.NotRead("gpu count", "no GPU found on the PCI bus, set -expect to how many there should be")
	}
	j.Unread = append(j.Unread, nothing.Unread...)
}

// reach judges whether the driver reaches a GPU.
func (j *judgement) reach(g gpu.GPU) {
	switch {
	case g.Lost:
		j.lost(g.Subject(), gpu.IsLost)
	case g.NotInNVML:
		j.missing(g.Subject(), gpu.Unlisted+j.noDevices())
	case j.gone(g):
		j.missing(g.Subject(), g.NoHandle)
	case g.NoHandle != "":
		j.NotRead(g.Subject(), g.NoHandle)
	case g.Unusable != "":
		j.Found(conditions.Inspect, g.Subject(), g.Unusable)
	}
}

// setup judges the device file and the persistence mode of a GPU.
func (j *judgement) setup(g gpu.GPU) {
	if g.Minor != nil && len(j.Files) > 0 && !slices.Contains(j.Files, *g.Minor) {
		j.Found(conditions.Inspect, g.Subject(), fmt.Sprintf("has no /dev/nvidia%d", *g.Minor))
	}
	if g.Persistence != nil && !*g.Persistence {
		j.Found(conditions.Monitor, g.Subject(), "persistence mode is off")
	}
	if g.Unread != "" && g.NoHandle == "" {
		j.NotRead(g.Subject(), g.Unread)
	}
}

// noDevices returns nvidia-smi's words where NVML has not one GPU.
func (s snapshot) noDevices() string {
	if slices.ContainsFunc(s.GPUs, func(g gpu.GPU) bool { return !g.NotInNVML }) {
		return ""
	}
	return ", No devices were found"
}

// gone reports whether a GPU is as one that is not in NVML: it was asked by its index and by its address, or by every question. Where no
// GPU of several answers otherwise, what hides them may be ours: this check's own access.
func (s snapshot) gone(g gpu.GPU) bool {
	answers := func(g gpu.GPU) bool { return g.NoHandle == "" }
	return g.NoHandle != "" && (len(s.GPUs) == 1 || slices.ContainsFunc(s.GPUs, answers))
}
