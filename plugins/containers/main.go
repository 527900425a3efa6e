// Command containers answers for the NodeCondition ContainersBroken: containers that lost their GPUs while they run, and those that cannot
// end. It reads what the kernel and containerd keep on the node. See docs/adr/0062-containers-are-judged-from-the-node.md.
package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("containers", "checks that pods may open the GPUs that they hold, and that killed containers and their shims end")
	r := &reader{plugin: p}
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem of the host")
	p.StringVar(&r.cgroups, "cgroups", "/sys/fs/cgroup", "`path` of the cgroup filesystem of the host")
	p.StringVar(&r.tasks, "tasks", "/run/containerd/io.containerd.runtime.v2.task/k8s.io", "`folder` of containerd's bundles of pods")
	p.StringVar(&r.kubelet, "pod-resources", "/var/lib/kubelet/pod-resources/kubelet.sock",
		"`socket` at which the kubelet says which pods hold GPUs; empty: device rules are not judged")
	l := &limits{}
	p.DurationVar(&l.after, "after", 5*time.Minute, "how long a fault must last", 0, flags.Day)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge})
}
