package main

import (
	"context"
	"fmt"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
	"github.com/pitcrew-dev/pitcrew/internal/podresources"
)

// refuse returns why no diagnostic may run, "" if one may. Level 2 and more take the GPUs from whoever uses them.
func (r *reader) refuse(ctx context.Context) (string, error) {
	if r.run && !r.force {
		active, err := maintenance.Active(npd.Proc, r.plugin.StateDir)
		if err != nil {
			return "", fmt.Errorf("no diag: %w", err)
		}
		if !active {
			return "", fmt.Errorf("no diag: the node is not under maintenance (file %s); -force does without", maintenance.Path(r.plugin.StateDir))
		}
	}
	if r.force {
		why, err := r.gpusRefuse(ctx, false)
		return why, err
	}
	pods, err := podresources.Holders(ctx, r.podResources, "nvidia.com/")
	if err != nil {
		return "", fmt.Errorf("no diag: which pods hold GPUs is not known: %w", err)
	}
	if len(pods) > 0 {
		return "pod " + pods[0] + " holds a GPU", nil
	}
	for end := time.Now().Add(r.idleFor); ; {
		why, err := r.gpusRefuse(ctx, true)
		if why != "" || err != nil {
			return why, err
		}
		left := time.Until(end)
		if left <= 0 {
			return "", nil
		}
		select {
		case <-ctx.Done():
			return "", ctx.Err()
		case <-time.After(min(left, 5*time.Second)):
		}
	}
}

// gpusRefuse asks the driver: a GPU in MIG mode cannot be diagnosed, and one that is busy must not be.
func (r *reader) gpusRefuse(ctx context.Context, busyToo bool) (string, error) {
	reading, err := r.source.Read(ctx, nvml.Activity)
	if err != nil {
		return "", err
	}
	if reading.Unread != "" {
		return "", fmt.Errorf("no diag: NVML: %s", reading.Unread)
	}
	for _, g := range reading.GPUs {
		switch {
		case g.MIG:
			return g.Subject() + " is in MIG mode", nil
		case busyToo && g.Busy == nil:
			return g.Subject() + " does not say whether it is idle", nil
		case busyToo && *g.Busy:
			return g.Subject() + " is busy", nil
		}
	}
	return "", nil
}
