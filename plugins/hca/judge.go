package main

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// counterRule is what the growth of a counter means.
type counterRule struct {
	// file below the port's folder.
	file   string
	repair conditions.Repair
	// full is the value at which the counter stops (InfiniBand Architecture Specification 1, PortCounters); 0: never
	// in practice.
	full uint64
	// text of the finding.
	text string
}

func (r counterRule) name() string { return path.Base(r.file) }

const (
	linkDowned   = "link_downed"
	symbolErrors = "symbol_error"
)

// Severities as in NVIDIA/NVSentinel's nic monitor, except a single loss of the link, and RNR and ack timeouts, the peer's fault as
// likely as ours.
var counterRules = []counterRule{
	{"counters/" + linkDowned, conditions.Inspect, 1<<8 - 1, "link went down again and again within the last hour"},
	{"counters/local_link_integrity_errors", conditions.Inspect, 1<<4 - 1, "local link integrity errors within the last hour"},
	{"counters/excessive_buffer_overrun_errors", conditions.Inspect, 1<<4 - 1, "excessive buffer overruns within the last hour"},
	{"counters/" + symbolErrors, conditions.Inspect, 1<<16 - 1, "too many symbol errors within the last hour"},
	{"hw_counters/rnr_nak_retry_err", conditions.Monitor, 0, "RNR retries exceeded within the last hour"},
	{"hw_counters/local_ack_timeout_err", conditions.Monitor, 0, "acknowledgements timed out within the last hour"},
}

func subject(device string, port int) string { return fmt.Sprintf("hca %s port %d", device, port) }

func (e *expectation) judge(s snapshot) npd.Result {
	v := verdict{expectation: e.withProfile(), s: s, booting: s.Boot.Uptime < e.plugin.Grace}
	if s.Tool != nil {
		v.tool(*s.Tool)
		return v.result
	}
	v.count()
	for _, d := range s.Devices {
		if d.Err != "" {
			v.result.NotRead("hca "+d.Name, d.Err)
		}
		for _, p := range d.Ports {
			v.port(d, p)
		}
	}
	for _, g := range s.Gone {
		if g.Bound {
			v.result.NotRead(subject(g.Device, g.Port),
				"its PCI device is there but it is not: in another network namespace, or its RDMA driver is unloaded")
		} else {
			v.result.Found(conditions.Inspect, subject(g.Device, g.Port), "gone")
		}
	}
	v.missing()
	v.efa()
	if s.Unread != "" {
		v.result.Found(conditions.Monitor, "kernel log", conditions.NotRead+s.Unread)
	}
	v.result.Unshared(s.Unshared)
	v.result.Healthy = "ports are as expected"
	if len(s.Devices) == 0 {
		v.result.Healthy = noAdapter
	}
	return v.result
}

// withProfile fills in what was not given from the profile.
func (e expectation) withProfile() expectation {
	if e.Count == unset && e.Profile.Ports > 0 {
		e.Count = e.Profile.Ports
	}
	if e.Rate == 0 {
		e.Rate = e.Profile.Rate
	}
	if e.EFA == unset && e.Profile.EFA > 0 {
		e.EFA = e.Profile.EFA
	}
	return e
}

// verdict collects the result of one snapshot.
type verdict struct {
	expectation
	s       snapshot
	booting bool
	// short: fewer ports than expected are good.
	short  bool
	result npd.Result
}

// absent adds a finding of absence, which a node that is still starting may have.
func (v *verdict) absent(subject, text string) {
	v.result.Absent(v.booting, conditions.Inspect, subject, text)
}

func (v *verdict) port(d device, p port) {
	subject := subject(d.Name, p.Number)
	rec := v.s.History.Ports[key(d.Name, p.Number)]
	if rec.Flapped {
		v.result.Found(conditions.Inspect, subject, "went down and up again and again")
	}
	if p.Err != "" {
		v.result.NotRead(subject, p.Err)
		return
	}
	if p.up() {
		v.upPort(subject, d, p, rec)
	} else {
		v.downPort(subject, d, p, rec)
	}
	if p.GIDErr != "" {
		v.result.NotRead(subject, p.GIDErr)
	}
	if p.CounterErr != "" {
		v.result.Found(conditions.Monitor, subject, "counters not read: "+p.CounterErr)
	}
	v.counters(subject, rec)
}

