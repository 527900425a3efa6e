package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// judge reports either the hardware lines or all others.
func judge(s snapshot, hardware bool) npd.Result {
	result := npd.Result{Healthy: "no fault of a GPU in the kernel log of this boot"}
	if hardware {
		result.Healthy = "no hardware error in the kernel log of this boot"
	}
	for _, f := range s.faults() {
		if (f.Kind == xid.KindHardware) == hardware {
			result.Found(f.Repair, f.Subject, f.Text)
		}
	}
	if s.Gap {
		result.Found(conditions.Monitor, "kernel log", "records were overwritten before they could be read")
	}
	if s.Dropped > 0 {
		result.Found(conditions.Monitor, "kernel log", "more events than can be kept, the weakest are dropped")
	}
	result.Unshared(s.Unshared)
	if s.Unread != "" {
		result.NotRead("kernel log", s.Unread)
	}
	return result
}
