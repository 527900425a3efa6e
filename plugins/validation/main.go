// Command validation answers for the NodeCondition NodeValidationFailed: what other tools, which validate nodes and act on none, have said
// of this node. It reads their reports and runs nothing. See docs/adr/0039-verdicts-of-other-tools.md.
package main

import (
	"os"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("validation", "judges the reports of NVIDIA Health Validation and of NVIDIA's Cluster Readiness Engine about this node")
	r := &reader{}
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for boot id and uptime")
	p.StringVar(&r.node, "node", os.Getenv("NODE_NAME"), "`name` of this node in the lists of the Cluster Readiness Engine")
	p.StringVar(&r.verdict, "node-verdict", "", "`file` with what Health Validation has printed on this node, a NodeVerdict in JSON")
	p.StringVar(&r.failed, "nvcre-failed", "", "`file` with failed-nodes.json.gz of a certification of the Cluster Readiness Engine, "+
		"as it is or unpacked")
	p.StringVar(&r.succeeded, "nvcre-succeeded", "", "`file` with succeeded-nodes.csv.gz of the same certification; "+
		"without it a node that has not failed is Unknown")
	l := &limits{}
	p.DurationVar(&l.maxAge, "max-age", 7*24*time.Hour, "a report older than this is Unknown; 0 for no limit", 0, flags.Year)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge})
}
