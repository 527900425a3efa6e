package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
)

// limits say what standing still is.
type limits struct {
	// For is how long it lasts until it is a fault.
	For time.Duration
	// BusyPercent is a utilization, PowerPercent a share of the GPU's power limit.
	BusyPercent, PowerPercent float64
	// Traffic is a rate in MB/s.
	Traffic float64
}

// idlePercent is the utilization up to which a GPU is idle.
const idlePercent = 5

// A comparison of two looks needs some time between them: the uptime of a look is taken before the driver is opened, which takes
// 8 s on a node with eight GPUs and without persistence mode, and the counters are read after that. If only the first look was so
// slow, the counters have grown for 8 s less than the pause. Over a long pause the looks say too little of the utilization, which has
// no counter.
const (
	shortest = 30 * time.Second
	longest  = 5 * time.Minute
)

// history is what a look leaves to the next.
type history struct {
	// At is the uptime of the look, Driver the loaded driver.
	At     time.Duration `json:"at"`
	Driver string        `json:"driver"`
	// Ports are the counters of the ports of the RDMA adapters, by subject.
	Ports map[string]uint64 `json:"ports"`
	// GPUs are by PCI address. There are none that no process holds and none that could not be read.
	GPUs map[string]counters `json:"gpus"`
}

// counters are those of a GPU, see [gpu.Work], and what follows from them and those of the looks before.
type counters struct {
	Energy uint64 `json:"energy"`
	NVLink uint64 `json:"nvlink"`
	State  state  `json:"state,omitempty"`
	// Since is the uptime since when State lasts.
	Since time.Duration `json:"since"`
}

// state is how a GPU stands still; empty for one that does not, or of which that is not known.
type state string

const (
	// waiting: busy with a kernel that does little, such as one that waits for a peer.
	waiting state = "waiting"
	// idle: no kernel runs.
	idle state = "idle"
)

// next takes in a look. One that comes soon after another adds nothing. Whatever does not fit to the look before starts anew.
func (l *limits) next(before history, s snapshot) (now history, changed bool) {
	pause := s.Uptime - before.At
	if !before.valid() || pause < 0 || pause > longest || before.Driver != s.Module {
		before = history{}
	} else if pause < shortest {
		return before, false
	}
	now = history{At: s.Uptime, Driver: s.Module, Ports: map[string]uint64{}, GPUs: map[string]counters{}}
	for _, p := range s.Ports {
		if p.Unread == "" {
			now.Ports[p.Subject()] = p.Sent
		}
	}
	quiet := len(now.Ports) == len(s.Ports) && l.quietPorts(before.Ports, now.Ports, pause)
	for _, g := range s.GPUs {
		if g.NotRead() != "" || unjudged(g) != "" || !*g.Work.Held {
			continue
		}
		c := counters{Energy: *g.Work.Energy, NVLink: *g.Work.NVLink, Since: s.Uptime}
		if old, known := before.GPUs[g.Address]; known && quiet {
			if c.State = l.state(*g.Work, old, pause); c.State == old.State {
				c.Since = old.Since
			}
		}
		now.GPUs[g.Address] = c
	}
	return now, true
}

// valid reports whether a look can have left the history: it is read from a file.
func (h history) valid() bool {
	for _, c := range h.GPUs {
		if c.Since < 0 || c.Since > h.At {
			return false
		}
	}
	return true
}

// state compares a look at a GPU that is in use with the one before.
func (l *limits) state(w gpu.Work, before counters, pause time.Duration) state {
	// A counter that went back was reset, and energy that does not grow is not counted.
	if *w.Energy <= before.Energy || *w.NVLink < before.NVLink || !l.flat(*w.NVLink-before.NVLink, 1, pause) {
		return ""
	}
	milliwatts := float64(*w.Energy-before.Energy) / pause.Seconds()
	busy := float64(*w.Busy)
	switch {
	case milliwatts >= l.PowerPercent/100*float64(*w.PowerLimit):
		return ""
	case busy >= l.BusyPercent:
		return waiting
	case busy <= idlePercent:
		return idle
	}
	return ""
}

// quietPorts reports whether the ports are those of the look before and carried no data since.
func (l *limits) quietPorts(before, now map[string]uint64, pause time.Duration) bool {
	var units uint64
	for name, sent := range now {
		old, known := before[name]
		if !known || sent < old {
			return false
		}
		units += min(sent-old, 1<<50) // more than any port sends, and no overflow
	}
	return len(before) == len(now) && l.flat(units, 4, pause)
}

// flat reports whether that many units of so many bytes are no data.
func (l *limits) flat(units uint64, bytes float64, pause time.Duration) bool {
	return float64(units)*bytes < l.Traffic*1e6*pause.Seconds()
}
