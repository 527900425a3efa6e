// Command hca answers for the NodeCondition HCAPortDown: the InfiniBand, RoCE and EFA ports of the node.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("hca", "checks the ports of InfiniBand, RoCE and EFA adapters against what is expected of the node")
	r := &reader{plugin: p, adapters: map[string]adapter{}}
	p.StringVar(&r.sysfs, "sysfs", "/sys", "`path` of the sysfs of the host")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem of the host, for boot id and uptime")
	p.StringVar(&r.kmsg, "kmsg", "/dev/kmsg", "kernel log `path`, for the driver's events about cables and optics")
	p.StringVar(&r.tool, "ibv-devinfo", "",
		"`path` of ibv_devinfo: judge its output instead of sysfs; every adapter of -expect, by default every one it lists, must be PORT_ACTIVE")
	flags.List(p.FlagSet, &r.ignore, "ignore", "`list` of adapters that are not judged, e.g. mlx5_8,mlx5_9", nil)
	p.DurationVar(&r.detailsEvery, "details-every", 10*time.Second,
		"pause between two reads of all that is known of the ports; each check reads their states, which shows a loss of a second",
		0, flags.Day)
	p.DurationVar(&r.countersEvery, "counters-every", time.Minute,
		"pause between two reads of the error counters; each read is an access to the firmware", 0, flags.Day)

	e := &expectation{plugin: p}
	flags.List(p.FlagSet, &e.Names, "expect",
		"`list` of adapters or ports that must be ACTIVE, e.g. mlx5_0,mlx5_1:1; by default a port must be if it was in this boot or if most "+
			"ports of its kind are", nil)
	p.IntVar(&e.Count, "count", unset, "`number` of ports that must be ACTIVE, at -rate and -link-layer if they are given; 0: none",
		unset, 1024)
	p.Float64Var(&e.Rate, "rate", 0, "lowest rate of a port in `Gb/s`; 0: not lower than it was in this boot", 0, 1e5)
	p.StringVar(&e.Link, "link-layer", "", "expected link layer, InfiniBand or Ethernet")
	p.IntVar(&e.EFA, "efa", unset,
		"`number` of EFA devices that must be on the PCI bus; by default, where there is one, as many as the instance type in DMI has",
		unset, 1024)
	p.TextVar(&e.Profile, "profile", profile{},
		"`kind` of node, e.g. h100 or p5.48xlarge: sets -count, -rate and -efa where they are not given")
	p.DurationVar(&e.DropAfter, "drop-after", 4*time.Minute, "how long a port is down until the message says that it dropped", 0, flags.Day)
	p.IntVar(&e.Flaps, "flaps", 3, "down-up cycles in 12 h that make a port unreliable until -clear or the next boot, "+
		"and losses of the link in 1 h, by its counter, that need inspection", 1, 1e6)
	r.flaps = &e.Flaps
	p.Uint64Var(&e.SymbolErrors, "symbol-errors", 120, "symbol errors per hour that a port may have", 0, 1e12)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: e.judge, Clear: r.clear, Driver: r.driver, UsesDriver: r.usesDriver})
}
