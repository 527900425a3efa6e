package main

import (
	"context"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
)

// snapshot is all that the judge needs.
type snapshot struct {
	gpu.Reading
	// Unshared is why the xid check cannot learn of a reset.
	Unshared string `json:"unshared,omitempty"`
}

type reader struct {
	plugin *npd.Plugin
	source nvml.Source
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	reading, err := r.source.ReadShared(ctx)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Reading: reading}
	if err := r.note(reading); err != nil {
		s.Unshared = err.Error()
	}
	return s, nil
}

// note leaves to the xid check which GPUs need a repair and which have had it.
func (r *reader) note(reading gpu.Reading) error {
	store, err := npd.BootStore[gpu.Recoveries](npd.Proc, r.plugin.StateDir, gpu.RecoveryFile)
	if err != nil {
		return err
	}
	_, err = store.Update(func(known *gpu.Recoveries) bool {
		if *known == nil {
			*known = gpu.Recoveries{}
		}
		return known.Note(reading)
	})
	return err
}
