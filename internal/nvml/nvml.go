// Package nvml reads NVIDIA's management library into the plain types of internal/gpu. It is the only package that
// imports go-nvml. Its calls can hang in the driver permanently: call it from a worker only (npd.Check.Driver).
package nvml

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// Part is what to ask each GPU, beyond what it is called and whether it answers.
type Part struct {
	name string
	ask  func(*session, nvml.Device, *gpu.GPU)
	// more asks the same and what only some runs judge.
	more func(*session, nvml.Device, *gpu.GPU)
}

// The parts.
var (
	Memory = Part{name: "memory", ask: (*session).memory}
	// Thermal asks with more for the clocks.
	Thermal = Part{"thermal", (*session).thermal, clocks}
	// NVLink asks with more for the error counters of the links: three more questions for each link.
	NVLink = Part{
		"nvlink", func(s *session, d nvml.Device, g *gpu.GPU) { s.nvlink(d, g, false) },
		func(s *session, d nvml.Device, g *gpu.GPU) { s.nvlink(d, g, true) },
	}
	Activity = Part{name: "activity", ask: (*session).activity}
	Identity = Part{name: "identity", ask: (*session).identity}
	Work     = Part{name: "work", ask: (*session).work}
)

// Source is where the node's devices and libraries are.
type Source struct {
	// DriverRoot is the directory under which the driver's library lies; "" looks where the loader does, and then
	// where NVIDIA's GPU Operator installs the driver.
	DriverRoot string
	// Sysfs is where the sys filesystem lies.
	Sysfs string

	// More, if set, reports after the flags are parsed whether this run judges what only some runs ask.
	More func() bool

	shared *npd.Shared[shared]
	// part is what this check asks.
	part Part
}

// Flags adds the flags of a plugin that reads from s.
func (s *Source) Flags(p *npd.Plugin) {
	p.StringVar(&s.Sysfs, "sysfs", "/sys", "`path` of the sys filesystem")
	p.StringVar(&s.DriverRoot, "driver-root", "",
		"`directory` below which libnvidia-ml.so.1 lies (default: where the loader looks, then /run/nvidia/driver)")
}

// Module identifies the loaded driver, for npd.Check.
func (s *Source) Module() string { return npd.Module(s.Sysfs, "nvidia") }

// Read looks at all GPUs of the node. An error means that not even the PCI bus could be read.
func (s *Source) Read(ctx context.Context, part Part) (gpu.Reading, error) {
	all, err := s.read(ctx, []Part{part})
	return all.of(part), err
}

// shared is what the checks of [Source.Shared] judge.
type shared struct {
	// Reading has no GPUs.
	gpu.Reading
	// Parts are the GPUs as each part saw them, by its name: what fails in one is not known in another.
	Parts map[string][]gpu.GPU `json:"parts"`
	// Hung reports that the calls about a GPU did not return.
	Hung bool `json:"hung,omitempty"`
}

func (s shared) of(part Part) gpu.Reading {
	r := s.Reading
	r.GPUs = s.Parts[part.name]
	return r
}

// judged are the parts that the checks judge which share a read.
var judged = []Part{Memory, Thermal, NVLink, Identity}

// Shared is the read that the checks of memory, heat, links and number share, see npd.Check. part is the one that this check judges;
// [Source.ReadShared] has it. The check of another part reads it by itself: the others shall not ask for what they do not judge, nor hang
// in it.
func (s *Source) Shared(part Part) *npd.Shared[shared] {
	s.part = part
	s.shared = &npd.Shared[shared]{
		Name:     "nvml",
		Read:     func(ctx context.Context) (shared, error) { return s.read(ctx, judged) },
		ReadPart: func(ctx context.Context) (shared, error) { return s.read(ctx, []Part{s.own()}) },
		Apart:    s.apart,
		Whole:    shared.whole,
		Hung:     func(r shared) bool { return r.Hung },
		Nothing:  s.nothing,
		Of:       s.identity,
	}
	return s.shared
}

// apart reports whether this check asks what the shared read does not.
func (s *Source) apart() bool {
	return s.asksMore() || !slices.ContainsFunc(judged, func(p Part) bool { return p.name == s.part.name })
}

func (s *Source) asksMore() bool { return s.More != nil && s.More() }

// own is what this check asks when it reads alone.
func (s *Source) own() Part {
	if s.asksMore() {
		return Part{name: s.part.name, ask: s.part.more}
	}
	return s.part
}

// whole reports whether all checks can judge the reading: NVML answered, and every part is there.
func (s shared) whole() bool {
	missing := slices.ContainsFunc(judged, func(p Part) bool { return s.Parts[p.name] == nil })
	return s.Unread == "" && !missing
}

