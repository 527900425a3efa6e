// Command gpucount answers for the NodeCondition GPUCountMismatch: the GPUs that the node should have, those on the PCI
// bus, those that the driver knows and those in /dev are the same.
package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

func main() {
	p := npd.New("gpucount", "compares the GPUs expected, on the PCI bus, in NVML and in /dev")
	r := &reader{plugin: p}
	r.source.Flags(p)
	p.Lookup("state-dir").Usage = "`directory` for the GPUs that were seen and those that were missing. " +
		"The default is on a tmpfs, which a reboot empties: then no answer is Replace, and a GPU that the reboot does not bring back " +
		"to the bus is missed only if -expect or the instance type says how many there should be"
	p.StringVar(&r.dev, "dev", "/dev", "`path` of the device files")
	p.IntVar(&r.expect, "expect", unset,
		"`number` of GPUs that the node should have; -1: by -instance-type, and at least one; 0: the same, or none", unset, 1024)
	p.StringVar(&r.instance, "instance-type", "", "`type` of the cloud instance (default: the product name in DMI, or the answer of EC2)")
	p.StringVar(&r.imds, "imds", "169.254.169.254:80",
		"`address` of EC2's instance metadata service, asked for a second on instances without a name in DMI")
	p.StringVar(&r.profiles, "profiles", "", "`file` with rows type|gpus|nics|nvlink|fabric instead of the built-in ones")
	npd.Main(p, npd.Check[snapshot]{
		Read: r.read, Judge: judgeListed, Clear: r.clear, Driver: r.source.Module, Shared: r.source.Shared(nvml.Identity),
	})
}
