// Command metax answers for the NodeCondition MetaXGPUUnhealthy: MetaX GPUs through mx-smi and the kernel log.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/daily"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("metax", "checks MetaX GPUs: number, temperature, retired pages, the driver's errors in the kernel log")
	r := &reader{plugin: p}
	p.StringVar(&r.tool, "mx-smi", "/opt/mxdriver/bin/mx-smi", "`path` of the vendor's tool")
	p.StringVar(&r.sysfs, "sysfs", "/sys", "`path` of the sysfs of the host")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for boot id and uptime")
	p.StringVar(&r.kmsg, "kmsg", "/dev/kmsg", "kernel log `path`")
	p.BoolVar(&r.allowInjected, "allow-injected", false, "accept records that user space wrote into the kernel log (tests and drills)")
	p.TextVar(&r.at, "at", daily.Schedule{}, "run the tool once a day at this `HH:MM` and repeat what it found; by default at every check")
	p.DurationVar(&r.spread, "at-spread", 30*time.Minute, "how far the daily runs of the nodes are spread after -at", 0, flags.Day)

	l := &limits{plugin: p}
	p.IntVar(&l.Count, "count", unset,
		"`number` of GPUs that the node must have; -1: those on the PCI bus, and at least one; 0: the same, or none", unset, 1024)
	p.Float64Var(&l.Hotspot, "hotspot", 85, "hotspot temperature in degrees `C` that is too hot", 1, 200)
	p.TextVar(&l.Pages, "ecc-limit", pageLimit{">", 64}, "double-bit retired pages that are too many, `>n` (kcover) or >=n (ModelArts)")
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge, Clear: r.clear, Driver: r.driver})
}
