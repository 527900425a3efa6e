package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/growth"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
	"github.com/pitcrew-dev/pitcrew/internal/systemd"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot  boot.Boot `json:"boot"`
	Units []unit    `json:"units"`
	// Unshared says why the state could not be kept.
	Unshared string `json:"unshared,omitempty"`
}

// unit is one unit as systemd sees it (org.freedesktop.systemd1(5)).
type unit struct {
	Name string `json:"name"`
	// Asked: -units or the node's hardware asks for it. Otherwise it is judged where it is installed and enabled.
	Asked bool `json:"asked"`
	// Load, Active, Sub and File are the properties LoadState, ActiveState, SubState and UnitFileState.
	Load   string `json:"load"`
	Active string `json:"active"`
	Sub    string `json:"sub"`
	File   string `json:"file"`
	// Restarts are those that systemd made by itself.
	Restarts growth.Counter `json:"restarts"`
	Err      string         `json:"err,omitempty"`
}

// usual are the units of a GPU node.
var usual = []string{
	"kubelet.service", "containerd.service", "crio.service", "chrony.service", "chronyd.service",
	"nvidia-persistenced.service", "nvidia-dcgm.service", "nv-hostengine.service", "nvidia-imex.service", fabricManager,
}

// fabricManager is needed wherever there are NVSwitches, enabled or not, but it may run in a driver container: then it
// is not installed.
const fabricManager = "nvidia-fabricmanager.service"

// PCI ids of an NVSwitch.
const (
	nvidia = 0x10de
	bridge = 0x068000
)

type reader struct {
	plugin                 *npd.Plugin
	systemd, sysfs, procfs string
	units                  []string

	store npd.Store[state]
}

// state remembers the restarts of the units by name.
type state struct {
	Restarts map[string]growth.Counter `json:"restarts"`
}

// longest is how long restarts are remembered.
const longest = time.Hour

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := r.store.Open(r.procfs, r.plugin.StateDir, "units")
	if err != nil {
		return snapshot{}, err
	}
	conn, err := systemd.Connect(ctx, r.systemd)
	if err != nil {
		return snapshot{}, err
	}
	defer conn.Close()
	s := snapshot{Boot: b}
	if s.Units, err = r.list(ctx, conn); err != nil {
		return snapshot{}, err
	}
	for i := range s.Units {
		if err := s.Units[i].read(ctx, conn); err != nil {
			s.Units[i].Err = err.Error()
		}
	}
	if _, err := r.store.Update(func(st *state) bool { return st.advance(b.Uptime, s.Units) }); err != nil {
		s.Unshared = err.Error()
	}
	return s, nil
}

// list asks for all units at once. An alias comes back under the unit's own name, which is taken once.
func (r *reader) list(ctx context.Context, conn *dbus.Conn) ([]unit, error) {
	names, switches, err := usual, false, error(nil)
	if len(r.units) > 0 {
		names = r.units
	} else if switches, err = r.switches(); err != nil {
		return nil, err
	}
	statuses, err := conn.ListUnitsByNamesContext(ctx, names)
	if err != nil {
		return nil, fmt.Errorf("systemd at %s: %w", r.systemd, err)
	}
	units := []unit{}
	for _, s := range statuses {
		if slices.ContainsFunc(units, func(u unit) bool { return u.Name == s.Name }) {
			continue
		}
		units = append(units, unit{
			Name: s.Name, Asked: len(r.units) > 0 || switches && s.Name == fabricManager && s.LoadState == "loaded",
			Load: s.LoadState, Active: s.ActiveState, Sub: s.SubState,
		})
	}
	return units, nil
}

func (r *reader) switches() (bool, error) {
	functions, err := sysfs.PCI(r.sysfs, nvidia)
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(functions, func(f sysfs.Function) bool { return f.Class == bridge }), nil
}

func (u *unit) read(ctx context.Context, conn *dbus.Conn) error {
	if u.Load != "loaded" {
		return nil
	}
	file, err := conn.GetUnitPropertyContext(ctx, u.Name, "UnitFileState")
	if err != nil {
		return err
	}
	if err := file.Value.Store(&u.File); err != nil {
		return fmt.Errorf("UnitFileState: %w", err)
	}
	if !strings.HasSuffix(u.Name, ".service") {
		return nil
	}
	restarts, err := conn.GetServicePropertyContext(ctx, u.Name, "NRestarts")
	if err != nil {
		return err
	}
	var n uint32
	if err := restarts.Value.Store(&n); err != nil {
		return fmt.Errorf("NRestarts: %w", err)
	}
	u.Restarts = growth.Start(uint64(n))
	return nil
}

// advance takes in the restarts of one look and completes the units with those before.
func (st *state) advance(now time.Duration, units []unit) (changed bool) {
	known := map[string]growth.Counter{}
	for i := range units {
		u := &units[i]
		value := u.Restarts.Last
		c, before := st.Restarts[u.Name]
		switch {
		case u.Err != "":
			value = c.Last
		case !before:
			c = growth.Start(value)
		}
		c.Add(now, value, longest)
		changed = changed || !before || value != st.Restarts[u.Name].Last || len(c.Steps) != len(st.Restarts[u.Name].Steps)
		u.Restarts, known[u.Name] = c, c
	}
	st.Restarts = known
	return changed
}
