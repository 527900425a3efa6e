// Command stall answers for the NodeCondition GPUStalled: GPUs that are busy for many minutes with little power, while
// neither they nor the node's RDMA adapters carry data, as when each rank of a job waits for another one.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

func main() {
	p := npd.New("stall", "checks through NVML and sysfs whether GPUs that are in use stand still")
	l := &limits{}
	r := &reader{plugin: p, limits: l}
	r.source.Flags(p)
	p.DurationVar(&l.For, "for", 15*time.Minute, "how long a GPU stands still until it needs Inspect", time.Second, flags.Day)
	p.Float64Var(&l.BusyPercent, "busy-percent", 95, "utilization from which a GPU is busy", idlePercent+1, 100)
	// Between a GPU that is idle, at about a tenth of its limit, and one that computes, at more than half. Not measured on a GPU.
	p.Float64Var(&l.PowerPercent, "power-percent", 40, "share of its power limit below which a GPU does little", 1, 99)
	p.Float64Var(&l.Traffic, "traffic", 1,
		"`MB/s` below which the NVLinks of a GPU, and the RDMA adapters of the node together, carry no data", 0.001, 1000)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge, Driver: r.source.Module, Shared: r.source.Shared(nvml.Work)})
}