// ReadShared is [Source.Read] of the part of [Source.Shared].
func (s *Source) ReadShared(ctx context.Context) (gpu.Reading, error) {
	all, err := s.shared.Get(ctx)
	return all.of(s.part), err
}

// nothing opens nothing on a node without a GPU.
func (s *Source) nothing() (shared, bool, error) {
	names, err := gpu.OnBus(s.Sysfs)
	if err != nil || len(names) > 0 {
		return shared{}, false, err
	}
	all, err := s.read(context.Background(), nil)
	return all, true, err
}

// identity changes when the driver is loaded again, when a device comes, goes or changes its driver, and with the flags.
func (s *Source) identity() (string, error) {
	load := "none"
	// The kernel makes the folder with each load, under another number.
	if info, err := os.Stat(filepath.Join(s.Sysfs, "module/nvidia")); err == nil {
		if stat, ok := info.Sys().(*syscall.Stat_t); ok {
			load = fmt.Sprint(stat.Ino)
		}
	}
	bus, err := os.ReadDir(filepath.Join(s.Sysfs, "bus/pci/devices"))
	if err != nil {
		return "", fmt.Errorf("list the PCI bus: %w", err)
	}
	devices := sha256.New()
	for _, device := range bus {
		fmt.Fprintln(devices, device.Name())
	}
	for _, driver := range []string{"nvidia", "vfio-pci"} {
		bound, err := os.ReadDir(filepath.Join(s.Sysfs, "bus/pci/drivers", driver))
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("list the devices of a driver: %w", err)
		}
		for _, device := range bound {
			fmt.Fprintln(devices, driver, device.Name())
		}
	}
	return fmt.Sprintf("%s, load %s, devices %x, %q, %q", s.Module(), load, devices.Sum(nil)[:8], s.Sysfs, s.DriverRoot), nil
}

func (s *Source) read(ctx context.Context, parts []Part) (shared, error) {
	uptime, err := npd.Uptime()
	if err != nil {
		return shared{}, err
	}
	bus, err := gpu.ReadBus(s.Sysfs)
	if err != nil {
		return shared{}, err
	}
	r := shared{Reading: gpu.Reading{Uptime: uptime, Bus: bus, Module: s.Module()}}
	if len(bus) == 0 {
		return r, nil
	}
	session := &session{uptime: uptime}
	r.Parts, err = s.gpus(ctx, session, bus, parts)
	r.Hung = session.hung
	if mismatch := (mismatchError{}); errors.As(err, &mismatch) {
		r.Mismatch = mismatch.text(r.Module)
		r.Unread = r.Mismatch
	} else if err != nil {
		r.Unread = err.Error()
	}
	return r, nil
}

const library = "libnvidia-ml.so.1"

// libraries lists where the driver's library may lie.
func (s *Source) libraries() []string {
	root := s.DriverRoot
	var paths []string
	if root == "" {
		// A bare name lets the loader search.
		paths, root = append(paths, library), "/run/nvidia/driver"
	}
	for _, dir := range []string{"usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", ""} {
		path := filepath.Join(root, dir, library)
		if _, err := os.Stat(path); err == nil {
			paths = append(paths, path)
		}
	}
	return paths
}

func (s *Source) gpus(ctx context.Context, session *session, bus []gpu.BusDevice, parts []Part) (map[string][]gpu.GPU, error) {
	err := errors.New(library + " not found")
	for _, path := range s.libraries() {
		session.lib = nvml.New(nvml.WithLibraryPath(path))
		ret := session.lib.Init()
		if ret == nvml.ERROR_LIBRARY_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, session.initError(ret)
		}
		gpus, err := session.gpus(ctx, bus, parts)
		// The process ends now; Shutdown closes the devices a moment earlier and may fail on a lost GPU, or wait for a call that hangs.
		if !session.hung {
			_ = session.lib.Shutdown()
		}
		return gpus, err
	}
	return nil, err
}

// initError words the failures of nvmlInit as nvidia-smi does: people search for these words.
func (s *session) initError(ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return errors.New("couldn't communicate with the NVIDIA driver")
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return mismatchError{s.version()}
	}
	return errors.New("Failed to initialize NVML: " + text(ret))
}

// mismatchError reports that the library is not of the kernel module's version; its text is the library's, "" if not known.
type mismatchError struct{ library string }

func (e mismatchError) Error() string { return e.text("") }

