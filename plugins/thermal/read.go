package main

import (
	"context"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

// snapshot is all that the judge needs.
type snapshot struct {
	gpu.Reading
	// Window is how far back History goes.
	Window time.Duration `json:"window"`
	// History is what earlier looks of this boot saw, by PCI address, oldest first; this look is its last entry.
	History map[string][]sample `json:"history"`
	// Unshared is why there is no history.
	Unshared string `json:"unshared,omitempty"`
}

// sample is what one look saw of a GPU.
type sample struct {
	At      time.Duration `json:"at"`
	Thermal gpu.Thermal   `json:"thermal"`
}

type reader struct {
	plugin *npd.Plugin
	source nvml.Source
	window time.Duration
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	reading, err := r.source.ReadShared(ctx)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Reading: reading, Window: r.window}
	store, err := npd.BootStore[map[string][]sample](npd.Proc, r.plugin.StateDir, "thermal")
	if err != nil {
		return s, err
	}
	s.History, err = store.Update(func(h *map[string][]sample) bool {
		*h = remember(*h, reading, r.window)
		return !r.plugin.Dumps()
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	return s, nil
}

// maxSamples bounds the state of a GPU; a window of ten minutes at the shortest interval has 40.
const maxSamples = 128

// remember adds a look and forgets what is older than the window, and everything from before a load of the driver.
func remember(old map[string][]sample, reading gpu.Reading, window time.Duration) map[string][]sample {
	history := map[string][]sample{}
	for _, g := range reading.GPUs {
		if g.Thermal == nil {
			continue
		}
		now := sample{reading.Uptime, *g.Thermal}
		for _, s := range append(old[g.Address], now) {
			// A counter that runs backwards was reset.
			if reset := s.Thermal.Slowed != nil && now.Thermal.Slowed != nil && *s.Thermal.Slowed > *now.Thermal.Slowed; reset {
				history[g.Address] = nil
			} else if now.At-s.At <= window {
				history[g.Address] = append(history[g.Address], s)
			}
		}
		if extra := len(history[g.Address]) - maxSamples; extra > 0 {
			history[g.Address] = history[g.Address][extra:]
		}
	}
	return history
}
