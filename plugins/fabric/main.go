// Command fabric answers for the NodeCondition FabricDegraded: what makes the traffic between GPUs and adapters slow or wrong while all
// ports are up. It reads the kernel and the reports of mlxlink.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("fabric", "checks what GPUDirect needs, EFA's counters and the bit errors of links")
	r := &reader{plugin: p}
	p.StringVar(&r.sysfs, "sysfs", "/sys", "`path` of the sysfs of the host")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for the kind of the NVIDIA driver")
	flags.List(p.FlagSet, &r.modules, "modules", "`list` of kernel modules that must be loaded, e.g. nvidia_peermem,gdrdrv", nil)
	p.BoolVar(&r.acs, "acs", false,
		"judge whether the IOMMU or the access control of PCIe switches is in the way of GPUDirect; not for nodes with VMs")
	p.StringVar(&r.mlxlink, "mlxlink", "", "`folder` with what `mlxlink -d DEVICE -c` has printed, a file for each device, by its name")
	l := &limits{plugin: p}
	p.DurationVar(&l.maxAge, "max-age", 2*time.Hour, "a report of mlxlink older than this is Unknown", time.Second, flags.Year)
	// ibdiagnet's default threshold, and what a link with RS-FEC must reach.
	p.Float64Var(&l.ber, "max-ber", 1e-12, "most bit errors for each bit after error correction", 0, 1)
	// IEEE 802.3: 50 and 100 Gb/s lanes with PAM4, before RS(544,514) corrects.
	p.Float64Var(&l.raw, "max-raw-ber", 2.4e-4, "most bit errors for each bit before the error correction RS(544,514)", 0, 1)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge})
}
