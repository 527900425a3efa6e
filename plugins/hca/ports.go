package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
)

// device is one adapter, <sysfs>/class/infiniband/<Name>.
type device struct {
	Name string `json:"name"`
	// Address is the PCI function's, "" when there is none.
	Address string `json:"address"`
	// Board is the card model by its firmware (board_id), else the chip (hca_type).
	Board string `json:"board"`
	// Management: the adapter only manages NVLink switches.
	Management bool `json:"management,omitempty"`
	// Skip is why the adapter is not judged.
	Skip  string `json:"skip,omitempty"`
	Ports []port `json:"ports"`
	Err   string `json:"err,omitempty"`
}

// port is one port of an adapter, <device>/ports/<Number>.
type port struct {
	Number int `json:"number"`
	// State and Phys are the words of state and phys_state, e.g. ACTIVE and LinkUp.
	State string `json:"state"`
	Phys  string `json:"phys"`
	// Rate is in Gb/s.
	Rate float64 `json:"rate"`
	Link string  `json:"link"`
	// Netdev is the network interface of a RoCE port and OperState its state, "" when the kernel names none.
	Netdev    string `json:"netdev,omitempty"`
	OperState string `json:"operState,omitempty"`
	// GID reports whether one of the first GIDs of a RoCE port is set.
	GID bool `json:"gid"`
	// GIDErr is why they could not be read. What else is known of the port is judged.
	GIDErr string `json:"gidErr,omitempty"`
	// Counters by name; not in every look.
	Counters map[string]uint64 `json:"counters,omitempty"`
	// Err is why the port could not be read, CounterErr why a counter could not.
	Err        string `json:"err,omitempty"`
	CounterErr string `json:"counterErr,omitempty"`
}

// up reports whether traffic passes (ACTIVE_DEFER is ACTIVE that waits for a short loss of the link to end).
func (p port) up() bool { return p.State == "ACTIVE" || p.State == "ACTIVE_DEFER" }

// gone is a port whose adapter is not in sysfs any more.
type gone struct {
	Device string `json:"device"`
	Port   int    `json:"port"`
	// Bound: its PCI function is there and has a driver.
	Bound bool `json:"bound"`
}