// text has nvidia-smi's words, for which people search, and both versions.
func (e mismatchError) text(module string) string {
	var versions []string
	if e.library != "" {
		versions = append(versions, "library "+e.library)
	}
	if version := strings.TrimSpace(strings.TrimPrefix(module, "nvidia")); version != "" {
		versions = append(versions, "kernel module "+version)
	}
	text := "Driver/library version mismatch"
	// Equal ones explain nothing: the module was replaced on disk or unloaded meanwhile.
	if len(versions) > 0 && (len(versions) == 1 || !strings.HasSuffix(versions[1], " "+e.library)) {
		text += " (" + strings.Join(versions, ", ") + ")"
	}
	return text
}

// version returns the version of the library, "" if it does not say. It may be asked although the library is not initialized, as
// nvidia-smi does. Newer ones have the version of CUDA before it, as in 12.575.51.03.
func (s *session) version() string {
	if !s.has("nvmlSystemGetNVMLVersion") {
		return ""
	}
	version, ret := s.lib.SystemGetNVMLVersion()
	if ret != nvml.SUCCESS {
		return ""
	}
	if cuda, rest, _ := strings.Cut(version, "."); len(cuda) < 3 && strings.Contains(rest, ".") {
		return rest
	}
	return version
}

// session is an initialized library.
type session struct {
	lib nvml.Interface
	// uptime is the time since the boot, for values that cannot be longer.
	uptime time.Duration
	// hung reports that a call has not returned. Whatever made it still waits for it.
	hung bool
}

// gpus asks every GPU, each part by itself. Handles are tied to PCI addresses first: NVML gives index 0 for a GPU that is lost meanwhile.
func (s *session) gpus(ctx context.Context, bus []gpu.BusDevice, parts []Part) (map[string][]gpu.GPU, error) {
	count, ret := s.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count GPUs: %s", text(ret))
	}
	gpus := map[string][]gpu.GPU{}
	for _, part := range parts {
		gpus[part.name] = []gpu.GPU{}
	}
	known, allHang := map[string]bool{}, true
	// take files what the goroutine of one GPU has said in time.
	take := func(g gpu.GPU, ask func(chan<- answer)) {
		answers, ended := inTime(ctx, ask)
		said := map[string]gpu.GPU{}
		for _, a := range answers {
			g.Address = cmp.Or(g.Address, a.Address)
			said[a.part] = a.GPU
		}
		if !ended {
			s.hung, g.Unread = true, "the calls about it do not return"
		}
		if g.Address == "" || known[g.Address] {
			return // found by its address below
		}
		known[g.Address], allHang = true, allHang && !ended
		for _, part := range parts {
			own, ok := said[part.name]
			if !ok {
				own = g
			}
			gpus[part.name] = append(gpus[part.name], own)
		}
	}
	for i := range count {
		take(gpu.GPU{}, func(to chan<- answer) { s.byIndex(i, parts, to) })
	}
	for _, d := range bus {
		if !known[d.Address] && d.Driver != "vfio-pci" {
			take(gpu.GPU{Address: d.Address}, func(to chan<- answer) { s.byAddress(d.Address, parts, to) })
		}
	}
	if s.hung && allHang {
		select {} // not one GPU hangs, the driver does: wait to be killed
	}
	return gpus, nil
}

// answer is what a GPU says to a part; the first says only where it is.
type answer struct {
	part string
	gpu.GPU
}

// inTime returns what ask has sent and whether it has ended. One GPU may take a third of the time that is left, so that its calls, if they
// hang, leave time for the GPUs after it. A call cannot be ended; its goroutine ends with the process.
func inTime(ctx context.Context, ask func(chan<- answer)) (answers []answer, ended bool) {
	to := make(chan answer, 16)
	go func() {
		defer close(to)
		ask(to)
	}()
	var late <-chan time.Time
	if deadline, ok := ctx.Deadline(); ok {
		late = time.After(time.Until(deadline) / 3)
	}
	for {
		select {
		case a, more := <-to:
			if !more {
				return answers, true
			}
			answers = append(answers, a)
		case <-late:
			return answers, false
		}
	}
}

func (s *session) byIndex(i int, parts []Part, to chan<- answer) {
	device, ret := s.lib.DeviceGetHandleByIndex(i)
	if ret != nvml.SUCCESS {
		return
	}
	info, ret := device.GetPciInfo()
	if ret != nvml.SUCCESS {
		return
	}
	s.ask(device, gpu.GPU{Address: gpu.Address(cString(info.BusId[:]))}, parts, to)
}

