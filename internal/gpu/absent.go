package gpu

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// NoGPU is the healthy line of a node without NVIDIA GPUs.
const NoGPU = "no NVIDIA GPU"

// Absent gives the result of a look that has no GPU to judge: none on the bus, none for the host, or none that NVML
// could be asked about. Only one check, gpucount, takes a missing driver for a fault; the others cannot tell.
func (r Reading) Absent() (result npd.Result, absent bool) {
	switch {
	case len(r.Bus) == 0 && len(r.GPUs) == 0:
		result.Healthy = NoGPU
	case r.passedThrough():
		result.Healthy = "all NVIDIA GPUs are bound to vfio-pci"
	case r.Unread == "" && len(r.GPUs) > 0:
		return result, false
	case r.Module == "":
		result.NotRead(driver, noDriver)
	default:
		result.NotRead("NVML", r.Unread)
	}
	return result, true
}

const driver, noDriver = "driver", "the NVIDIA driver is not loaded"

// NoDriver is the finding of a node with GPUs and no driver, once the node has been up long enough to have one.
func (r Reading) NoDriver(grace time.Duration) (conditions.Finding, bool) {
	missing := len(r.Bus) > 0 && r.Module == "" && !r.passedThrough() && r.Unread != "" && r.Uptime >= grace
	return conditions.Finding{Repair: conditions.Inspect, Subject: driver, Text: noDriver}, missing
}

// passedThrough reports whether all GPUs are for virtual machines.
func (r Reading) passedThrough() bool {
	for _, d := range r.Bus {
		if d.Driver != "vfio-pci" {
			return false
		}
	}
	return len(r.Bus) > 0
}