// counters judges what the counters of a port grew by. A link that was down for a moment and is up again needs nothing: most jobs do not
// notice, and one that does needs a restart, not another node. Only one that goes down again and again needs inspection.
func (v *verdict) counters(subject string, rec record) {
	for _, rule := range counterRules {
		c := rec.Counters[rule.name()]
		grown, limit := c.Since(v.s.Boot.Uptime-growthWindow), uint64(0)
		switch rule.name() {
		case symbolErrors:
			limit = v.SymbolErrors
		case linkDowned:
			limit = uint64(max(v.Flaps, 1) - 1)
		}
		switch {
		case grown > limit:
			v.result.Found(rule.repair, subject, rule.text)
		case rule.full > 0 && c.Last >= rule.full:
			v.result.NotRead(subject, rule.name()+" is at its largest value, so that growth cannot be seen: reset it")
		case grown > 0:
			v.result.Found(conditions.Monitor, subject, rule.name()+" grew within the last hour")
		}
	}
}

// downPort judges a port that is not ACTIVE. One that never was and is not asked for is a port without a cable,
// unless most ports of its kind are ACTIVE.
func (v *verdict) downPort(subject string, d device, p port, rec record) {
	text := fmt.Sprintf("state %s, expected ACTIVE", p.State)
	switch p.State {
	case "INIT", "ARMED":
		text += " (no subnet manager?)"
	}
	if v.s.Boot.Uptime-rec.Since >= v.DropAfter {
		text += ", dropped"
	}
	event := v.s.History.Modules[d.Address]
	if event != "" && event != plugged {
		text += ", " + event
	}
	switch {
	case rec.EverUp:
		v.result.Found(conditions.Inspect, subject, text)
	case v.Names.has(d.Name, p.Number):
		v.absent(subject, text)
	case v.short:
		v.absent(subject, text)
	case v.Count == unset && len(v.Names) == 0:
		if up, all := v.peers(d, p); 2*up > all {
			v.absent(subject, text)
		}
	}
}

// peers counts the ports with the same number on cards of the same model, and those of them that are ACTIVE.
func (v *verdict) peers(of device, p port) (up, all int) {
	for _, d := range v.s.Devices {
		if d.Board != of.Board {
			continue
		}
		for _, q := range d.Ports {
			if q.Number == p.Number && q.Err == "" {
				all++
				if q.up() {
					up++
				}
			}
		}
	}
	return up, all
}

func (v *verdict) upPort(subject string, d device, p port, rec record) {
	if event := v.s.History.Modules[d.Address]; strings.HasPrefix(event, "Cable error") {
		v.result.Found(conditions.Monitor, subject, event)
	}
	switch p.Phys {
	case "LinkUp":
	case "LinkErrorRecovery":
		v.result.Found(conditions.Monitor, subject, "recovers from link errors")
	default:
		v.result.Found(conditions.Inspect, subject, fmt.Sprintf("physical state %s, expected LinkUp", p.Phys))
	}
	asked := v.short || v.Count == unset && (len(v.Names) == 0 || v.Names.has(d.Name, p.Number))
	switch {
	case asked && v.Rate > 0 && p.Rate < v.Rate:
		v.result.Found(conditions.Inspect, subject, fmt.Sprintf("rate %g Gb/s, expected %g", p.Rate, v.Rate))
	case p.Rate < rec.Rate:
		v.result.Found(conditions.Inspect, subject, fmt.Sprintf("rate %g Gb/s, was %g", p.Rate, rec.Rate))
	default:
		if best := v.peerRate(d, p); p.Rate < best {
			v.result.Found(conditions.Monitor, subject, fmt.Sprintf("rate %g Gb/s, most ports of its kind have %g", p.Rate, best))
		}
	}
	if asked && v.Link != "" && p.Link != v.Link {
		v.result.Found(conditions.Inspect, subject, fmt.Sprintf("link layer %s, expected %s", p.Link, v.Link))
	}
	if p.Link == "Ethernet" && !p.GID && p.GIDErr == "" {
		v.result.Found(conditions.Inspect, subject, "no GID, so that RoCE cannot address it")
	}
	switch p.OperState {
	case "", "up", "unknown":
	default:
		v.result.Found(conditions.Inspect, subject, fmt.Sprintf("network interface %s is %s", p.Netdev, p.OperState))
	}
}