// byAddress asks a GPU that gave no handle by its index, or is not counted.
func (s *session) byAddress(address string, parts []Part, to chan<- answer) {
	g := gpu.GPU{Address: address}
	device, ret := s.lib.DeviceGetHandleByPciBusId(address + ".0")
	// nvidia-smi's words, for which people search.
	noHandle := "Unable to determine the device handle for GPU: " + text(ret)
	switch ret {
	case nvml.SUCCESS:
		s.ask(device, g, parts, to)
		return
	case nvml.ERROR_NOT_FOUND, nvml.ERROR_GPU_NOT_FOUND:
		g.NotInNVML = true
	case nvml.ERROR_UNKNOWN:
		g.NoHandle = noHandle
	case nvml.ERROR_INSUFFICIENT_POWER:
		g.Unusable = noHandle + ", external power not connected"
	case nvml.ERROR_IRQ_ISSUE:
		g.Unusable = noHandle + ", the kernel has an interrupt issue with it"
	default:
		if !note(&g, "handle", ret) && g.Unread != "" {
			g.Unread = noHandle
		}
	}
	for _, part := range parts {
		to <- answer{part.name, g}
	}
}

// ask sends what a GPU answers to each part.
func (s *session) ask(device nvml.Device, g gpu.GPU, parts []Part, to chan<- answer) {
	to <- answer{"", g}
	name, ret := device.GetName()
	if note(&g, "name", ret) {
		g.Name = name
	}
	if s.has("nvmlDeviceGetMigMode") {
		mode, _, ret := device.GetMigMode()
		g.MIG = note(&g, "MIG mode", ret) && mode == nvml.DEVICE_MIG_ENABLE
		g.MIGUnread = ret != nvml.SUCCESS && !unsupported(ret)
	}
	for _, part := range parts {
		own := g
		part.ask(s, device, &own)
		to <- answer{part.name, own}
	}
}

// note files the outcome of a question and reports whether there is an answer.
func note(g *gpu.GPU, question string, ret nvml.Return) bool {
	switch {
	case ret == nvml.SUCCESS:
		return true
	case unsupported(ret):
	case ret == nvml.ERROR_GPU_IS_LOST:
		g.Lost = true
	case ret == nvml.ERROR_RESET_REQUIRED:
		g.NeedsReset = true
	case g.Unread == "":
		g.Unread = question + ": " + text(ret)
	}
	return false
}

// unsupported reports whether the GPU or the driver does not have the question, which is never a fault.
func unsupported(ret nvml.Return) bool {
	switch ret {
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND, nvml.ERROR_NO_DATA,
		nvml.ERROR_ARGUMENT_VERSION_MISMATCH, nvml.ERROR_DEPRECATED:
		return true
	}
	return false
}

// words are what NVIDIA's library says of its errors (nvmlErrorString), for those that a person may meet here.
var words = map[nvml.Return]string{
	nvml.ERROR_INVALID_ARGUMENT: "Invalid Argument", nvml.ERROR_NO_PERMISSION: "Insufficient Permissions",
	nvml.ERROR_INSUFFICIENT_POWER: "Insufficient External Power", nvml.ERROR_TIMEOUT: "Timeout",
	nvml.ERROR_IRQ_ISSUE: "Interrupt Request Issue", nvml.ERROR_CORRUPTED_INFOROM: "Corrupted infoROM",
	nvml.ERROR_OPERATING_SYSTEM: "GPU access blocked by the operating system", nvml.ERROR_IN_USE: "In use by another client",
	nvml.ERROR_MEMORY: "Insufficient Memory", nvml.ERROR_INSUFFICIENT_RESOURCES: "Insufficient Resources",
	nvml.ERROR_NOT_READY: "Not Ready", nvml.ERROR_INVALID_STATE: "Invalid State", nvml.ERROR_UNKNOWN: "Unknown Error",
}

// text words an error that is not in the table by its number: some libraries say no more than "Error".
func text(ret nvml.Return) string {
	if known, ok := words[ret]; ok {
		return known
	}
	return fmt.Sprintf("NVML error %d", int(ret))
}

func cString(chars []int8) string {
	var b []byte
	for _, c := range chars {
		if c == 0 {
			break
		}
		b = append(b, byte(c))
	}
	return string(b)
}

// has reports whether the driver's library knows a function. Calling one that it does not know ends the process.
func (s *session) has(function string) bool { return s.lib.Extensions().LookupSymbol(function) == nil }

func (s *session) identity(d nvml.Device, g *gpu.GPU) {
	minor, minorRet := d.GetMinorNumber()
	if note(g, "minor number", minorRet) {
		g.Minor = &minor
	}
	mode, modeRet := d.GetPersistenceMode()
	if note(g, "persistence mode", modeRet) {
		on := mode == nvml.FEATURE_ENABLED
		g.Persistence = &on
	}
	if _, nameRet := d.GetName(); nameRet == nvml.ERROR_UNKNOWN && minorRet == nameRet && modeRet == nameRet {
		// As good as no handle.
		g.NoHandle = "every question is answered with " + text(nameRet)
	}
	g.Serial, g.UUID, g.VBIOS = said(d.GetSerial()), said(d.GetUUID()), said(d.GetVbiosVersion())
}

