// Command nvlink answers for the NodeCondition NVLinkDown: links between GPUs that are down, and GPUs that are not part
// of their NVSwitch fabric.
package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

func main() {
	p := npd.New("nvlink", "checks the GPUs' NVLinks and fabric registration through NVML")
	r := &reader{plugin: p}
	r.source.Flags(p)
	// Growing counters are no more than Monitor, and most nodes do not report that.
	r.source.More = func() bool { return p.MinRepair <= conditions.Monitor || p.Dumps() }
	p.IntVar(&r.links, "links", -1,
		"how many links each GPU should have; 0: none, their state is not judged; -1: by model, else as many as its best peer", -1, 1024)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: judge, Driver: r.source.Module, Shared: r.source.Shared(nvml.NVLink)})
}
