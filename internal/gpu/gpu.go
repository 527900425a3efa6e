// Package gpu holds what the GPU checks see of a node's NVIDIA GPUs, as plain values. internal/nvml fills them.
// A nil pointer means that the driver does not support the question on this GPU, which is never a fault.
package gpu

import (
	"cmp"
	"strings"
	"time"
)

// Reading is one look at a node.
type Reading struct {
	// Uptime is the time since the boot (CLOCK_MONOTONIC).
	Uptime time.Duration `json:"uptime"`
	// Bus are the NVIDIA GPUs on the PCI bus.
	Bus []BusDevice `json:"bus"`
	// Module is the loaded kernel driver, "" while there is none or while it is being loaded or removed.
	Module string `json:"module,omitempty"`
	// Mismatch reports that the driver's library and kernel module are of different versions, and which.
	Mismatch string `json:"mismatch,omitempty"`
	// Unread is why NVML gave nothing at all.
	Unread string `json:"unread,omitempty"`
	// GPUs are the GPUs that NVML knows of and those on the bus that it does not know.
	GPUs []GPU `json:"gpus,omitempty"`
}

// BusDevice is a GPU as the PCI bus shows it (Linux Documentation/ABI/testing/sysfs-bus-pci).
type BusDevice struct {
	// Address is domain, bus and device, e.g. "0000:4e:00"; see [Address].
	Address string `json:"address"`
	// Driver is the kernel driver it is bound to, "" for none.
	Driver string `json:"driver,omitempty"`
	// Width is the number of PCIe lanes in use, MaxWidth what both it and the port above it can; 0 if unknown.
	Width    int `json:"width,omitempty"`
	MaxWidth int `json:"maxWidth,omitempty"`
}

// GPU is one GPU as NVML shows it.
type GPU struct {
	Address string `json:"address"`
	Name    string `json:"name,omitempty"`
	// Minor is the number N of its /dev/nvidiaN.
	Minor *int `json:"minor,omitempty"`
	// NotInNVML is set for a GPU on the bus that NVML does not know.
	NotInNVML bool `json:"notInNVML,omitempty"`
	// NoHandle is NVML's UNKNOWN instead of a handle, or to every question: the usual face of a GPU that is off the bus. Unusable is its
	// INSUFFICIENT_POWER or IRQ_ISSUE, the other errors that nvml.h has for a handle and that are of the GPU.
	NoHandle string `json:"noHandle,omitempty"`
	Unusable string `json:"unusable,omitempty"`
	// Lost is NVML's GPU_IS_LOST, NeedsReset its RESET_REQUIRED, on any question.
	Lost       bool `json:"lost,omitempty"`
	NeedsReset bool `json:"needsReset,omitempty"`
	// Unread is which question failed otherwise, and how.
	Unread string `json:"unread,omitempty"`
	MIG    bool   `json:"mig,omitempty"`
	// MIGUnread reports that the GPU may be in MIG mode: the question failed.
	MIGUnread   bool  `json:"migUnread,omitempty"`
	Persistence *bool `json:"persistence,omitempty"`
	// Serial, UUID and VBIOS are what a vendor asks for; "" if the GPU does not say. Nothing is judged by them.
	Serial string `json:"serial,omitempty"`
	UUID   string `json:"uuid,omitempty"`
	VBIOS  string `json:"vbios,omitempty"`

	// Busy reports that processes compute on it, or that it is not idle for another reason.
	Busy *bool `json:"busy,omitempty"`

	Memory  *Memory  `json:"memory,omitempty"`
	Thermal *Thermal `json:"thermal,omitempty"`
	NVLink  *NVLink  `json:"nvlink,omitempty"`
	Work    *Work    `json:"work,omitempty"`
}

// Subject is how messages name the GPU, the same in all checks.
func (g GPU) Subject() string { return "gpu " + g.Address }

// Unlisted is how messages say [GPU.NotInNVML].
const Unlisted = "on the PCI bus but not in NVML"

// IsLost is how messages say [GPU.Lost], in NVML's words.
const IsLost = "GPU is lost"

// NotRead returns why not every question about the GPU was answered, "" if all were.
func (g GPU) NotRead() string {
	switch {
	case g.Lost:
		return IsLost
	case g.NeedsReset:
		return "requires a reset"
	}
	return g.Silent()
}

// Silent is [GPU.NotRead] for one that NVML neither calls lost nor in need of a reset.
func (g GPU) Silent() string {
	if g.NotInNVML {
		return Unlisted
	}
	return cmp.Or(g.NoHandle, g.Unusable, g.Unread)
}

// Memory is what a GPU reports of its memory errors.
type Memory struct {
	// Remap is the state of row remapping (Ampere and later).
	Remap *Remap `json:"remap,omitempty"`
	// Banks is the state of bank remapping (Rubin and later).
	Banks *Banks `json:"banks,omitempty"`
	// Retired is the state of page retirement (before Ampere).
	Retired *Retired `json:"retired,omitempty"`
	// VolatileUncorrected counts since the last driver load, AggregateUncorrected over the GPU's life.
	VolatileUncorrected  *uint64 `json:"volatileUncorrected,omitempty"`
	AggregateUncorrected *uint64 `json:"aggregateUncorrected,omitempty"`
	// SRAMThresholdExceeded is the vendor's own verdict on the SRAM.
	SRAMThresholdExceeded *bool `json:"sramThresholdExceeded,omitempty"`
	// Recovery is what the driver asks for.
	Recovery *RecoveryAction `json:"recovery,omitempty"`
	// InfoROMCorrupt is NVML's CORRUPTED_INFOROM.
	InfoROMCorrupt bool `json:"infoROMCorrupt,omitempty"`
}

