package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/bounded"
	"github.com/pitcrew-dev/pitcrew/internal/growth"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// GPUs and Adapters are the PCI addresses of NVIDIA's GPUs and of NVIDIA's RDMA adapters.
	GPUs     []string `json:"gpus"`
	Adapters []string `json:"adapters"`
	// Closed: the driver that is loaded is not the open one, which alone gives its memory to adapters by DMA-BUF.
	Closed bool `json:"closed,omitempty"`
	// Missing are modules that are asked for and not loaded; Peermem: nvidia_peermem is.
	Missing []string `json:"missing,omitempty"`
	Peermem bool     `json:"peermem,omitempty"`
	// Redirects are the ports of PCIe switches that send the traffic of GPUs and adapters through the root complex.
	Redirects []string `json:"redirects,omitempty"`
	// Translated are the GPUs whose traffic an Intel or AMD IOMMU translates.
	Translated []string `json:"translated,omitempty"`
	// EFA counts events of the last hour, by device and counter.
	EFA    map[string]growth.Counter `json:"efa,omitempty"`
	Links  []link                    `json:"links,omitempty"`
	Unread []npd.Unread              `json:"unread,omitempty"`
	Unkept string                    `json:"unkept,omitempty"`
}

type reader struct {
	plugin                 *npd.Plugin
	sysfs, procfs, mlxlink string
	modules                []string
	acs                    bool
	calls                  bounded.Calls
}

const (
	nvidia   = 0x10de
	mellanox = 0x15b3
)

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := boot.Read(r.procfs)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, GPUs: []string{}, Adapters: []string{}}
	gpus, err := r.functions(ctx, nvidia)
	s.notRead("pci", err)
	for _, f := range gpus {
		if f.Class>>16 == 0x03 {
			s.GPUs = append(s.GPUs, f.Address)
		}
	}
	adapters, err := r.functions(ctx, mellanox)
	s.notRead("pci", err)
	for _, f := range adapters {
		if entries, err := os.ReadDir(r.device(f.Address, "infiniband")); err == nil && len(entries) > 0 {
			s.Adapters = append(s.Adapters, f.Address)
		}
	}
	r.readModules(&s)
	if r.acs {
		r.readPaths(ctx, &s)
	}
	if r.mlxlink != "" {
		r.readLinks(ctx, &s)
	}
	s.notRead("efa", r.readEFA(ctx, &s))
	return s, nil
}

// functions returns the PCI functions of a vendor that can be read.
func (r *reader) functions(ctx context.Context, vendor uint64) ([]sysfs.Function, error) {
	type list struct {
		functions []sysfs.Function
		err       error
	}
	l, err := bounded.Do(ctx, &r.calls, "pci", func() (list, error) {
		functions, err := sysfs.PCI(r.sysfs, vendor)
		return list{functions, err}, nil
	})
	return l.functions, errors.Join(l.err, err)
}

// file reads a file that may not answer: a register of a device that is gone, a report in a folder of the network.
func (r *reader) file(ctx context.Context, path string) ([]byte, error) {
	return bounded.Do(ctx, &r.calls, path, func() ([]byte, error) { return os.ReadFile(path) })
}

func (s *snapshot) notRead(subject string, err error) {
	if err != nil {
		s.Unread = append(s.Unread, npd.Unread{Subject: subject, Why: err.Error()})
	}
}

func (r *reader) device(address, name string) string {
	return filepath.Join(r.sysfs, "bus/pci/devices", address, name)
}

func (r *reader) readModules(s *snapshot) {
	loaded := func(name string) bool { return npd.Module(r.sysfs, strings.ReplaceAll(name, "-", "_")) != "" }
	for _, name := range r.modules {
		if !loaded(name) {
			s.Missing = append(s.Missing, name)
		}
	}
	s.Peermem = loaded("nvidia_peermem") || loaded("nv_peer_mem")
	// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05 ...", and without "Open" for the other.
	version, err := sysfs.Read(filepath.Join(r.procfs, "driver/nvidia/version"))
	s.Closed = err == nil && strings.HasPrefix(version, "NVRM version:") && !strings.Contains(version, "Open Kernel Module")
}

// readPaths reads what lies between GPUs and adapters.
func (r *reader) readPaths(ctx context.Context, s *snapshot) {
	iommu, _ := os.ReadDir(filepath.Join(r.sysfs, "class/iommu"))
	intelOrAMD := slices.ContainsFunc(iommu, func(e os.DirEntry) bool {
		return strings.HasPrefix(e.Name(), "dmar") || strings.HasPrefix(e.Name(), "ivhd")
	})
	for _, gpu := range s.GPUs {
		// Documentation/ABI/testing/sysfs-kernel-iommu_groups: identity, DMA, DMA-FQ, auto.
		if kind, err := sysfs.Read(r.device(gpu, "iommu_group/type")); err == nil && intelOrAMD && strings.HasPrefix(kind, "DMA") {
			s.Translated = append(s.Translated, gpu)
		}
	}
	for _, end := range slices.Concat(s.GPUs, s.Adapters) {
		path, err := filepath.EvalSymlinks(filepath.Join(r.sysfs, "bus/pci/devices", end))
		if err != nil {
			s.notRead("pci "+end, err)
			continue
		}
		// The folder above a device is the port that leads to it.
		port := filepath.Dir(path)
		config, err := r.file(ctx, filepath.Join(port, "config"))
		if errors.Is(err, fs.ErrNotExist) {
			continue // a root complex without a port, as in a VM
		}
		redirects := false
		if err == nil {
			redirects, err = redirectsPeers(config)
		}
		switch name := filepath.Base(port); {
		case err != nil:
			s.notRead("pci "+name, err)
		case redirects && !slices.Contains(s.Redirects, name):
			s.Redirects = append(s.Redirects, name)
		}
	}
}

// efaCounters are events of EFA that name no culprit: the network, this node or its peer (drivers/infiniband/hw/efa/efa_verbs.c).
var efaCounters = []string{"retrans_timeout_events", "impaired_remote_conn_events", "unresponsive_remote_events"}

const efaWindow = time.Hour

// readEFA reads the counters of EFA devices and remembers their growth.
func (r *reader) readEFA(ctx context.Context, s *snapshot) error {
	now := map[string]uint64{}
	for _, name := range efaCounters {
		files, _ := filepath.Glob(filepath.Join(r.sysfs, "class/infiniband/*/ports/1/hw_counters", name))
		for _, file := range files {
			device := strings.Split(strings.TrimPrefix(file, filepath.Join(r.sysfs, "class/infiniband")+"/"), "/")[0]
			value, err := bounded.Do(ctx, &r.calls, file, func() (uint64, error) { return sysfs.Uint(file) })
			if err != nil {
				s.notRead("efa "+device, err)
				continue
			}
			now[device+" "+name] = value
		}
	}
	if len(now) == 0 {
		return nil
	}
	store, err := npd.BootStore[map[string]growth.Counter](r.procfs, r.plugin.StateDir, "fabric-efa")
	if err != nil {
		return err
	}
	if s.EFA, err = store.Update(func(counters *map[string]growth.Counter) bool {
		next := map[string]growth.Counter{}
		for name, value := range now {
			c, known := (*counters)[name]
			if !known {
				c = growth.Start(value)
			}
			c.Add(s.Boot.Uptime, value, efaWindow)
			next[name] = c
		}
		*counters = next
		return !r.plugin.Dumps()
	}); err != nil {
		s.Unkept = err.Error()
	}
	return nil
}
