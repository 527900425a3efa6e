package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// unset is the -count of a node that nothing is said about.
const unset = -1

// limits is what is asked of the NPUs.
type limits struct {
	plugin *npd.Plugin
	// Count is how many there must be; unset for as many as there were in this boot, at least one, and 0 if there may be none.
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
	if s.PCIErr != "" {
		result.NotRead("PCI bus", s.PCIErr)
	}
	if len(s.PCI) == 0 && l.Count <= 0 && s.Most == 0 {
		result.Healthy = "no Ascend NPU here"
		if l.Count == unset && s.PCIErr == "" {
			result.NotRead("npu", "no Ascend NPU found on the PCI bus, set -count to how many there should be")
		}
		return result
	}
	if slices.Contains(s.Only, "card") {
		l.number(s, &result)
	}
	for _, err := range s.Tools.Errs {
		result.NotRead("npu-smi", err)
	}
	for _, n := range s.Tools.NPUs {
		l.npu(n, s.Only, &result)
	}
	result.Unshared(s.Unshared)
	return result
}

// number judges how many NPUs there are. A list that was not understood lacks none.
func (l *limits) number(s snapshot, result *npd.Result) {
	expected, there := l.Count, len(s.Tools.NPUs)
	if expected <= 0 {
		expected = s.Most
	}
	// One that was there in this boot has come up already.
	booting := s.Boot.Uptime < l.plugin.Grace && (s.Most == 0 || s.Most < expected)
	switch {
	case len(s.PCI) > 0 && !s.Tools.Listed:
	case there == 0 && there >= expected:
		result.Absent(booting, conditions.Reboot, "npu", fmt.Sprintf("npu-smi lists none, %d chips are on the PCI bus", len(s.PCI)))
	case there < expected && len(s.PCI) == 0:
		result.Absent(booting, conditions.Reboot, "npu", fmt.Sprintf("no chip on the PCI bus, %d NPUs expected", expected))
	case there < expected:
		result.Absent(booting, conditions.Reboot, "npu", fmt.Sprintf("npu-smi lists %d of %d expected NPUs", there, expected))
	case s.Tools.Chips > 0 && s.Tools.Chips < len(s.PCI):
		result.Absent(booting, conditions.Reboot, "npu", fmt.Sprintf("npu-smi lists %d of %d chips on the PCI bus", s.Tools.Chips, len(s.PCI)))
	}
	s.offer(s.Boot.Uptime < l.plugin.Grace, result)
}

// offer judges how many NPUs the kubelet offers to pods: a device plugin that takes one for sick offers it no more. It offers chips, of
// which a card has at least one.
func (s snapshot) offer(booting bool, result *npd.Result) {
	switch {
	case s.OfferedErr != "":
		result.NotRead("kubelet", "how many NPUs it offers: "+s.OfferedErr)
	case s.Offered != nil && *s.Offered == 0 && len(s.Tools.NPUs) > 0:
		text := fmt.Sprintf("the kubelet offers none of %d, does the device plugin run?", len(s.Tools.NPUs))
		result.Absent(booting, conditions.Inspect, "npu", text)
	case s.Offered != nil && *s.Offered < len(s.Tools.NPUs):
		result.Absent(booting, conditions.Inspect, "npu", fmt.Sprintf("the kubelet offers %d of %d", *s.Offered, len(s.Tools.NPUs)))
	}
}

func (l *limits) npu(n npu, only []string, result *npd.Result) {
	subject := fmt.Sprintf("npu %d", n.ID)
	for _, c := range n.Chips {
		what := "health"
		if c.ID == mcu {
			what = "mcu"
		}
		if slices.Contains(only, what) {
			c.judge(subject, result)
		}
	}
	if n.Pages != nil && *n.Pages >= l.Pages {
		result.Found(conditions.Replace, subject, fmt.Sprintf("%d or more isolated pages", l.Pages))
	}
	for _, chip := range slices.Sorted(maps.Keys(n.Links)) {
		if n.Links[chip] == "DOWN" {
			result.Found(conditions.Inspect, subject, fmt.Sprintf("network link of chip %d is DOWN", chip))
		}
	}
	if len(n.Errs) > 0 {
		result.NotRead(subject, strings.Join(n.Errs, ", "))
	}
}

// judge judges the health of one chip.
func (c chip) judge(subject string, result *npd.Result) {
	text := "health " + c.Health
	switch {
	case c.ID == mcu:
		text = "MCU " + text
	case c.ID != only && c.ID != "":
		text = "chip " + c.ID + " " + text
	}
	repair, sick := healths[c.Health]
	switch {
	case sick:
		if c.ID == mcu {
			// The controller watches the board. It computes nothing, and a reboot of the host does not restart it.
			repair = min(repair, conditions.Inspect)
		}
		if c.Code != "" {
			text += ", error code " + c.Code
		}
		result.Found(repair, subject, text)
	case c.Health == "OK", c.ID == mcu && c.Health == "NA":
	case c.Health == "UNKNOWN":
		result.NotRead(subject, text+": it is not there or not started")
	default:
		result.NotRead(subject, fmt.Sprintf("health is %.40q", c.Health))
	}
}
