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
	// Before are the sums of the links' error counters before the present ones, by PCI address.
	Before map[string]uint64 `json:"before,omitempty"`
	// Unshared is why there is no last look.
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
	if !r.source.More() {
		return s, nil
	}
	store, err := npd.BootStore[errorSums](npd.Proc, r.plugin.StateDir, "nvlink-errors")
	if err != nil {
		return s, err
	}
	now := map[string]uint64{}
	for _, g := range reading.GPUs {
		if sum, ok := errorSum(g); ok {
			now[g.Address] = sum
		}
	}
	sums, err := store.Update(func(sums *errorSums) bool {
		return !r.plugin.Dumps() && sums.note(reading.Uptime, now, r.plugin.Every)
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	s.Before = sums.Before
	if r.plugin.Dumps() {
		s.Before = sums.Now
	}
	return s, nil
}

// errorSums are sums of the links' error counters by PCI address.
type errorSums struct {
	// At is the uptime of Now.
	At time.Duration `json:"at"`
	// Now are the latest, Before those of the look before.
	Now    map[string]uint64 `json:"now"`
	Before map[string]uint64 `json:"before"`
}

// note takes in a look. One that comes soon after another, as the run does that follows an answer, is compared with the same sums as
// that one: else an answer would be taken back at once.
func (s *errorSums) note(at time.Duration, now map[string]uint64, every time.Duration) (changed bool) {
	if s.Now != nil && at-s.At < every/2 {
		return false
	}
	*s = errorSums{at, now, s.Now}
	return true
}