// said returns an answer that no fault follows from; "" if there is none.
func said(answer string, ret nvml.Return) string {
	if ret != nvml.SUCCESS {
		return ""
	}
	return answer
}

func (s *session) activity(d nvml.Device, g *gpu.GPU) {
	processes, ret := d.GetComputeRunningProcesses()
	if !note(g, "processes", ret) {
		return
	}
	busy := len(processes) > 0
	if use, ret := d.GetUtilizationRates(); note(g, "utilization", ret) {
		busy = busy || use.Gpu > 0
	}
	g.Busy = &busy
}

func (s *session) work(d nvml.Device, g *gpu.GPU) {
	w := &gpu.Work{Held: s.held(d, g), NVLink: s.linkData(d, g)}
	g.Work = w
	if use, ret := d.GetUtilizationRates(); note(g, "utilization", ret) {
		busy := int(use.Gpu)
		w.Busy = &busy
	}
	if used, ret := d.GetTotalEnergyConsumption(); note(g, "energy", ret) {
		w.Energy = &used
	}
	if limit, ret := d.GetEnforcedPowerLimit(); note(g, "power limit", ret) {
		milliwatts := uint64(limit)
		w.PowerLimit = &milliwatts
	}
}

// heldMemory is how much memory of a GPU in use shows a process, in bytes. The context of a CUDA process takes more, a GPU
// without one uses a few MiB.
const heldMemory = 128 << 20

// held reports whether a process has the GPU open, nil if that is not known. Newer drivers do not list the processes of
// other PID namespaces than the caller's (open-gpu-kernel-modules, pull request 614), but count their memory.
func (s *session) held(d nvml.Device, g *gpu.GPU) *bool {
	processes, ret := d.GetComputeRunningProcesses()
	known := note(g, "processes", ret)
	held := len(processes) > 0
	if s.has("nvmlDeviceGetMemoryInfo_v2") {
		if m, ret := d.GetMemoryInfo_v2(); note(g, "memory in use", ret) {
			known = true
			// nvml.h leaves open whether what is in use has in it what the driver reserves for itself.
			held = held || m.Total >= m.Free+m.Reserved+heldMemory
		}
	}
	if !known {
		return nil
	}
	return &held
}

// linkData sums what the GPU's links have sent and received; nil if it does not count that, or of a link only one of the two: data may
// flow in the other direction. The counters of PCIe are no substitute: they have 32 bits, which end within a second.
func (s *session) linkData(d nvml.Device, g *gpu.GPU) *uint64 {
	out, in := uint32(nvml.FI_DEV_NVLINK_COUNT_XMIT_BYTES), uint32(nvml.FI_DEV_NVLINK_COUNT_RCV_BYTES)
	scope, links, unit := uint32(0), uint32(nvml.NVLINK_MAX_LINKS), uint64(1)
	if s.legacy(d, g) {
		// In KiB, and all links as one, which is scope UINT_MAX.
		out, in = nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.FI_DEV_NVLINK_THROUGHPUT_DATA_RX
		scope, links, unit = math.MaxUint32, 1, 1<<10
	}
	var sum *uint64
	for link := range links {
		sent, received := s.wide(d, g, out, scope+link), s.wide(d, g, in, scope+link)
		if (sent == nil) != (received == nil) {
			return nil
		}
		if sent == nil {
			continue // a link that the GPU does not have
		}
		if sum == nil {
			sum = new(uint64)
		}
		*sum += (*sent + *received) * unit
	}
	return sum
}

func (s *session) memory(d nvml.Device, g *gpu.GPU) {
	m := &gpu.Memory{}
	g.Memory = m
	older := true
	if s.has("nvmlDeviceGetRemappedRows") {
		correctable, uncorrectable, pending, failed, ret := d.GetRemappedRows()
		if note(g, "remapped rows", ret) {
			m.Remap = &gpu.Remap{Correctable: correctable, Uncorrectable: uncorrectable, Pending: pending, Failed: failed}
		}
		older = unsupported(ret)
	}
	if s.has("nvmlDeviceGetBankRemapperStatus_v1") {
		if status, ret := d.GetBankRemapperStatus_v1(); note(g, "remapped banks", ret) {
			m.Banks = &gpu.Banks{Active: int(status.ActiveRemappings), Pending: status.BPending != 0}
		}
	}
	if older {
		m.Retired = retired(d, g)
	}
	for counter, to := range map[nvml.EccCounterType]**uint64{
		nvml.VOLATILE_ECC: &m.VolatileUncorrected, nvml.AGGREGATE_ECC: &m.AggregateUncorrected,
	} {
		if n, ret := d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, counter); note(g, "ECC errors", ret) {
			*to = &n
		}
	}
	if s.has("nvmlDeviceGetSramEccErrorStatus") {
		if status, ret := d.GetSramEccErrorStatus(); note(g, "SRAM errors", ret) {
			exceeded := status.BThresholdExceeded != 0
			m.SRAMThresholdExceeded = &exceeded
		}
	}
	if action := s.field(d, g, nvml.FI_DEV_GET_GPU_RECOVERY_ACTION, 0); action != nil {
		recovery := gpu.RecoveryAction(*action)
		m.Recovery = &recovery
	}
	if _, ret := d.GetInforomConfigurationChecksum(); ret == nvml.ERROR_CORRUPTED_INFOROM {
		m.InfoROMCorrupt = true
	}
}

