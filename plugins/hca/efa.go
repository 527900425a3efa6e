package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/instances"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
)

// efa is what the node has of Amazon's Elastic Fabric Adapter.
type efa struct {
	// Devices are the EFA functions on the PCI bus, Bare those of them without an RDMA device.
	Devices []string `json:"devices"`
	Bare    []string `json:"bare"`
	// Instance is the type of the cloud instance, Expected how many EFA devices it has; 0 if that is not known.
	Instance string `json:"instance,omitempty"`
	Expected int    `json:"expected,omitempty"`
	// Verbs is the number of uverbs devices, MissingModules what is not loaded.
	Verbs          int      `json:"verbs"`
	MissingModules []string `json:"missingModules"`
	// Memlock is the limit on locked memory that containers start with, in bytes.
	Memlock uint64 `json:"memlock"`
	Err     string `json:"err,omitempty"`
}

// PCI ids: Amazon, EFA 0 to 3 (amzn-drivers kernel/linux/efa/src/efa_main.c).
const (
	amazon   = 0x1d0f
	efaFirst = 0xefa0
	efaLast  = 0xefa3
)

func (r *reader) efa() efa {
	e := efa{Devices: []string{}, Bare: []string{}, MissingModules: []string{}}
	functions, err := sysfs.PCI(r.sysfs, amazon)
	if err != nil {
		e.Err = err.Error()
	}
	for _, f := range functions {
		if f.Device < efaFirst || f.Device > efaLast {
			continue
		}
		e.Devices = append(e.Devices, f.Address)
		if rdma, err := os.ReadDir(filepath.Join(r.sysfs, "bus/pci/devices", f.Address, "infiniband")); err != nil || len(rdma) == 0 {
			e.Bare = append(e.Bare, f.Address)
		}
	}
	if len(e.Devices) == 0 {
		return e
	}
	i, found, err := instances.Find(instances.Builtin, instances.Product(r.sysfs))
	if err != nil {
		e.Err = err.Error()
	}
	if found {
		e.Instance, e.Expected = instances.Product(r.sysfs), i.EFA
	}
	verbs, err := filepath.Glob(filepath.Join(r.sysfs, "class/infiniband_verbs/uverbs*"))
	if err != nil {
		e.Err = err.Error()
	}
	e.Verbs = len(verbs)
	for _, module := range []string{"efa", "ib_uverbs", "ib_core"} {
		if _, err := os.Stat(filepath.Join(r.sysfs, "module", module)); err != nil {
			e.MissingModules = append(e.MissingModules, module)
		}
	}
	if e.Memlock, err = memlock(r.procfs); err != nil {
		e.Err = err.Error()
	}
	return e
}

// memlock returns the limit of containerd, which containers inherit.
func memlock(procfs string) (uint64, error) {
	comms, err := filepath.Glob(filepath.Join(procfs, "[0-9]*/comm"))
	if err != nil {
		return 0, err
	}
	for _, path := range comms {
		// A process may be gone by now.
		if comm, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(comm)) != "containerd" {
			continue
		}
		limits, err := os.ReadFile(filepath.Join(filepath.Dir(path), "limits"))
		if err != nil {
			return 0, err
		}
		return parseMemlock(string(limits))
	}
	return 0, fmt.Errorf("no containerd in %s", procfs)
}

// unlimited is the memlock limit of a process that has none.
const unlimited = ^uint64(0)

// parseMemlock returns the soft limit on locked memory from /proc/PID/limits, in bytes.
func parseMemlock(limits string) (uint64, error) {
	for line := range strings.Lines(limits) {
		rest, found := strings.CutPrefix(line, "Max locked memory")
		if !found {
			continue
		}
		fields := strings.Fields(rest)
		switch {
		case len(fields) == 0:
		case fields[0] == "unlimited":
			return unlimited, nil
		default:
			return strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return 0, fmt.Errorf("no limit on locked memory in %.80q", limits)
}
