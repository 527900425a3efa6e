// Package kmsgtest has records that the kernel writes about processes, for tests of what reads the kernel log: users choose the
// names in them, and no name may make one of them a driver's record.
package kmsgtest

import (
	"fmt"

	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
)

// The longest name of a file, in bytes (NAME_MAX).
const maxFile = 255

// About returns the bodies of the records that the kernel writes about a process, its program file and its network interface, in
// the formats of Linux 4.18 to 6.18. Longer names are cut as the kernel cuts them.
func About(process, file string) []string {
	process, file = process[:min(len(process), kmsg.MaxName)], file[:min(len(file), maxFile)]
	return []string{
		// arch/x86/mm/fault.c, show_signal_msg, with print_vma_addr of mm/memory.c
		fmt.Sprintf("%s[4711]: segfault at 0 ip 0000000000400078 sp 00007ffd21528c60 error 4 in %s[78,400000+1000] likely on CPU 0 (core 0, socket 0)", process, file),
		fmt.Sprintf("%s[4711]: segfault at 0 ip 0000000000400078 sp 00007ffd21528c60 error 4 in %s[400000+1000]", process, file),
		fmt.Sprintf("%s[4711]: segfault at 0 ip 0000000000400078 sp 00007ffd21528c60 error 4", process),
		// the same, when another record came between its halves
		fmt.Sprintf(" in %s[400000+1000]", file),
		// arch/x86/kernel/traps.c
		fmt.Sprintf("traps: %s[4711] trap invalid opcode ip:400078 sp:7ffd21528c60 error:0 in %s[400000+1000]", process, file),
		fmt.Sprintf("traps: %s[4711] general protection fault ip:400078 sp:7ffd21528c60 error:0 in %s[400000+1000]", process, file),
		// arch/arm64/kernel/traps.c
		fmt.Sprintf("%s[4711]: unhandled exception: DABT (lower EL), ESR 0x0000000092000046, level 2 translation fault in %s[400000+1000]", process, file),
		// kernel/signal.c, since and before Linux 6.14
		fmt.Sprintf("%s: %s: potentially unexpected fatal signal 11.", file, process),
		fmt.Sprintf("%s/4711: potentially unexpected fatal signal 11.", process),
		// mm/oom_kill.c and mm/page_alloc.c
		fmt.Sprintf("%s invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=1000", process),
		fmt.Sprintf("Memory cgroup out of memory: Killed process 4711 (%s) total-vm:1024kB, anon-rss:512kB, file-rss:0kB, shmem-rss:0kB", process),
		fmt.Sprintf("oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=%s,mems_allowed=0,oom_memcg=/kubepods/%s,task=%s,pid=4711,uid=0", file, file, process),
		fmt.Sprintf("[   4711]     0  4711      256      128    45056        0          1000 %s", process),
		fmt.Sprintf("%s: page allocation failure: order:4, mode:0xcc0(GFP_KERNEL), nodemask=(null),cpuset=%s,mems_allowed=0", process, file),
		// kernel/audit.c without an audit daemon
		fmt.Sprintf("audit: type=1701 audit(1763800000.100:2): auid=0 uid=0 gid=0 ses=1 pid=4711 comm=%q exe=\"/%s\" sig=11 res=1", process, file),
		// file systems, hung tasks, stack traces
		fmt.Sprintf("EXT4-fs error (device sda1): ext4_lookup:1785: inode #2: comm %s: bad entry in directory: %s", process, file),
		fmt.Sprintf("XFS (sda1): Internal error at line 1 of file %s. Caller %s", file, process),
		fmt.Sprintf("INFO: task %s:4711 blocked for more than 122 seconds.", process),
		fmt.Sprintf("CPU: 0 UID: 0 PID: 4711 Comm: %s Not tainted 6.18.0 #1 PREEMPT", process),
		fmt.Sprintf("process '%s' started with executable stack", file),
		fmt.Sprintf("%s (4711): drop_caches: 3", process),
		fmt.Sprintf("coredump: 4711(%s): written to %s: VMAs: 1, size 4096", process, file),
		// net/core/dev.c
		fmt.Sprintf("%s: renamed from %s", process, process),
		fmt.Sprintf("%s: entered promiscuous mode", process),
	}
}

// DriversWords are names of processes and files that hold as much of a driver's record as fits.
func DriversWords() (processes, files []string) {
	return []string{
			"METAX.B1.x.CRIT", "MXCD.B1.ab.CRIT", "MXGVM.B1.x.CRIT", "nvidia-peermem", "nvidia-peermem ", "NVRM: Xid (PCI:", "nvidia-nvswitch",
			"nvidia-nvswitch0", "NVRM: GPU 0000:", "NVRM: The NVIDIA", "Linux version 6", "Linux version ", "mlx5_core 0000:", "EDAC MC0: 1 UE ", "EDAC MC0: 1 CE ",
			"mce: [Hardware ", "x 0: AER: ", "1: AER: ", "nvidia-nvlink: ", "kernel: NVRM: ", "[T1] NVRM: Xid ",
		}, []string{
			"invalid context", "detected invalid context, skipping further processing",
			"nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
			"METAX.B10200.ATU.ERROR EID (0001:02:00.0): 0x2101, description",
			"NVRM: Xid (PCI:0000:4e:00): 79, GPU has fallen off the bus.", "NVRM: Xid (PCI:0000:4e:00): 79, x\nNVRM: y",
			"NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.", "NVRM: fallen off the bus", "installed in this system has fallen off the bus",
			"NVRM: GPU at PCI:0000:4e:00: GPU-8f3c0d6e-0000-0000-0000-000000000000", "NVRM: loading NVIDIA UNIX x86_64 Kernel Module",
			"nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 12028, Fatal, Link 32 x", "nvidia-nvlink: Unregistered Nvlink Core",
			"Linux version 6.18.0 (a@b)", "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
			"mlx5_core 0000:5c:00.0: device's health compromised - reached miss count", "EDAC MC0: 1 UE memory read error on x", "memory read error",
			"pcieport 0000:00:01.0: AER: Uncorrected (Fatal) error received", "0000:00:01.0: AER: Uncorrected (Fatal) error received",
			"mce: [Hardware Error]: CPU 3: Machine Check: 0", "{1}[Hardware Error]: event severity: fatal",
		}
}