func retired(d nvml.Device, g *gpu.GPU) *gpu.Retired {
	pending, ret := d.GetRetiredPagesPendingStatus()
	if !note(g, "retired pages", ret) {
		return nil
	}
	r := &gpu.Retired{Pending: pending == nvml.FEATURE_ENABLED}
	for cause, to := range map[nvml.PageRetirementCause]*int{
		nvml.PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS: &r.SingleBit,
		nvml.PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR:           &r.DoubleBit,
	} {
		pages, ret := d.GetRetiredPages(cause)
		if !note(g, "retired pages", ret) {
			return nil
		}
		*to = len(pages)
	}
	return r
}

func (s *session) thermal(d nvml.Device, g *gpu.GPU) {
	t := &gpu.Thermal{}
	g.Thermal = t
	if c, ret := s.temperature(d); note(g, "temperature", ret) {
		t.Core = degrees(c)
	}
	t.HBM = degreesOf(s.field(d, g, nvml.FI_DEV_MEMORY_TEMP, 0))
	for threshold, to := range map[nvml.TemperatureThresholds]**int{
		nvml.TEMPERATURE_THRESHOLD_GPU_MAX: &t.CoreMax, nvml.TEMPERATURE_THRESHOLD_MEM_MAX: &t.HBMMax,
		nvml.TEMPERATURE_THRESHOLD_SHUTDOWN: &t.Shutdown,
	} {
		if c, ret := d.GetTemperatureThreshold(threshold); note(g, "temperature limits", ret) {
			*to = degrees(uint64(c))
		}
	}
	if s.has("nvmlDeviceGetMarginTemperature") {
		if m, ret := d.GetMarginTemperature(); note(g, "temperature margin", ret) {
			margin := int(m.MarginTemperature)
			t.Margin = &margin
		}
	}
	if m := s.field(d, g, nvml.FI_DEV_TEMPERATURE_SHUTDOWN_TLIMIT, 0); m != nil {
		margin := int(int32(*m))
		t.ShutdownMargin = &margin
	}
	t.Slowed = s.slowed(d, g)
	if reasons, ret := s.clockEvents(d); note(g, "clock events", ret) {
		t.Reasons = &reasons
		slow := reasons&(nvml.ClocksThrottleReasonHwSlowdown|
			nvml.ClocksThrottleReasonHwThermalSlowdown|nvml.ClocksThrottleReasonHwPowerBrakeSlowdown) != 0
		t.Slow = &slow
	}
}

// clocks asks what thermal does, and how fast and how busy the GPU is.
func clocks(s *session, d nvml.Device, g *gpu.GPU) {
	s.thermal(d, g)
	c := &gpu.Clocks{}
	g.Thermal.Clocks = c
	if now, ret := d.GetClockInfo(nvml.CLOCK_SM); note(g, "SM clock", ret) {
		c.SM = new(int(now))
	}
	if most, ret := d.GetMaxClockInfo(nvml.CLOCK_SM); note(g, "highest SM clock", ret) {
		c.Most = new(int(most))
	}
	if use, ret := d.GetUtilizationRates(); note(g, "utilization", ret) {
		c.Busy = new(int(use.Gpu))
	}
}

// temperature asks for the core's temperature in degrees Celsius. The function that every driver has is deprecated as of
// CUDA 13 (nvml.h); a driver that says so, or has it no more, has its successor.
func (s *session) temperature(d nvml.Device) (uint64, nvml.Return) {
	c, ret := uint32(0), nvml.ERROR_FUNCTION_NOT_FOUND
	if s.has("nvmlDeviceGetTemperature") {
		c, ret = d.GetTemperature(nvml.TEMPERATURE_GPU)
	}
	if withdrawn(ret) && s.has("nvmlDeviceGetTemperatureV") {
		v, ret := d.GetTemperatureV().V1()
		return uint64(max(v.Temperature, 0)), ret
	}
	return uint64(c), ret
}

