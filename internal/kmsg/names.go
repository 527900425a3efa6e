package kmsg

import "strings"

// MaxName is the longest name of a process or of a network interface, in bytes: TASK_COMM_LEN and IFNAMSIZ of Linux, less the
// end of the text. Many records of the kernel start with such a name, which any user chooses, and go on in the kernel's own words:
//
//	NAME[4711]: segfault at 0 ip 0000000000400078 sp 00007ffd21528c60 error 4 in FILE[78,400000+1000]
//	NAME invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=0
//
// So what identifies a driver's record must be longer than that, and must stand at the start without a gap.
const MaxName = 15

// StartsWithFile reports whether the record is the kernel's report of a fatal signal (print_fatal_signal in its
// kernel/signal.c, which sysctl kernel.print-fatal-signals switches on). Since Linux 6.14 it starts with the name of the program
// file. That may be 255 bytes long, so it can be the whole record of a driver.
func StartsWithFile(body string) bool {
	return strings.Contains(body, ": potentially unexpected fatal signal ")
}