// Remap is nvmlDeviceGetRemappedRows: numbers of rows, and whether a reset is pending or remapping has failed.
type Remap struct {
	Correctable   int  `json:"correctable"`
	Uncorrectable int  `json:"uncorrectable"`
	Pending       bool `json:"pending"`
	Failed        bool `json:"failed"`
}

// Banks is nvmlDeviceGetBankRemapperStatus_v1: the number of remappings in use, and whether one is pending.
type Banks struct {
	Active  int  `json:"active"`
	Pending bool `json:"pending"`
}

// Retired counts retired pages by cause, single-bit and double-bit errors.
type Retired struct {
	SingleBit int  `json:"singleBit"`
	DoubleBit int  `json:"doubleBit"`
	Pending   bool `json:"pending"`
}

// Thermal is a GPU's heat. Temperatures are degrees Celsius.
type Thermal struct {
	Core    *int `json:"core,omitempty"`
	CoreMax *int `json:"coreMax,omitempty"`
	HBM     *int `json:"hbm,omitempty"`
	HBMMax  *int `json:"hbmMax,omitempty"`
	// Shutdown is the core temperature at which the GPU shuts itself down.
	Shutdown *int `json:"shutdown,omitempty"`
	// Margin is how far the core is from its limit, T.Limit of newer GPUs; ShutdownMargin is the (negative) margin at
	// which the GPU shuts down.
	Margin         *int `json:"margin,omitempty"`
	ShutdownMargin *int `json:"shutdownMargin,omitempty"`
	// Slowed is the time that the hardware held the clocks down since the driver was loaded.
	Slowed *time.Duration `json:"slowed,omitempty"`
	// Reasons are the bits of nvmlClocksEventReasons: what holds the clocks down now.
	Reasons *uint64 `json:"reasons,omitempty"`
	// Slow reports that it is the hardware.
	Slow *bool `json:"slow,omitempty"`
	// Clocks is nil unless it was asked for.
	Clocks *Clocks `json:"clocks,omitempty"`
}

// Clocks is how fast a GPU is, and how busy. Clocks are in MHz.
type Clocks struct {
	SM *int `json:"sm,omitempty"`
	// Most is the highest clock of this GPU.
	Most *int `json:"most,omitempty"`
	// Busy is the share of the last moment, in percent, in which a kernel ran.
	Busy *int `json:"busy,omitempty"`
}

// Work is what a GPU does. The counters begin with the load of the driver.
type Work struct {
	// Held reports that a process has the GPU open; nil if that is not known.
	Held *bool `json:"held,omitempty"`
	// Busy is the share of the last moment, in percent, in which a kernel ran. One that only waits for a peer counts, too.
	Busy *int `json:"busy,omitempty"`
	// Energy is what the GPU has used, in millijoules.
	Energy *uint64 `json:"energy,omitempty"`
	// PowerLimit is what it may use now, in milliwatts.
	PowerLimit *uint64 `json:"powerLimit,omitempty"`
	// NVLink counts what all its links have sent and received, in bytes.
	NVLink *uint64 `json:"nvlink,omitempty"`
}

// NVLink is the state of a GPU's links.
type NVLink struct {
	Links  []Link  `json:"links"`
	Fabric *Fabric `json:"fabric,omitempty"`
}

// Link is one NVLink. One that is none of Active, Off and Unread is down.
type Link struct {
	Active bool `json:"active"`
	// Off is NVML's NOT_SUPPORTED: the GPU does not have the link, or it is turned off, as in virtual machines with one GPU.
	Off bool `json:"off,omitempty"`
	// NoTraffic is NVML's ACTIVE_TRAFFIC_DISABLED of a link that is Active.
	NoTraffic bool `json:"noTraffic,omitempty"`
	// Unread reports that its state could not be asked, or is none that is known.
	Unread bool `json:"unread,omitempty"`
	// Errors sums the counters that mean something on this generation of NVLink. Only a run that judges them asks for them.
	Errors *uint64 `json:"errors,omitempty"`
}

// Fabric is the GPU's registration with the NVSwitch fabric.
type Fabric struct {
	// Completed reports that the registration has ended; Status is its result, an nvmlReturn_t, 0 for success.
	Completed bool `json:"completed"`
	Status    int  `json:"status"`
	// Unhealthy is the driver's own summary, where it gives one.
	Unhealthy bool `json:"unhealthy,omitempty"`
	// Degraded is what it says of the fabric beside that.
	Degraded []string `json:"degraded,omitempty"`
}

// Address brings a PCI address of NVML ("00000000:4E:00.0") or sysfs ("0000:4e:00.0") to the form of the driver's
// Xid lines and of all our messages: "0000:4e:00".
func Address(s string) string {
	s = strings.ToLower(s)
	if i := strings.IndexByte(s, '.'); i >= 0 {
		s = s[:i]
	}
	// NVML prints a domain in eight digits, the kernel in at least four.
	for len(s) > 4 && s[0] == '0' && strings.IndexByte(s, ':') > 4 {
		s = s[1:]
	}
	return s
}