// clockEvents asks why the clocks are held down now, like [session.temperature] by the older name first.
func (s *session) clockEvents(d nvml.Device) (reasons uint64, ret nvml.Return) {
	ret = nvml.ERROR_FUNCTION_NOT_FOUND
	if s.has("nvmlDeviceGetCurrentClocksThrottleReasons") {
		reasons, ret = d.GetCurrentClocksThrottleReasons()
	}
	if withdrawn(ret) && s.has("nvmlDeviceGetCurrentClocksEventReasons") {
		return d.GetCurrentClocksEventReasons()
	}
	return reasons, ret
}

func withdrawn(ret nvml.Return) bool {
	return ret == nvml.ERROR_DEPRECATED || ret == nvml.ERROR_FUNCTION_NOT_FOUND
}

// slowed sums the time that the hardware held the clocks down because of heat or a power brake; nil if the driver does
// not count it.
func (s *session) slowed(d nvml.Device, g *gpu.GPU) *time.Duration {
	thermal, brake := slowdownFields(s.lib)
	if thermal == 0 {
		return nil
	}
	var sum time.Duration
	for _, id := range []uint32{thermal, brake} {
		// 32 bits of nanoseconds end after 4 seconds.
		v := s.wide(d, g, id, 0)
		// No more time than there was since the boot. What is more is no such counter.
		if v == nil || *v > uint64(s.uptime) {
			return nil
		}
		sum += time.Duration(*v)
	}
	return &sum
}

// slowdownFields returns the numbers of the fields HW_THERM_SLOWDOWN and HW_POWER_BRAKE_SLOWDOWN in this driver, 0 if it
// has none. NVIDIA moved them: its nvml.h of drivers 575.51 to 580.76 (CUDA 12.9 and 13.0) says 252 and 253, and calls
// 270 and 271 settings of power smoothing; from 580.82 on it is the other way round.
func slowdownFields(lib nvml.Interface) (thermal, brake uint32) {
	version, ret := lib.SystemGetDriverVersion()
	if ret != nvml.SUCCESS {
		return 0, 0
	}
	var major, minor int
	if n, err := fmt.Sscanf(version, "%d.%d", &major, &minor); n != 2 || err != nil {
		return 0, 0
	}
	switch at := [2]int{major, minor}; {
	case slices.Compare(at[:], []int{580, 82}) >= 0:
		return nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN, nvml.FI_DEV_CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN
	case slices.Compare(at[:], []int{575, 51}) >= 0:
		return 252, 253
	}
	return 0, 0
}

func degreesOf(v *uint64) *int {
	if v == nil {
		return nil
	}
	return degrees(*v)
}

// degrees drops what no sensor says: 0, and the values that stand for "none" in some drivers.
func degrees(v uint64) *int {
	if v == 0 || v > 200 {
		return nil
	}
	c := int(v)
	return &c
}

// blackwell is the first architecture with NVLink 5, on which the counters of older links mean nothing.
const blackwell = 10

func (s *session) nvlink(d nvml.Device, g *gpu.GPU, errors bool) {
	n := &gpu.NVLink{}
	g.NVLink = n
	legacy := errors && s.legacy(d, g)
	for link := range nvml.NVLINK_MAX_LINKS {
		state, ret := d.GetNvLinkState(link)
		if ret == nvml.ERROR_INVALID_ARGUMENT {
			break // past the last one
		}
		read := note(g, "NVLink state", ret)
		if g.Lost || g.NeedsReset {
			break
		}
		// One link that cannot be asked hides no other.
		l := gpu.Link{Off: unsupported(ret), Unread: !read && !unsupported(ret)}
		if read {
			s.linkState(d, g, link, uint64(state), &l)
		}
		if errors && l.Active {
			l.Errors = s.linkErrors(d, g, link, legacy)
		}
		n.Links = append(n.Links, l)
	}
	n.Fabric = s.fabric(d, g)
}

// trafficDisabled is NVML_NVLINK_STATE_ACTIVE_TRAFFIC_DISABLED of nvml.h of R615.
const trafficDisabled = 3

// linkState files the state of a link. A link that sleeps or may carry no traffic is up, and may be called disabled by the older question.
func (s *session) linkState(d nvml.Device, g *gpu.GPU, link int, state uint64, l *gpu.Link) {
	if state == nvml.NVLINK_STATE_INACTIVE {
		if now := s.field(d, g, nvml.FI_DEV_NVLINK_GET_STATE, uint32(link)); now != nil {
			state = *now
		}
	}
	switch state {
	case nvml.NVLINK_STATE_INACTIVE:
	case nvml.NVLINK_STATE_ACTIVE, nvml.NVLINK_STATE_SLEEP:
		l.Active = true
	case trafficDisabled:
		l.Active, l.NoTraffic = true, true
	default:
		l.Unread = true
		g.Unread = cmp.Or(g.Unread, fmt.Sprintf("NVLink %d has state %d, which is not known", link, state))
	}
}

