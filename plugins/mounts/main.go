// Command mounts answers for the NodeCondition MountReadOnly: filesystems that the node must be able to write to.
package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/flags"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func main() {
	p := npd.New("mounts", "checks that filesystems are mounted, writable and have room")
	r := &reader{}
	p.StringVar(&r.procfs, "procfs", "/proc", "`path` of the proc filesystem of the host; the mounts are those of its process 1")
	p.StringVar(&r.sysfs, "sysfs", "/sys",
		"`path` of the sysfs of the host, for the errors of ext4 that kernels before 6.15 do not show among the mounts")
	p.StringVar(&r.root, "root", "", "`path` at which the host's root is mounted, to ask the filesystems themselves: I/O errors, room")
	p.StringVar(&r.kubelet, "kubelet-dir", "/var/lib/kubelet", "`path` of the kubelet's root directory on the host; it must be writable")
	flags.List(p.FlagSet, &r.writable, "writable", "`list` of further paths on the host that must be writable", nil)
	flags.List(p.FlagSet, &r.mounted, "mounted", "`list` of mount points that must be there and writable, e.g. /raid", nil)

	l := &limits{plugin: p}
	p.Float64Var(&l.Free, "min-free", 0, "least free space of these paths in `percent`; needs -root", 0, 100)
	p.Float64Var(&l.Inodes, "min-inodes", 0, "least free inodes of these paths in `percent`; needs -root", 0, 100)
	npd.Main(p, npd.Check[snapshot]{Read: r.read, Judge: l.judge})
}
