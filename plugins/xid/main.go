// Command xid answers for the NodeCondition GPUXidError: what the NVIDIA driver wrote into the kernel log of this boot.
// With -hardware it answers for KernelHardwareError instead: what other parts of the kernel wrote about failing
// hardware. Both read the same log and share one state.
package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid/explain"
)

func main() {
	p := npd.New("xid", "checks the kernel log of this boot for Xids, SXids and lost GPUs")
	r := &reader{plugin: p}
	p.BoolVar(&r.hardware, "hardware", false, "report the kernel's lines about failing hardware instead of those of the GPU driver")
	p.BoolVar(&r.storms, "storms", false,
		"with -hardware, also report corrected errors and timeouts that repeat, and a kubelet or runtime that hangs")
	p.StringVar(&r.kmsg, "kmsg", "/dev/kmsg", "kernel log `path`; a file or FIFO with records in the same form works, too")
	p.StringVar(&r.text, "log", "", "judge this plain text log `file` instead; nothing else of this host is touched")
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem, for the boot id and the driver's list of GPUs")
	p.BoolVar(&r.allowInjected, "allow-injected", false, "accept records that user space wrote into the kernel log (tests and drills)")
	p.BoolVar(&r.journal, "journal", false,
		"read from the systemd journal what the kernel's ring had lost before the first check of this boot; Unknown until that is done")
	p.StringVar(&r.journalctl, "journalctl", "journalctl", "`path` of journalctl")
	p.StringVar(&r.journalDir, "journal-dir", "", "`directory` of the journal, if it is not where journalctl looks")
	p.StringVar(&r.overridesFile, "overrides", "", "CSV `file` with the site's own classes: kind,code,repair,note")
	p.Print("explain",
		"explain an Xid (-explain 79), an SXid (-explain sxid 22003) or the words of a message or kernel line, and exit 0", explainWords)
	p.Print("gpus", "print the driver's list of GPUs as JSON and exit 0", func([]string) (string, error) {
		list, err := json.Marshal(listGPUs(r.procfs))
		return string(list) + "\n", err
	})
	p.Print("list", "print the Xid catalogue and exit 0", func([]string) (string, error) { return explain.List(), nil })
	npd.Main(p, npd.Check[snapshot]{
		Read:  r.read,
		Judge: func(s snapshot) npd.Result { return judge(s, r.hardware) },
		Wait:  r.wait,
		Clear: r.clear,
	})
}

// explainWords takes a code, or the words of a message or of a kernel line.
func explainWords(args []string) (string, error) {
	what := strings.Join(args, " ")
	if text := cmp.Or(explain.Code(what), explain.Words(what)); text != "" {
		return text, nil
	}
	return "", fmt.Errorf("explain what? `-explain 79`, `-explain sxid 22003`, or words of a message or of a kernel line, not %q", what)
}