// legacy reports whether the GPU's links are older than NVLink 5.
func (s *session) legacy(d nvml.Device, g *gpu.GPU) bool {
	if !s.has("nvmlDeviceGetArchitecture") {
		return true // a driver that does not know architectures knows none of the newer ones
	}
	architecture, ret := d.GetArchitecture()
	return note(g, "architecture", ret) && architecture < blackwell
}

func (s *session) linkErrors(d nvml.Device, g *gpu.GPU, link int, legacy bool) *uint64 {
	if !legacy {
		return s.field(d, g, nvml.FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS, uint32(link))
	}
	var sum uint64
	for _, counter := range []nvml.NvLinkErrorCounter{
		nvml.NVLINK_ERROR_DL_REPLAY, nvml.NVLINK_ERROR_DL_RECOVERY, nvml.NVLINK_ERROR_DL_CRC_FLIT,
	} {
		n, ret := d.GetNvLinkErrorCounter(link, counter)
		if !note(g, "NVLink errors", ret) {
			return nil
		}
		sum += n
	}
	return &sum
}

func (s *session) fabric(d nvml.Device, g *gpu.GPU) *gpu.Fabric {
	switch {
	case s.has("nvmlDeviceGetGpuFabricInfoV"):
		info, ret := d.GetGpuFabricInfoV().V3()
		if ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
			v2, again := d.GetGpuFabricInfoV().V2()
			info, ret = nvml.GpuFabricInfo_v3{State: v2.State, Status: v2.Status, HealthMask: v2.HealthMask}, again
		}
		if note(g, "fabric", ret) && info.State != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
			return &gpu.Fabric{
				Completed: info.State == nvml.GPU_FABRIC_STATE_COMPLETED, Status: int(info.Status),
				Unhealthy: info.HealthSummary == nvml.GPU_FABRIC_HEALTH_SUMMARY_UNHEALTHY, Degraded: degraded(info.HealthMask),
			}
		}
	case s.has("nvmlDeviceGetGpuFabricInfo"):
		info, ret := d.GetGpuFabricInfo() // drivers before 545 have nothing else
		if note(g, "fabric", ret) && info.State != nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
			return &gpu.Fabric{Completed: info.State == nvml.GPU_FABRIC_STATE_COMPLETED, Status: int(info.Status)}
		}
	}
	return nil
}

// field asks for one field value; nil if this driver or GPU does not have it.
func (s *session) field(d nvml.Device, g *gpu.GPU, id, scope uint32) *uint64 {
	v, _ := s.fieldValue(d, g, id, scope)
	return v
}

// wide is [session.field] for a counter; nil also if it has 32 bits, which end soon.
func (s *session) wide(d nvml.Device, g *gpu.GPU, id, scope uint32) *uint64 {
	v, kind := s.fieldValue(d, g, id, scope)
	switch kind {
	case nvml.VALUE_TYPE_UNSIGNED_LONG, nvml.VALUE_TYPE_UNSIGNED_LONG_LONG, nvml.VALUE_TYPE_SIGNED_LONG_LONG:
		return v
	}
	return nil
}

// fieldValue is [session.field] with the type of the value.
func (s *session) fieldValue(d nvml.Device, g *gpu.GPU, id, scope uint32) (*uint64, nvml.ValueType) {
	if !s.has("nvmlDeviceGetFieldValues") {
		return nil, 0
	}
	values := []nvml.FieldValue{{FieldId: id, ScopeId: scope}}
	if !note(g, "field values", d.GetFieldValues(values)) {
		return nil, 0
	}
	ret := nvml.Return(values[0].NvmlReturn)
	// An older driver does not know the number.
	if ret == nvml.ERROR_INVALID_ARGUMENT || !note(g, fmt.Sprintf("field %d", id), ret) {
		return nil, 0
	}
	v, kind := binary.NativeEndian.Uint64(values[0].Value[:]), nvml.ValueType(values[0].ValueType)
	switch kind {
	case nvml.VALUE_TYPE_UNSIGNED_INT, nvml.VALUE_TYPE_SIGNED_INT:
		v &= 0xffffffff
	case nvml.VALUE_TYPE_UNSIGNED_SHORT:
		v &= 0xffff
	case nvml.VALUE_TYPE_DOUBLE:
		return nil, kind
	}
	return &v, kind
}
