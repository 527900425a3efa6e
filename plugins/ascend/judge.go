package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits is what is asked of the NPUs.
type limits struct {
	plugin *npd.Plugin
	// Count is how many there must be, 0 for as many as there were in this boot.
	Count int
	// Pages is the number of isolated pages at which an NPU is to be replaced.
	Pages uint64
}

// healths are the classes of the health words (npu-smi command reference: minor, major and critical alarm).
var healths = map[string]conditions.Repair{
	"Warning": conditions.Monitor, "Alarm": conditions.Inspect, "Critical": conditions.Reboot,
}

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "Ascend NPUs are as expected"}
	found := func(repair conditions.Repair, subject, text string) {
		result.Findings = append(result.Findings, conditions.Finding{Repair: repair, Subject: subject, Text: text})
	}
	unread := func(subject, why string) {
		result.Unread = append(result.Unread, npd.Unread{Subject: subject, Why: why})
	}
	if s.PCIErr != "" {
		unread("PCI bus", s.PCIErr)
	}
	if len(s.PCI) == 0 && l.Count == 0 && s.Most == 0 {
		result.Healthy = "no Ascend NPU here"
		return result
	}
	if slices.Contains(s.Only, "card") {
		l.number(s, found, unread)
	}
	for _, err := range s.Tools.Errs {
		unread("npu-smi", err)
	}
	for _, n := range s.Tools.NPUs {
		l.npu(n, found, unread)
	}
	if s.Unshared != "" {
		found(conditions.Monitor, "state", "not kept between runs: "+s.Unshared)
	}
	return result
}

// number judges how many NPUs there are. A list that was not understood lacks none.
func (l *limits) number(s snapshot, found func(conditions.Repair, string, string), unread func(string, string)) {
	expected, there := l.Count, len(s.Tools.NPUs)
	if expected == 0 {
		expected = s.Most
	}
	switch {
	case there >= expected || len(s.PCI) > 0 && !s.Tools.Listed:
		if there == 0 && s.Tools.Listed {
			unread("npu", "npu-smi lists none of those on the PCI bus")
		}
	case l.Count > 0 && s.Most < l.Count && s.Boot.Uptime < l.plugin.Grace:
		unread("npu", "fewer than expected, but the node has only just booted")
	default:
		found(conditions.Reboot, "npu", fmt.Sprintf("%d of %d expected", there, expected))
	}
}

func (l *limits) npu(n npu, found func(conditions.Repair, string, string), unread func(string, string)) {
	subject := fmt.Sprintf("npu %d", n.ID)
	if repair, sick := healths[n.Health]; sick {
		text := "health " + n.Health
		if n.Code != "" {
			text += ", error code " + n.Code
		}
		found(repair, subject, text)
	}
	if n.Health == "UNKNOWN" {
		unread(subject, "health UNKNOWN: it is not there or not started")
	}
	if n.Pages != nil && *n.Pages >= l.Pages {
		found(conditions.Replace, subject, fmt.Sprintf("%d or more isolated pages", l.Pages))
	}
	for _, chip := range slices.Sorted(maps.Keys(n.Links)) {
		if n.Links[chip] == "DOWN" {
			found(conditions.Inspect, subject, fmt.Sprintf("network link of chip %d is DOWN", chip))
		}
	}
	if len(n.Errs) > 0 {
		unread(subject, strings.Join(n.Errs, ", "))
	}
}
