package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"strconv"

	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/nvml"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
)

// snapshot is all that the judge needs.
type snapshot struct {
	gpu.Reading
	// Ports are the ports of the node's RDMA adapters.
	Ports []port `json:"ports,omitempty"`
	// History is what this look and those before it have seen.
	History history `json:"history"`
	// Unshared is why there is no history of earlier runs.
	Unshared string `json:"unshared,omitempty"`
}

// port is a port of an RDMA adapter.
type port struct {
	Adapter string `json:"adapter"`
	Number  string `json:"number"`
	// Sent is its counter port_xmit_data, in units of 4 bytes (Linux Documentation/ABI/stable/sysfs-class-infiniband).
	Sent uint64 `json:"sent"`
	// Unread is why Sent is not known.
	Unread string `json:"unread,omitempty"`
}

// Subject is how the check hca names the port.
func (p port) Subject() string { return "hca " + p.Adapter + " port " + p.Number }

type reader struct {
	plugin *npd.Plugin
	source nvml.Source
	limits *limits

	// calls are those to the counters of the ports, by their folders.
	calls bounded.Calls
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	reading, err := r.source.ReadShared(ctx)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Reading: reading}
	if s.Ports, err = r.ports(ctx); err != nil {
		return s, err
	}
	store, err := npd.BootStore[history](npd.Proc, r.plugin.StateDir, "stall")
	if err != nil {
		return s, err
	}
	s.History, err = store.Update(func(h *history) (changed bool) {
		*h, changed = r.limits.next(*h, s)
		return changed && !r.plugin.Dumps()
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	return s, nil
}

// ports reads the counters of the ports of all RDMA adapters.
func (r *reader) ports(ctx context.Context) (all []port, err error) {
	dir := filepath.Join(r.source.Sysfs, "class/infiniband")
	adapters, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the RDMA adapters: %w", err)
	}
	for _, adapter := range adapters {
		numbers, err := os.ReadDir(filepath.Join(dir, adapter.Name(), "ports"))
		if err != nil {
			all = append(all, port{Adapter: adapter.Name(), Number: "?", Unread: "list of its ports: " + reason(err)})
		}
		for _, number := range numbers {
			p := port{Adapter: adapter.Name(), Number: number.Name()}
			path := filepath.Join(dir, p.Adapter, "ports", p.Number)
			if p.Sent, err = bounded.Do(ctx, &r.calls, path, func() (uint64, error) { return sent(path) }); err != nil {
				p.Unread = "port_xmit_data: " + reason(err)
			}
			all = append(all, p)
		}
	}
	return all, nil
}

func sent(dir string) (uint64, error) {
	text, err := sysfs.Read(filepath.Join(dir, "counters/port_xmit_data"))
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0, err
	}
	// Counters of 32 bits stop there (InfiniBand Architecture Specification, PortCounters), which is within seconds.
	if n == math.MaxUint32 {
		return 0, errors.New("a counter of 32 bits at its end")
	}
	return n, nil
}

// reason is an error without the path, which the subject says.
func reason(err error) string {
	if path := (*fs.PathError)(nil); errors.As(err, &path) {
		return path.Err.Error()
	}
	return err.Error()
}
