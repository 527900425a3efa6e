// Command podlog answers for the NodeCondition WorkloadGPUError: what the node's pods wrote about its GPUs into their logs.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("podlog", "checks the logs of this node's pods for faults of GPUs")
	r := &reader{plugin: p}
	p.StringVar(&r.podLogs, "pod-logs", "/var/log/pods",
		"`directory` of the pods' logs; nothing outside of it is read, whatever links lie in it")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for the boot id and the uptime")
	p.StringVar(&r.patterns, "patterns", "", "pattern `file` instead of the embedded one, in the same form")
	flags.List(p.FlagSet, &r.namespaces, "namespaces",
		"`list` of namespaces whose pods are watched, separated by commas; * stands for all (default none)", checkNamespace)
	p.DurationVar(&r.window, "window", 10*time.Minute,
		"how far apart lines may be that count together, and how long a peer's fault explains a device's", time.Second, flags.Year)
	p.Int64Var(&r.maxBytes, "max-bytes", 64<<20, "limit in bytes for what one check reads; the next one goes on", 1, 1<<34)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: judge, Wait: r.wait, Clear: r.clear})
}
