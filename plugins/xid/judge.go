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
			result.Findings = append(result.Findings, f.Finding())
		}
	}
	if s.Gap {
		result.Findings = append(result.Findings, conditions.Finding{
			Repair: conditions.Monitor, Subject: "kernel log", Text: "records were overwritten before they could be read",
		})
	}
	if s.Dropped > 0 {
		result.Findings = append(result.Findings, conditions.Finding{
			Repair: conditions.Monitor, Subject: "kernel log", Text: "more events than can be kept, the weakest are dropped",
		})
	}
	if s.Unshared != "" {
		result.Findings = append(result.Findings, conditions.Finding{
			Repair: conditions.Monitor, Subject: "state", Text: "not kept between runs: " + s.Unshared,
		})
	}
	if s.Unread != "" {
		result.Unread = append(result.Unread, npd.Unread{Subject: "kernel log", Why: s.Unread})
	}
	return result
}
