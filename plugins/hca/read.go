package main

import (
	"context"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/kmsg"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot    boot.Boot `json:"boot"`
	Devices []device  `json:"devices"`
	// History is what is remembered of the ports, this look included.
	History history `json:"history"`
	// Gone are ports that were there in this boot and are not now.
	Gone []gone `json:"gone"`
	EFA  efa    `json:"efa"`
	// Tool is what ibv_devinfo said, where it is asked instead of sysfs.
	Tool *devinfo `json:"tool,omitempty"`
	// Unread is why the kernel log could not be read, Unshared why the state could not be kept.
	Unread   string `json:"unread,omitempty"`
	Unshared string `json:"unshared,omitempty"`
}

// reader reads sysfs and keeps the history of the ports.
type reader struct {
	plugin        *npd.Plugin
	sysfs, procfs string
	tool, kmsg    string
	ignore        names
	countersEvery time.Duration
	flaps         *int

	store npd.Store[history]
	log   *kmsg.Reader
	// calls are those about the adapters and ports, by their folders.
	calls bounded.Calls
	// adapters are those seen in this run, by their folders.
	adapters map[string]adapter
	// fabric is what was seen of EFA, with the counters: it takes a walk over the PCI bus and all processes.
	fabric *efa
	// detailsEvery is the pause between two looks that read all. Those between them read the state of each port.
	detailsEvery time.Duration
	// details is the last look that read all, at when (uptime), states the ports of it; nil if it failed.
	details *snapshot
	at      time.Duration
	states  []portState
}

// usesDriver: ibv_devinfo opens the devices; a read of sysfs is answered by the kernel.
func (r *reader) usesDriver() bool { return r.tool != "" }

func (r *reader) driver() string { return npd.Module(r.sysfs, "mlx5_core") }

func (r *reader) read(ctx context.Context) (snapshot, error) {
	now, err := npd.Uptime()
	if err != nil {
		return snapshot{}, err
	}
	// Another run may have forgotten a fault.
	_, same := r.store.Unchanged()
	if r.details != nil && same && now-r.at < r.detailsEvery && r.unchanged(ctx) {
		return *r.details, nil
	}
	r.closeStates()
	r.details = nil
	s, err := r.readAll(ctx)
	if err == nil && s.Tool == nil {
		r.details, r.at = &s, now
	}
	return s, err
}

func (r *reader) readAll(ctx context.Context) (snapshot, error) {
	b, err := r.open()
	if err != nil {
		return snapshot{}, err
	}
	if r.tool != "" {
		tool, err := r.askTool(ctx)
		return snapshot{Boot: b, Devices: []device{}, Gone: []gone{}, Tool: &tool}, err
	}
	s := snapshot{Boot: b, Devices: []device{}, Gone: []gone{}}
	before, ok := r.store.Unchanged()
	if !ok {
		before, _ = r.store.Update(func(*history) bool { return false })
	}
	counters := before.CountersAt == 0 || b.Uptime-before.CountersAt >= r.countersEvery
	if s.Devices, err = r.devices(ctx, before.Management, counters); err != nil {
		return snapshot{}, err
	}
	modules, next, err := r.follow(before.Next)
	if err != nil {
		s.Unread = err.Error()
	}
	s.History, err = r.remember(func(h *history) bool {
		added := h.addEvents(modules, next)
		return h.advance(b.Uptime, s.Devices, *r.flaps) || added
	})
	if err != nil {
		s.Unshared = err.Error()
	}
	s.Gone = r.gone(s.Devices, s.History)
	if r.fabric == nil || counters {
		e := r.efa()
		r.fabric = &e
	}
	s.EFA = *r.fabric
	return s, nil
}

// remember takes in a look. Most looks see what the one before has seen: then the state is neither locked nor read nor written.
func (r *reader) remember(change func(*history) (changed bool)) (history, error) {
	if h, ok := r.store.Unchanged(); ok {
		if h = h.clone(); !change(&h) {
			return h, nil
		}
	}
	return r.store.Update(change)
}

func (r *reader) clear(_ context.Context, subject string) (cleared []string, err error) {
	if _, err := r.open(); err != nil {
		return nil, err
	}
	_, err = r.store.Update(func(h *history) bool {
		cleared = h.clear(subject)
		return len(cleared) > 0
	})
	return cleared, err
}

// open binds the state to this boot.
func (r *reader) open() (boot.Boot, error) {
	return r.store.Open(r.procfs, r.plugin.StateDir, "hca")
}