// peerRate returns the rate that more than half of the ACTIVE ports of a kind have, 0 if there is none.
func (v *verdict) peerRate(of device, p port) float64 {
	count, all := map[float64]int{}, 0
	for _, d := range v.s.Devices {
		for _, q := range d.Ports {
			if d.Board == of.Board && q.Number == p.Number && q.Err == "" && q.up() {
				count[q.Rate]++
				all++
			}
		}
	}
	for rate, n := range count {
		if 2*n > all {
			return rate
		}
	}
	return 0
}

// missing judges the adapters that are asked for by name.
func (v *verdict) missing() {
	for _, name := range v.Names {
		adapter, number, _ := strings.Cut(name, ":")
		i := slices.IndexFunc(v.s.Devices, func(d device) bool { return d.Name == adapter })
		there := i >= 0 && (number == "" || v.s.Devices[i].Err != "" ||
			slices.ContainsFunc(v.s.Devices[i].Ports, func(p port) bool { return fmt.Sprint(p.Number) == number }))
		goneToo := slices.ContainsFunc(v.s.Gone, func(g gone) bool { return g.Device == adapter })
		if !there && !goneToo {
			v.absent("hca "+name, "not there")
		}
	}
}

// count judges the number of ports that are as they should be. Where nothing is expected and no port was ever
// ACTIVE, a dead switch cannot be told from missing cables.
func (v *verdict) count() {
	good, ports, everUp := 0, 0, 0
	for _, d := range v.s.Devices {
		for _, p := range d.Ports {
			ports++
			if v.s.History.Ports[key(d.Name, p.Number)].EverUp || p.Err != "" {
				everUp++
			}
			if p.Err == "" && p.up() && p.Rate >= v.Rate && (v.Link == "" || p.Link == v.Link) {
				good++
			}
		}
	}
	switch {
	case v.Count > good:
		v.short = true
		v.absent("hca ports", fmt.Sprintf("%d of %d expected ports are ACTIVE%s", good, v.Count, v.terms()))
	case v.Count == unset && len(v.Names) == 0 && ports > 0 && everUp == 0:
		v.result.NotRead("hca ports", "none was ever ACTIVE in this boot; say with -expect, -count or -profile what should be")
	}
}

func (v *verdict) terms() string {
	var terms string
	if v.Rate > 0 {
		terms += fmt.Sprintf(" at %g Gb/s", v.Rate)
	}
	if v.Link != "" {
		terms += " on " + v.Link
	}
	return terms
}

// memlockNeeded is what the AWS health checks ask for: libfabric locks its buffers.
const memlockNeeded = 16 << 30

func (v *verdict) efa() {
	e := v.s.EFA
	if e.Err != "" && len(e.Devices) > 0 {
		v.result.Found(conditions.Monitor, "efa", "not all was read: "+e.Err)
	}
	switch n := len(e.Devices); {
	case v.EFA != unset && n != v.EFA:
		v.absent("efa", fmt.Sprintf("%d EFA devices on the PCI bus, expected %d", n, v.EFA))
	case v.EFA == unset && n < e.Expected:
		// One that was launched without EFA has none, and nothing is expected.
		v.absent("efa", fmt.Sprintf("%d of the %d EFA devices of a %s (if it was launched with fewer, set -efa)", n, e.Expected, e.Instance))
	}
	if len(e.Devices) == 0 {
		return
	}
	for _, address := range e.Bare {
		v.absent("efa "+address, "no RDMA device")
	}
	if rdma := len(e.Devices) - len(e.Bare); e.Verbs < rdma {
		v.result.Found(conditions.Monitor, "efa", fmt.Sprintf("%d uverbs devices for %d RDMA devices", e.Verbs, rdma))
	}
	if len(e.MissingModules) > 0 {
		v.result.Found(conditions.Monitor, "efa", "kernel modules not loaded: "+strings.Join(e.MissingModules, " "))
	}
	if e.Err == "" && e.Memlock < memlockNeeded {
		v.result.Found(conditions.Monitor, "efa", "containers may lock less than 16 GiB of memory")
	}
}
