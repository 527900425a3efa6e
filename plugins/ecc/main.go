// Command ecc answers for the NodeCondition GPUMemoryError: the memory errors that the GPUs report, and whether the
// driver asks for a reset or a reboot.
package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

func main() {
	p := npd.New("ecc", "checks the GPUs' memory errors and recovery actions through NVML")
	r := &reader{plugin: p}
	r.source.Flags(p)
	l := &limits{}
	// A GPU can retire 64 pages in all, and NVIDIA counts one of 60 as worn (Dynamic Page Retirement, deployment guide).
	p.IntVar(&l.singleBit, "retired-sbe-limit", 60, "more pages than this retired after single-bit errors need Inspect", 0, 1e6)
	p.IntVar(&l.doubleBit, "retired-dbe-limit", 63, "more pages than this retired after double-bit errors need Replace", 0, 1e6)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge, Driver: r.source.Module, Shared: r.source.Shared(nvml.Memory)})
}
