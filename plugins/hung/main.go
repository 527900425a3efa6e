// Command hung answers for the NodeCondition NodeIOHung: network mounts whose server does not answer, and services of the node that
// sleep in the kernel. See docs/adr/0061-what-hangs-is-asked-by-its-own-process.md.
package main

import (
	"os"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	if len(os.Args) == 3 && os.Args[1] == askArg {
		os.Exit(ask(os.Args[2]))
	}
	p := npd.New("hung", "checks that the servers of network mounts answer, and that no service of the node sleeps in the kernel")
	r := &reader{plugin: p}
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem of the host; the mounts are those of its process 1")
	p.StringVar(&r.root, "root", "", "`path` at which the host's root is mounted; without it mounts are reached through process 1 of -procfs")
	p.StringVar(&r.kubelet, "kubelet-dir", "/var/lib/kubelet",
		"`path` of the kubelet's root directory on the host; below it mounts are those of pods")
	r.types = []string{"nfs", "nfs4", "lustre", "ceph", "fuse.ceph", "fuse.ceph-fuse", "cifs", "smb3", "beegfs", "gpfs", "wekafs"}
	flags.List(p.FlagSet, &r.types, "types", "`list` of the types of filesystems that are asked", nil)
	r.services = []string{"kubelet", "containerd", "crio", "dockerd"}
	flags.List(p.FlagSet, &r.services, "services", "`list` of the programs whose threads must not sleep in the kernel", nil)
	l := &limits{}
	// With the defaults of nfs(5), timeo=600 and retrans=2, the client calls a server that does not answer dead after three minutes.
	p.DurationVar(&l.mount, "mount-after", 3*time.Minute, "how long a mount may leave a question without an answer", 0, flags.Day)
	// As khungtaskd of the kernel, kernel.hung_task_timeout_secs. That one passes over sleeps that SIGKILL ends, as those on NFS.
	p.DurationVar(&l.service, "service-after", 2*time.Minute, "how long a thread of a service may sleep in the kernel without a break",
		0, flags.Day)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge})
}
