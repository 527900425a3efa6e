package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// models gives the links of GPUs that are soldered to their board, by NVML's name. Source: NVIDIA's data sheets (total
// NVLink bandwidth over the bandwidth of one link). PCIe cards are not here, see [bridges].
var models = map[string]int{
	"Tesla V100-SXM2-16GB": 6, "Tesla V100-SXM2-32GB": 6, "Tesla V100-SXM3-32GB": 6,
	"NVIDIA A100-SXM4-40GB": 12, "NVIDIA A100-SXM4-80GB": 12, "NVIDIA A800-SXM4-80GB": 8,
	"NVIDIA H100 80GB HBM3": 18, "NVIDIA H800": 8, "NVIDIA H20": 18, "NVIDIA H200": 18,
	"NVIDIA B200": 18, "NVIDIA B300 SXM6 AC": 18, "NVIDIA GB200": 18, "NVIDIA GB300": 18,
}

// bridges gives the links of one bridge of PCIe cards, by NVML's name. A card has one to three bridges to another card, or none: then it
// reports all its links inactive (https://github.com/NVIDIA/NVSentinel/pull/1481: 12 on an A100). Source: product briefs of the cards
// (NVLink bandwidth of all bridges over their number and the bandwidth of one link). One bridge of H200 NVL joins two cards or four.
var bridges = map[string]int{
	"NVIDIA A100-PCIE-40GB": 4, "NVIDIA A100-PCIE-80GB": 4, "NVIDIA A100 80GB PCIe": 4, "NVIDIA A800 80GB PCIe": 4,
	"NVIDIA A30": 4, "NVIDIA A40": 4, "NVIDIA RTX A6000": 4,
	"NVIDIA H100 PCIe": 4, "NVIDIA H800 PCIe": 4, "NVIDIA H100 NVL": 4, "NVIDIA H200 NVL": 6,
}

func judge(s snapshot) npd.Result {
	if nothing, ok := s.Absent(); ok {
		return nothing
	}
	result := npd.Result{Healthy: "all NVLinks are up"}
	best := mostLinks(s.GPUs)
	for _, g := range s.GPUs {
		add := func(repair conditions.Repair, text string) {
			result.Found(repair, g.Subject(), text)
		}
		if why := g.NotRead(); why != "" {
			result.NotRead(g.Subject(), why)
		}
		if g.NVLink == nil || g.Lost || g.NeedsReset {
			continue
		}
		if g.MIG {
			// The driver turns the links of a GPU in MIG mode off on some models.
			add(conditions.Monitor, "NVLinks are not judged in MIG mode")
			continue
		}
		registers := g.NVLink.Fabric != nil && !g.NVLink.Fabric.Completed
		switch text := linksDown(s, g, best[g.Name]); {
		case text == "":
		case s.Uptime < s.Grace:
			result.NotRead(g.Subject(), text)
		case !registers: // else that is the fault, and the links come up with it
			add(conditions.ResetGPU, text)
		}
		fabric(s, g, add, func(why string) {
			result.NotRead(g.Subject(), why)
		})
		for i, l := range g.NVLink.Links {
			if l.NoTraffic {
				add(conditions.Monitor, fmt.Sprintf("NVLink %d is active, but not usable for traffic", i))
			}
		}
		if sum, ok := errorSum(g); ok {
			if before, known := s.Before[g.Address]; known && sum > before {
				add(conditions.Monitor, "NVLink errors grow")
			}
		}
	}
	result.Unshared(s.Unshared)
	return result
}

// mostLinks returns the number of active links of the best GPU of each model.
func mostLinks(gpus []gpu.GPU) map[string]int {
	best := map[string]int{}
	for _, g := range gpus {
		if g.NVLink != nil {
			best[g.Name] = max(best[g.Name], active(g.NVLink.Links))
		}
	}
	return best
}

func active(links []gpu.Link) (n int) {
	for _, l := range links {
		if l.Active {
			n++
		}
	}
	return n
}

// linksDown names the links that a GPU lacks, "" for none. best is how many the best GPU of its model has.
func linksDown(s snapshot, g gpu.GPU, best int) string {
	switch {
	case g.MIGUnread:
		return "" // in MIG mode they may be off
	case s.Expected != nil:
		return inactive(g.NVLink.Links, *s.Expected, false)
	case len(s.Bus) == 1 && active(g.NVLink.Links) == 0:
		return "" // a guest with one GPU of a board, or a board of one, has no peer to link to
	case g.Name == "":
		return "" // another model has other links
	case bridges[g.Name] > 0:
		return bridged(g.NVLink.Links, bridges[g.Name], best)
	}
	return inactive(g.NVLink.Links, cmp.Or(models[g.Name], best), true)
}

// bridged names the links that a PCIe card lacks, "" for none. Its bridges are either there with all their links or not there; where a peer
// has more, one of them is loose or broken.
func bridged(links []gpu.Link, each, best int) string {
	n := active(links)
	if n == 0 {
		return "" // no bridge, as on a card that is alone
	}
	return inactive(links, max(best, (n+each-1)/each*each), true)
}

// inactive names the links that are missing, "" if there are as many as expected. mayBeOff says that a GPU without a link
// that is down may have links that are turned off.
func inactive(links []gpu.Link, expected int, mayBeOff bool) string {
	var down []string
	unread, off := 0, 0
	for i, l := range links {
		switch {
		case l.Active:
		case l.Unread:
			unread++
		case l.Off:
			off++
		default:
			down = append(down, fmt.Sprint(i))
		}
	}
	n := active(links)
	missing := expected - n - unread
	switch {
	case missing <= 0 || mayBeOff && len(down) == 0 && missing <= off:
		return ""
	case n+unread == 0:
		return "all NVLinks are inactive"
	case len(down) == 0 || len(down) > missing || len(down)+off < missing:
		// None is down by itself, or the GPU has more links than the model uses, or fewer: it is not known which it should use.
		return fmt.Sprintf("%d of %d NVLinks are active", n, expected)
	}
	return "inactive NVLink " + strings.Join(down, ", ")
}

// fabric judges the registration with the NVSwitch fabric. It takes a while after the boot.
func fabric(s snapshot, g gpu.GPU, add func(conditions.Repair, string), unread func(string)) {
	f := g.NVLink.Fabric
	switch {
	case f == nil:
	case !f.Completed && s.Uptime < s.Grace:
		unread("not registered with its fabric")
	case !f.Completed:
		add(conditions.Inspect, "not registered with its fabric")
	case f.Status != 0:
		add(conditions.Inspect, fmt.Sprintf("registration with its fabric failed with NVML error %d", f.Status))
	case f.Unhealthy:
		add(conditions.Inspect, "the driver calls its fabric unhealthy")
	}
	if f != nil && f.Completed && len(f.Degraded) > 0 {
		add(conditions.Monitor, "its fabric has "+strings.Join(f.Degraded, ", "))
	}
}

// errorSum sums the error counters of a GPU's links; false if it has none.
func errorSum(g gpu.GPU) (sum uint64, ok bool) {
	if g.NVLink == nil {
		return 0, false
	}
	for _, l := range g.NVLink.Links {
		if l.Errors != nil {
			sum, ok = sum+*l.Errors, true
		}
	}
	return sum, ok
}
