// Command xid answers for the NodeCondition GPUXidError: what the NVIDIA driver wrote into the kernel log of this boot.
package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("xid", "checks the kernel log of this boot for Xids and lost GPUs")
	r := &reader{plugin: p}
	p.StringVar(&r.kmsg, "kmsg", "/dev/kmsg", "kernel log `path`; a file or FIFO with records in the same form serves as well")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for the boot id")
	p.BoolVar(&r.allowInjected, "allow-injected", false, "accept records that user space wrote into the kernel log (tests and drills)")
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: judge, Wait: r.wait, Clear: r.clear})
}
