// Command ascend answers for the NodeCondition AscendNPUUnhealthy: Huawei Ascend NPUs through npu-smi and hccn_tool.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/daily"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("ascend", "checks Huawei Ascend NPUs: number, health, isolated HBM pages, network links")
	r := &reader{plugin: p, only: all}
	p.StringVar(&r.tool, "npu-smi", "/usr/local/sbin/npu-smi", "`path` of npu-smi")
	p.StringVar(&r.hccn, "hccn-tool", "/usr/local/Ascend/driver/tools/hccn_tool", "`path` of hccn_tool")
	p.StringVar(&r.sysfs, "sysfs", "/sys", "`path` of the sysfs of the host")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for boot id and uptime")
	p.StringVar(&r.podResources, "pod-resources", "", "`path` of kubelet's socket: it must offer as many NPUs as there are")
	flags.List(p.FlagSet, &r.only, "only", "`list` of what is checked", checkSubject)
	p.TextVar(&r.at, "at", daily.Schedule{}, "run the tools once a day at this `HH:MM` and repeat what they found; by default at every check")
	p.DurationVar(&r.spread, "at-spread", 30*time.Minute, "how far the daily runs of the nodes are spread after -at", 0, flags.Day)

	l := &limits{plugin: p}
	p.IntVar(&l.Count, "count", unset, "`number` of NPUs there must be; -1: as many as in this boot, and at least one; 0: the same, or none",
		unset, 1024)
	p.Uint64Var(&l.Pages, "isolated-pages", 64, "HBM pages isolated for double-bit ECC errors at which an NPU is to be replaced", 1, 1e6)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge, Clear: r.clear, Driver: r.driver})
}