func (r *reader) devices(ctx context.Context, management map[string]bool, counters bool) ([]device, error) {
	class := filepath.Join(r.sysfs, "class")
	// No adapter is healthy, no sysfs is not.
	if _, err := os.Stat(class); err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(filepath.Join(class, "infiniband"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	devices := []device{}
	for _, entry := range entries {
		devices = append(devices, r.device(ctx, filepath.Join(class, "infiniband", entry.Name()), management, counters))
	}
	return devices, nil
}

func (r *reader) device(ctx context.Context, dir string, management map[string]bool, counters bool) device {
	d := device{Name: filepath.Base(dir), Ports: []port{}}
	fixed, err := r.adapter(ctx, dir, management)
	if err != nil {
		d.Err = err.Error()
		return d
	}
	d.Address, d.Board = fixed.address, fixed.board
	var known bool
	if d.Management, known = management[d.Address]; !known {
		d.Management = fixed.managesNVLink
	}
	switch {
	case r.ignore.has(d.Name, 0):
		d.Skip = "ignored"
	case fixed.virtual:
		// Its physical function is judged. A virtual one without (in a VM) is all there is, and is judged.
		d.Skip = "virtual function"
	case d.Management:
		d.Skip = "manages NVLink switches"
	}
	if d.Skip != "" {
		return d
	}
	ports, err := os.ReadDir(filepath.Join(dir, "ports"))
	if err != nil {
		d.Err = err.Error()
		return d
	}
	for _, entry := range ports {
		number, err := strconv.Atoi(entry.Name())
		if err != nil {
			d.Err = fmt.Sprintf("port %q is no number", entry.Name())
			continue
		}
		if r.ignore.has(d.Name, number) {
			continue
		}
		d.Ports = append(d.Ports, r.port(ctx, filepath.Join(dir, "ports", entry.Name()), number, counters))
	}
	return d
}

// port reads one port. Its counters, each an access to the firmware, may hang without hiding its state.
func (r *reader) port(ctx context.Context, dir string, number int, counters bool) port {
	type answer struct {
		port  port
		state portState
	}
	a, err := bounded.Do(ctx, &r.calls, dir, func() (a answer, err error) {
		a.port.Number = number
		a.state, err = a.port.read(r.sysfs, dir)
		return a, err
	})
	a.state.path = dir
	r.states = append(r.states, a.state)
	if err != nil {
		return port{Number: number, Err: err.Error()}
	}
	p := a.port
	if counters {
		read, err := bounded.Do(ctx, &r.calls, dir+"/counters", func() (c counts, _ error) { return readCounters(dir), nil })
		if p.Counters, p.CounterErr = read.values, read.err; err != nil {
			p.CounterErr = "counters: " + err.Error()
		}
	}
	return p
}

// adapter is what does not change of an adapter while it is there.
type adapter struct {
	// info is its folder's: the kernel makes another one when the adapter comes back.
	info           os.FileInfo
	address, board string
	virtual        bool
	managesNVLink  bool
}

// adapter reads what does not change once per run.
func (r *reader) adapter(ctx context.Context, dir string, management map[string]bool) (adapter, error) {
	info, err := os.Stat(dir)
	if known, ok := r.adapters[dir]; ok && err == nil && os.SameFile(known.info, info) && known.info.ModTime().Equal(info.ModTime()) {
		return known, nil
	}
	address := ""
	if pci, err := filepath.EvalSymlinks(filepath.Join(dir, "device")); err == nil && filepath.Base(pci) != "device" {
		address = filepath.Base(pci)
	}
	_, known := management[address]
	a, err := bounded.Do(ctx, &r.calls, dir, func() (adapter, error) { return readAdapter(dir, !known), nil })
	a.info, a.address = info, address
	// A part that could not be read is asked again.
	if info != nil && a.address != "" && a.board != "" {
		r.adapters[dir] = a
	}
	return a, err
}

func readAdapter(dir string, management bool) (a adapter) {
	_, err := os.Lstat(filepath.Join(dir, "device/physfn"))
	a.virtual = err == nil
	for _, name := range []string{"board_id", "hca_type"} {
		if board, err := sysfs.Read(filepath.Join(dir, name)); err == nil && a.board == "" {
			a.board = board
		}
	}
	a.managesNVLink = management && managesNVLink(dir)
	return a
}

// managesNVLink looks for the mark by which NVIDIA's own fabric manager start script knows the adapters that connect
// a host to its NVLink switches and never carry traffic.
func managesNVLink(dir string) bool {
	vpd, err := os.ReadFile(filepath.Join(dir, "device/vpd"))
	return err == nil && bytes.Contains(vpd, []byte("SW_MNG"))
}

func (p *port) read(root, dir string) (state portState, err error) {
	if state, err = openState(filepath.Join(dir, "state")); err != nil {
		return state, err
	}
	if p.State, err = wordOf(filepath.Join(dir, "state"), state.text); err != nil {
		return state, err
	}
	if p.Phys, err = readWord(filepath.Join(dir, "phys_state")); err != nil {
		return state, err
	}
	if p.Rate, err = readRate(filepath.Join(dir, "rate")); err != nil {
		return state, err
	}
	if p.Link, err = sysfs.Read(filepath.Join(dir, "link_layer")); err != nil {
		return state, err
	}
	if p.Link == "Ethernet" {
		if err := p.readRoCE(root, dir); err != nil {
			p.GIDErr = err.Error()
		}
	}
	return state, nil
}

// readRoCE looks for the first GID that is set, and the network interface it belongs to.
func (p *port) readRoCE(root, dir string) error {
	// The first ones are those of the interface's own addresses; a table has up to 256.
	for i := range 8 {
		gid, err := sysfs.Read(filepath.Join(dir, "gids", strconv.Itoa(i)))
		switch {
		case i > 0 && errors.Is(err, fs.ErrNotExist):
			return nil
		case err != nil:
			return err
		case strings.Trim(gid, "0:") == "":
			continue
		}
		p.GID = true
		// EINVAL where the GID has no interface. And the interface may be in another network namespace: then nothing is
		// known of it here.
		p.Netdev, _ = sysfs.Read(filepath.Join(dir, "gid_attrs/ndevs", strconv.Itoa(i)))
		if p.Netdev != "" {
			p.OperState, _ = sysfs.Read(filepath.Join(root, "class/net", filepath.Base(p.Netdev), "operstate"))
		}
		return nil
	}
	return nil
}

// counts are the counters of a port, and why one of them could not be read.
type counts struct {
	values map[string]uint64
	err    string
}

func readCounters(dir string) counts {
	c := counts{values: map[string]uint64{}}
	for _, rule := range counterRules {
		value, err := sysfs.Uint(filepath.Join(dir, rule.file))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			c.err = err.Error()
		default:
			c.values[rule.name()] = value
		}
	}
	return c
}

// portState is the state of a port in the last look that read all.
type portState struct {
	// path is the port's folder. file is open, nil if it could not be opened.
	path string
	file *sysfs.File
	text string
}

// openState reads the state of a port, and keeps its file open for [reader.unchanged].
func openState(path string) (s portState, err error) {
	if s.file, err = sysfs.Open(path); err != nil {
		return s, err
	}
	s.text, err = s.file.Read()
	return s, err
}

// unchanged reports whether each port has the state that the last look has read.
func (r *reader) unchanged(ctx context.Context) bool {
	for i, port := range r.states {
		if port.file == nil {
			return false
		}
		text, err := bounded.Do(ctx, &r.calls, port.path, port.file.Read)
		if errors.Is(err, bounded.ErrNoAnswer) {
			r.states[i].file = nil // it is being read: it stays open
		}
		if err != nil || text != port.text {
			return false
		}
	}
	return true
}

// closeStates closes the files of the last look that read all.
func (r *reader) closeStates() {
	for _, port := range r.states {
		if port.file != nil {
			port.file.Close()
		}
	}
	r.states = nil
}

// readWord reads a file like "4: ACTIVE".
func readWord(path string) (string, error) {
	text, err := sysfs.Read(path)
	if err != nil {
		return "", err
	}
	return wordOf(path, text)
}

func wordOf(path, text string) (string, error) {
	word, err := parseWord(text)
	if err != nil {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	return word, nil
}

func readRate(path string) (float64, error) {
	text, err := sysfs.Read(path)
	if err != nil {
		return 0, err
	}
	rate, err := parseRate(text)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return rate, nil
}

func (r *reader) gone(devices []device, h history) []gone {
	all := []gone{}
	for _, rec := range h.Ports {
		if r.ignore.has(rec.Device, rec.Port) || slices.ContainsFunc(devices, func(d device) bool { return d.Name == rec.Device }) {
			continue
		}
		_, err := os.Stat(filepath.Join(r.sysfs, "bus/pci/devices", rec.Address, "driver"))
		all = append(all, gone{rec.Device, rec.Port, rec.Address != "" && err == nil})
	}
	slices.SortFunc(all, func(a, b gone) int { return strings.Compare(key(a.Device, a.Port), key(b.Device, b.Port)) })
	return all
}
