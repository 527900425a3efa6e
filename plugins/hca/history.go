package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/growth"
)

// Windows of the rules in judge.go; what is older is forgotten.
const (
	flapWindow   = 12 * time.Hour
	growthWindow = time.Hour
)

// Bounds of the history. A node has at most a few dozen ports.
const (
	maxPorts  = 256
	maxCycles = 8
)

// history is what is remembered of the ports in this boot. All times are uptimes.
type history struct {
	// Ports by name and number, "mlx5_0:1".
	Ports map[string]record `json:"ports"`
	// CountersAt is when the counters were read last.
	CountersAt time.Duration `json:"countersAt"`
	// Management reports, by PCI address, whether the adapter there only manages NVLink switches. Reading that from the
	// adapter is slow.
	Management map[string]bool `json:"management"`
	// Modules is the driver's latest event about the cable or optics of a PCI function, by its address; Next is the
	// sequence number of the kernel log's record after it.
	Modules map[string]string `json:"modules,omitempty"`
	Next    uint64            `json:"next,omitempty"`
}

// clone returns a copy that shares nothing with h.
func (h history) clone() history {
	h.Ports, h.Management, h.Modules = maps.Clone(h.Ports), maps.Clone(h.Management), maps.Clone(h.Modules)
	for k, rec := range h.Ports {
		rec.Cycles, rec.Counters = slices.Clone(rec.Cycles), maps.Clone(rec.Counters)
		for name, c := range rec.Counters {
			c.Steps = slices.Clone(c.Steps)
			rec.Counters[name] = c
		}
		h.Ports[k] = rec
	}
	return h
}

// addEvents takes in the driver's events in the kernel log up to the record next. Another run may have got further.
func (h *history) addEvents(modules map[string]string, next uint64) (changed bool) {
	if next <= h.Next {
		return false
	}
	if h.Modules == nil {
		h.Modules = map[string]string{}
	}
	for address, event := range modules {
		if _, known := h.Modules[address]; known || len(h.Modules) < maxPorts {
			h.Modules[address], changed = event, true
		}
	}
	// Not every record is worth a write: reading some of them twice does no harm.
	if changed || next-h.Next >= 256 {
		h.Next, changed = next, true
	}
	return changed
}

// record is what is remembered of one port.
type record struct {
	Device  string `json:"device"`
	Port    int    `json:"port"`
	Address string `json:"address"`
	// Up is the last look's state, Since when it became so.
	Up    bool          `json:"up"`
	Since time.Duration `json:"since"`
	// EverUp: the port was up in this boot.
	EverUp bool `json:"everUp"`
	// Cycles are the times when the port came back; Flapped stays set.
	Cycles  []time.Duration `json:"cycles,omitempty"`
	Flapped bool            `json:"flapped,omitempty"`
	// Rate is the best of this boot, Gb/s.
	Rate     float64                   `json:"rate"`
	Counters map[string]growth.Counter `json:"counters,omitempty"`
}

func key(device string, port int) string { return fmt.Sprintf("%s:%d", device, port) }

// advance takes in one look. flaps is how many cycles make a port unreliable.
func (h *history) advance(now time.Duration, devices []device, flaps int) (changed bool) {
	if h.Ports == nil {
		h.Ports, h.Management = map[string]record{}, map[string]bool{}
	}
	for _, d := range devices {
		if _, known := h.Management[d.Address]; !known && d.Address != "" && len(h.Management) < maxPorts {
			h.Management[d.Address], changed = d.Management, true
		}
		if d.Skip != "" {
			continue
		}
		for _, p := range d.Ports {
			if p.Err == "" && h.port(now, d, p, flaps) {
				changed = true
			}
		}
	}
	for k, rec := range h.Ports {
		// An adapter that was renamed (bonding does that) is not gone.
		renamed := slices.ContainsFunc(devices, func(d device) bool {
			return d.Name != rec.Device && d.Address != "" && d.Address == rec.Address
		})
		same := slices.ContainsFunc(devices, func(d device) bool { return d.Name == rec.Device })
		if renamed && !same {
			delete(h.Ports, k)
			changed = true
		}
	}
	return changed
}

func (h *history) port(now time.Duration, d device, p port, flaps int) (changed bool) {
	k := key(d.Name, p.Number)
	rec, known := h.Ports[k]
	if !known {
		if len(h.Ports) >= maxPorts {
			return false
		}
		rec = record{Device: d.Name, Port: p.Number, Address: d.Address, Up: p.up(), Since: now, Counters: map[string]growth.Counter{}}
		changed = true
	}
	if p.up() != rec.Up {
		if p.up() && rec.EverUp {
			rec.Cycles = slices.DeleteFunc(rec.Cycles, func(at time.Duration) bool { return at < now-flapWindow })
			rec.Cycles = tail(append(rec.Cycles, now), maxCycles)
			rec.Flapped = rec.Flapped || len(rec.Cycles) >= flaps
		}
		rec.Up, rec.Since, changed = p.up(), now, true
	}
	// The driver counts a link that went down: it was up before this plugin ever looked.
	if wasUp := p.up() || p.Counters[linkDowned] > 0; wasUp && !rec.EverUp {
		rec.EverUp, changed = true, true
	}
	if p.up() && p.Rate > rec.Rate {
		rec.Rate, changed = p.Rate, true
	}
	for name, value := range p.Counters {
		c, known := rec.Counters[name]
		if !known {
			c = growth.Start(value)
		}
		c.Add(now, value, growthWindow)
		rec.Counters[name], changed = c, true
	}
	if len(p.Counters) > 0 {
		h.CountersAt = now
	}
	h.Ports[k] = rec
	return changed
}

func tail[T any](s []T, n int) []T { return s[max(0, len(s)-n):] }

// clear forgets the ports whose subject contains the text and returns their subjects.
func (h *history) clear(text string) (cleared []string) {
	for k, rec := range h.Ports {
		if s := subject(rec.Device, rec.Port); strings.Contains(s, text) {
			cleared = append(cleared, s)
			delete(h.Ports, k)
		}
	}
	slices.Sort(cleared)
	return cleared
}
