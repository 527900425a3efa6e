package main

import (
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

func judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "no fault of a GPU in the kernel log of this boot"}
	for _, f := range xid.Judge(s.Events, s.Now) {
		result.Findings = append(result.Findings, f.Finding())
	}
	if s.Gap {
		result.Findings = append(result.Findings, conditions.Finding{
			Repair: conditions.Monitor, Subject: "kernel log", Text: "records were overwritten before they could be read",
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
