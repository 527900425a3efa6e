// Command units answers for the NodeCondition NodeServiceDown: the systemd units that a GPU node needs.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/systemd"
)

func main() {
	p := npd.New("units", "checks systemd units: active, failed, masked, restarting again and again")
	r := &reader{plugin: p}
	p.StringVar(&r.systemd, "systemd", systemd.Socket, "`path` of systemd's private socket; needs root and the host's /run/systemd")
	p.StringVar(&r.sysfs, "sysfs", "/sys", "`path` of the sysfs of the host, to see whether there are NVSwitches")
	p.StringVar(&r.fabricLog, "fabric-manager-log", "/var/log/fabricmanager.log", "`path` of the fabric manager's log, whose last "+
		"error is reported with its failure, if it can be read")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for boot id and uptime")
	flags.List(p.FlagSet, &r.units, "units",
		"`list` of units that must be active, instead of those of a GPU node where they are installed and enabled", nil)

	l := &limits{plugin: p}
	p.Uint64Var(&l.Restarts, "restarts", 3, "restarts within -restart-window that are too many", 0, 1e6)
	p.DurationVar(&l.Window, "restart-window", 10*time.Minute, "how long a restart counts; at most an hour", time.Second, time.Hour)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge})
}
