package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/coreos/go-systemd/v22/dbus"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/growth"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/systemd"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot  boot.Boot `json:"boot"`
	Units []unit    `json:"units"`
	// Unshared is why the state could not be kept.
	Unshared string `json:"unshared,omitempty"`
}

// unit is one unit as systemd sees it (org.freedesktop.systemd1(5)).
type unit struct {
	Name string `json:"name"`
	// Asked: -units or, of a fabric manager that does not run, the node's hardware asks for it. Otherwise it is judged where it is
	// installed and enabled.
	Asked bool `json:"asked"`
	// Load, Active, Sub and File are the properties LoadState, ActiveState, SubState and UnitFileState.
	Load   string `json:"load"`
	Active string `json:"active"`
	Sub    string `json:"sub"`
	File   string `json:"file"`
	// Of a service that does not run: Result is the property of that name, Exit how its main program ended, Status the property StatusText.
	Result string `json:"result,omitempty"`
	Exit   string `json:"exit,omitempty"`
	Status string `json:"status,omitempty"`
	// Log is the last error in its own log, if that can be read.
	Log string `json:"log,omitempty"`
	// Restarts are those that systemd made by itself.
	Restarts growth.Counter `json:"restarts"`
	Err      string         `json:"err,omitempty"`
}

// usual are the units of a GPU node.
var usual = []string{
	"kubelet.service", "containerd.service", "crio.service", "chrony.service", "chronyd.service",
	"nvidia-persistenced.service", "nvidia-dcgm.service", "nv-hostengine.service", "nvidia-imex.service", fabricManager,
}

// fabricManager is needed wherever there is an NVLink fabric for it to manage, enabled or not, but it may run in a driver container: then
// it is not installed.
const fabricManager = "nvidia-fabricmanager.service"

// PCI ids: an NVSwitch (HGX-2, HGX A100, HGX H100) is a bridge of NVIDIA's. The switches of HGX B200 and later are no PCI devices; the host
// reaches them by adapters of Mellanox's.
const (
	nvidia   = 0x10de
	mellanox = 0x15b3
	bridge   = 0x0680
)

type reader struct {
	plugin                 *npd.Plugin
	systemd, sysfs, procfs string
	fabricLog              string
	units                  []string

	store npd.Store[state]
	// calls are those about the node's hardware.
	calls bounded.Calls
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
	conn, err := bounded.Do(ctx, &r.calls, r.systemd, func() (*dbus.Conn, error) { return systemd.Connect(ctx, r.systemd) })
	if errors.Is(err, bounded.ErrNoAnswer) {
		err = fmt.Errorf("systemd at %s: %w", r.systemd, err)
	}
	if err != nil {
		return snapshot{}, err
	}
	defer conn.Close()
	s := snapshot{Boot: b}
	if s.Units, err = r.list(ctx, conn); err != nil {
		return snapshot{}, err
	}
	// Half of the time, so that a systemd which stops to answer leaves what it has said of the units before.
	asking, cancel := bounded.Share(ctx, 2)
	defer cancel()
	for i := range s.Units {
		err := s.Units[i].read(asking, conn)
		if errors.Is(err, context.DeadlineExceeded) {
			err = bounded.ErrNoAnswer
		}
		if u := &s.Units[i]; u.Name == fabricManager && u.Load == "loaded" && !u.runs() {
			// A log that cannot be read, or hangs, only makes the message shorter.
			u.Log, _ = bounded.Do(ctx, &r.calls, r.fabricLog, func() (string, error) { return lastError(r.fabricLog), nil })
			if !u.Asked {
				var unknown error
				u.Asked, unknown = bounded.Do(ctx, &r.calls, r.sysfs, func() (bool, error) { return managesFabric(r.sysfs) })
				err = errors.Join(err, unknown)
			}
		}
		if err != nil {
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
	names := usual
	if len(r.units) > 0 {
		names = r.units
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
			Name: s.Name, Asked: len(r.units) > 0,
			Load: s.LoadState, Active: s.ActiveState, Sub: s.SubState,
		})
	}
	return units, nil
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
	if u.runs() {
		return nil
	}
	return u.readEnd(ctx, conn)
}

// runs reports whether the unit does its work.
func (u *unit) runs() bool {
	return u.Active == "active" || u.Active == "reloading" || u.Active == "refreshing"
}

// readEnd reads how the program of a service ended.
func (u *unit) readEnd(ctx context.Context, conn *dbus.Conn) error {
	var code, status int32
	for name, to := range map[string]any{"Result": &u.Result, "StatusText": &u.Status, "ExecMainCode": &code, "ExecMainStatus": &status} {
		property, err := conn.GetServicePropertyContext(ctx, u.Name, name)
		if err != nil {
			return err
		}
		if err := property.Value.Store(to); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	// CLD_EXITED, CLD_KILLED and CLD_DUMPED of sigaction(2).
	switch code {
	case 1:
		u.Exit = fmt.Sprintf("status=%d", status)
	case 2, 3:
		u.Exit = fmt.Sprintf("signal=%d", status)
	}
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
