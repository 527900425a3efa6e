package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// unset is the -count of a node that nothing is said about.
const unset = -1

// limits is what is asked of the GPUs.
type limits struct {
	plugin *npd.Plugin
	// Count is how many there must be; unset for those on the PCI bus, of which there must be one, and 0 if there may be none.
	Count   int
	Hotspot float64
	Pages   pageLimit
}

// pageLimit is how many retired pages are too many. Vendors differ in whether the limit itself is.
type pageLimit struct {
	op    string
	pages uint64
}

// MarshalText returns what UnmarshalText reads.
func (l pageLimit) MarshalText() ([]byte, error) { return []byte(l.String()), nil }

func (l pageLimit) String() string { return l.op + strconv.FormatUint(l.pages, 10) }

// UnmarshalText reads >n or >=n.
func (l *pageLimit) UnmarshalText(text []byte) error {
	number, found := strings.CutPrefix(string(text), ">")
	op := ">"
	if inclusive, ok := strings.CutPrefix(number, "="); ok {
		number, op = inclusive, ">="
	}
	pages, err := strconv.ParseUint(number, 10, 64)
	if !found || err != nil {
		return fmt.Errorf("%q is not >n or >=n", text)
	}
	*l = pageLimit{op, pages}
	return nil
}

func (l pageLimit) exceeded(pages uint64) bool {
	return pages > l.pages || l.op == ">=" && pages == l.pages
}

func (f fault) subject() string { return "gpu " + f.Address }

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "MetaX GPUs are as expected"}
	if len(s.PCI) == 0 && l.Count == 0 {
		result.Healthy = "no MetaX GPU here"
	}
	if len(s.PCI) == 0 && l.Count == unset && s.PCIErr == "" {
		result.NotRead("gpu", "no MetaX GPU found on the PCI bus, set -count to how many there should be")
	}
	if len(s.PCI) < l.Count {
		text := fmt.Sprintf("%d of %d expected on the PCI bus", len(s.PCI), l.Count)
		result.Absent(s.Boot.Uptime < l.plugin.Grace, conditions.Reboot, "gpu", text)
	}
	if s.PCIErr != "" {
		result.NotRead("PCI bus", s.PCIErr)
	}
	if len(s.PCI) > 0 {
		l.tool(s, &result)
	}
	for _, f := range s.Faults {
		text := f.Text
		if f.Injected {
			text += " (injected)"
		}
		result.Found(conditions.Inspect, f.subject(), text)
	}
	if s.Unread != "" && len(s.PCI) > 0 {
		result.NotRead("kernel log", s.Unread)
	}
	result.Unshared(s.Unshared)
	return result
}

func (l *limits) tool(s snapshot, result *npd.Result) {
	for _, err := range s.Tool.Errs {
		result.NotRead("mx-smi", err)
	}
	for _, g := range s.Tool.GPUs {
		subject := "gpu " + g.Address
		if !strings.Contains(g.Address, ":") {
			subject = "gpu #" + g.Index
		}
		if g.State != available {
			if g.lost() {
				result.Found(conditions.Reboot, subject, g.State)
			} else {
				result.NotRead(subject, fmt.Sprintf("mx-smi -L: its state is %.40q", g.State))
			}
			continue
		}
		if g.Hotspot != nil && *g.Hotspot >= l.Hotspot {
			result.Found(conditions.Inspect, subject, fmt.Sprintf("hotspot at %g C or more", l.Hotspot))
		}
		if g.RetiredPages != nil && l.Pages.exceeded(*g.RetiredPages) {
			result.Found(conditions.Replace, subject, fmt.Sprintf("double-bit retired pages %s", l.Pages))
		}
		for _, err := range g.Errs {
			result.NotRead(subject, err)
		}
	}
	// Only a list that was understood may lack a GPU.
	if n := len(s.Tool.GPUs); n < len(s.PCI) && (n > 0 || len(s.Tool.Errs) == 0) {
		result.Found(conditions.Reboot, "gpu", fmt.Sprintf("mx-smi lists %d of %d on the PCI bus", n, len(s.PCI)))
	}
}
