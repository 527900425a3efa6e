// Command dcgm answers for the NodeCondition DCGMDiagFailed: it judges the last report of NVIDIA's DCGM diagnostics,
// and runs them.
package main

import (
	"fmt"
	"strconv"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("dcgm", "judges the last DCGM diagnostic of this node; with -run it runs one (give it -timeout, e.g. 40m)")
	r := &reader{plugin: p}
	r.source.Flags(p)
	// run sets a flag that makes the plugin run the diagnostic, which is then more than a check.
	run := func(flag *bool) func(string) error {
		return func(text string) (err error) {
			*flag, err = strconv.ParseBool(text)
			p.Work = ""
			if r.run || r.whenIdle {
				p.Work = "diag"
			}
			return err
		}
	}
	p.BoolVar(&r.report, "report", true, "judge the last report; with -report=false and -health, only the health watches are judged")
	p.BoolFunc("run", "run the diagnostic, write the report and judge it", run(&r.run))
	p.BoolFunc("run-when-idle", "the same if the node is idle and the last report is older than -interval; else judge that", run(&r.whenIdle))
	p.DurationVar(&r.interval, "interval", 6*time.Hour, "least time between two diagnostics of -run-when-idle", 0, flags.Year)
	p.DurationVar(&r.maxAge, "max-age", 7*24*time.Hour, "a report older than this is Unknown; 0 for no limit", 0, flags.Year)
	p.BoolVar(&r.health, "health", false, "judge the passive health watches of the host engine at -hostengine as well")
	p.StringVar(&r.hostengine, "hostengine", "", "`address` of this node's host engine, HOST, HOST:PORT or a path (default: none)")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem: a host engine must have the GPUs that the driver lists there")
	p.StringVar(&r.root, "dcgm-root", "", "`directory` below which DCGM is installed (default: /, then -driver-root, then /host)")
	p.StringVar(&r.libraries, "dcgm-libraries", "", "`directory` of libdcgm.so.4 and its modules (default: below -dcgm-root)")
	p.StringVar(&r.nvvs, "nvvs", "", "`directory` of the program nvvs and its plugins (default: $NVVS_BIN_PATH, then below -dcgm-root)")
	p.IntVar(&r.level, "level", 2, "diagnostic level, 1 to 4: seconds, minutes, half an hour, hours", 1, 4)
	p.StringVar(&r.dcgmi, "dcgmi", "", "run this dcgmi `program` instead of the library (named tests, DCGM before 4)")
	p.StringVar(&r.tests, "tests", "", "comma-separated `names` of tests instead of a level; needs -dcgmi")
	p.BoolVar(&r.force, "force", false, "run although the node is not idle")
	p.DurationVar(&r.idleFor, "idle-for", 30*time.Second, "how long the GPUs must be seen idle before a run", 0, flags.Day)
	p.StringVar(&r.podResources, "pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock", "`path` of kubelet's pod resources socket")
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: judge, Driver: r.source.Module})
}

// check refuses flags that do not go together.
func (r *reader) check() error {
	switch {
	case r.tests != "" && r.dcgmi == "":
		return fmt.Errorf("-tests needs -dcgmi: the library runs levels only")
	case !r.report && (r.run || r.whenIdle):
		return fmt.Errorf("-report=false does not go with -run and -run-when-idle, which judge the report that they write")
	case !r.report && !r.health:
		return fmt.Errorf("-report=false leaves nothing to judge without -health")
	case r.health && r.hostengine == "":
		return fmt.Errorf("-health needs -hostengine: a host engine that has just started has watched nothing")
	}
	return nil
}
