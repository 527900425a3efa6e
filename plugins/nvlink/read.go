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
	Grace time.Duration `json:"grace"`
	// Expected is how many links each GPU should have, nil for the model's number.
	Expected *int `json:"expected,omitempty"`
	// Before are the sums of the links' error counters at the last look, by PCI address.
	Before map[string]uint64 `json:"before,omitempty"`
	// Unshared says why there is no last look.
	Unshared string `json:"unshared,omitempty"`
}

type reader struct {
	plugin *npd.Plugin
	source nvml.Source
	links  int
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	reading, err := r.source.ReadShared(ctx)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Reading: reading, Grace: r.plugin.Grace}
	if r.links >= 0 {
		s.Expected = &r.links
	}
	if !r.source.LinkErrors() {
		return s, nil
	}
	store, err := npd.BootStore[map[string]uint64](npd.Proc, r.plugin.StateDir, "nvlink")
	if err != nil {
		return s, err
	}
	now := map[string]uint64{}
	for _, g := range reading.GPUs {
		if sum, ok := errorSum(g); ok {
			now[g.Address] = sum
		}
	}
	if _, err := store.Update(func(sums *map[string]uint64) bool {
		s.Before = *sums
		*sums = now
		return true
	}); err != nil {
		s.Unshared = err.Error()
	}
	return s, nil
}
