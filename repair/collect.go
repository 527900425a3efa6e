package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/internal/systemd"
	"github.com/pitcrew-dev/pitcrew/internal/version"
	"github.com/pitcrew-dev/pitcrew/repair/collect"
	"github.com/pitcrew-dev/pitcrew/repair/evidence"
	"github.com/pitcrew-dev/pitcrew/repair/program"
)

// collectAction is the command collect. It changes nothing on the node but the directory of the bundles.
type collectAction struct {
	bundle  collect.Bundle
	node    evidence.Node
	maxMiB  int64
	timeout time.Duration
}

// finishing is how much of the time is left for the end of the bundle: the last part that hangs, and the disk.
const finishing = 10 * time.Second

// hostSysfs is where a template mounts the host's: that of a container has the RDMA devices of its network namespace.
const hostSysfs = "/host/sys"

func (a *collectAction) flags(f *flags.Set) {
	bundleFlags(f, &a.bundle.Dir, &a.bundle.Node)
	f.IntVar(&a.bundle.Keep, "keep", 3, "how many bundles of the node are kept, the newest", 1, 1000)
	f.IntVar(&a.bundle.MinFree, "min-free", 15, "how much of the disk stays free, in percent; the kubelet evicts pods at 10 or 15", 0, 99)
	f.Int64Var(&a.maxMiB, "max-size", 64, "how large the bundle may become, in MiB", 1, 1024)
	f.DurationVar(&a.timeout, "timeout", 2*time.Minute, "limit of the bundle", 11*time.Second, time.Hour)
	f.StringVar(&a.node.StateDir, "state-dir", "/run/pitcrew", "state `directory` of the node's plugins")
	f.StringVar(&a.node.Plugins, "plugins", "", "`directory` of the plugins (default: that of this program)")
	f.StringVar(&a.node.Sysfs, "sysfs", "", "`path` of the sysfs of the host (default: "+hostSysfs+" if it is there, else /sys)")
	f.StringVar(&a.node.Kmsg, "kmsg", "/dev/kmsg", "`path` of the kernel log")
	f.StringVar(&a.node.Systemd, "systemd", systemd.Socket, "`path` of systemd's private socket, for the plugin units")
	among := strings.Join(program.Roots[:2], ", ") + ", then this container"
	f.StringVar(&a.node.Root, "root", "", "`directory` below which the tools are (default: "+among+")")
	f.StringVar(&a.node.BugReport, "bug-report", "", "`path` of nvidia-bug-report.sh below the root (default: where drivers install it)")
	f.StringVar(&a.node.NvidiaSMI, "nvidia-smi", "", "`path` of nvidia-smi below the root (default: where drivers install it)")
}

// bundleFlags say which node's bundles are meant.
func bundleFlags(f *flags.Set, dir, node *string) {
	f.StringVar(dir, "dir", "/evidence", "`directory` of the bundles")
	f.StringVar(node, "node", "", "`name` of the node")
}

func (a *collectAction) check(args []string) error {
	switch {
	case len(args) > 0:
		return fmt.Errorf("unexpected argument %q", args[0])
	case a.bundle.Node == "" || strings.Contains(a.bundle.Node, "/"):
		return fmt.Errorf("-node %q is no name of a node", a.bundle.Node)
	}
	return nil
}

func (a *collectAction) run(ctx context.Context, _ func(repairresult.Result)) (result repairresult.Result, err error) {
	a.bundle.MaxBytes, a.bundle.At = a.maxMiB<<20, time.Now()
	// A node without a boot id still has evidence.
	id, _ := boot.ID(procfs)
	a.bundle.Head = []string{"boot " + id, "written by repair " + version.String()}
	if a.node.Sysfs == "" {
		a.node.Sysfs = "/sys"
		if _, err := os.Stat(hostSysfs); err == nil {
			a.node.Sysfs = hostSysfs
		}
	}
	if a.node.Self, err = os.Executable(); err != nil {
		return result, err
	}
	if a.node.Plugins == "" {
		a.node.Plugins = filepath.Dir(a.node.Self)
	}
	limited, cancel := context.WithTimeout(ctx, a.timeout-finishing)
	defer cancel()
	written, err := a.bundle.Write(limited, a.node.Parts(a.bundle.MinFree))
	if err != nil {
		return result, err
	}
	result = repairresult.Result{Result: repairresult.Done, Bundle: written.Name}
	result.Message = fmt.Sprintf("bundle %s of %d KiB in %s: %d of %d parts, the index says what became of the others",
		written.Name, written.Bytes>>10, a.bundle.Dir, written.Parts, written.Of)
	return result, nil
}
