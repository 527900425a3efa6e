package main

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
	"github.com/pitcrew-dev/pitcrew/repair/program"
)

// vendor is what differs from vendor to vendor. GPUs are named by their PCI addresses, as in messages: 0000:4e:00.
type vendor struct {
	name string
	// tool is the name of its program.
	tool string
	// devices are the beginnings of the paths of its device files, compute of those that only computing processes open.
	devices, compute []string
	// work are those that no monitor opens.
	work []string
	// resource is how the names of its extended resources begin.
	resource string
	// units are services of it that keep devices open, those that use others first; services are those that may keep them open, because a
	// reset needs them or because they let go when persistence mode is turned off, and driver the programs of these.
	units, services, driver []string
	// bus lists its GPUs on the PCI bus.
	bus func(root string) ([]string, error)
	// reset resets GPUs.
	reset func(ctx context.Context, t program.Command, gpus []string, limit time.Duration) error
	// answers returns nil if a GPU answers.
	answers func(ctx context.Context, t program.Command, gpu string) error
	// settle is how long nothing may be asked after a reset.
	settle time.Duration
}

// asking is how long a tool may take for a question.
const asking = 20 * time.Second

// errTogether reports that these GPUs can only be reset together with others.
var errTogether = errors.New("the GPUs cannot be reset without others that NVLink connects them with")

var vendors = []vendor{
	{
		name: "nvidia", tool: "nvidia-smi", devices: []string{"/dev/nvidia"}, compute: []string{"/dev/nvidia-uvm"}, resource: "nvidia.com/",
		work: []string{"/dev/nvidia-uvm"},
		units: []string{
			"dcgm-exporter.service", "nvidia-dcgm-exporter.service", "nvidia-dcgm.service", "nv-hostengine.service", "nvidia-persistenced.service",
		},
		// On NVSwitch systems with Ampere GPUs the reset needs Fabric Manager. nvidia-smi refuses if one of them is in its way.
		services: []string{"nvidia-fabricmanager.service", "nvidia-imex.service", "nvidia-persistenced.service"},
		driver:   []string{"nv-fabricmanager", "nvlsm", "nvidia-imex", "nvidia-persistenced"},
		bus: func(root string) (gpus []string, err error) {
			devices, err := gpu.ReadBus(root)
			for _, d := range devices {
				gpus = append(gpus, d.Address)
			}
			return gpus, err
		},
		reset: resetNVIDIA, answers: nvidiaAnswers,
	},
	{
		name: "metax", tool: "mx-smi", devices: []string{"/dev/mxcd"}, compute: []string{"/dev/mxcd"}, resource: "metax-tech.com/",
		bus:   pci(0x9999, func(class uint64) bool { return class>>16 == 0x03 }), // as in plugins/metax
		reset: resetMetaX, answers: metaXAnswers,
	},
	{
		name: "ascend", tool: "npu-smi", devices: []string{"/dev/davinci"}, compute: []string{"/dev/davinci"}, resource: "huawei.com/",
		// Monitors open /dev/davinci_manager.
		work: []string{
			"/dev/davinci0", "/dev/davinci1", "/dev/davinci2", "/dev/davinci3", "/dev/davinci4",
			"/dev/davinci5", "/dev/davinci6", "/dev/davinci7", "/dev/davinci8", "/dev/davinci9",
		},
		bus:   pci(0x19e5, func(class uint64) bool { return class>>8 == 0x1200 }), // as in plugins/ascend
		reset: resetAscend, answers: ascendAnswers, settle: 20 * time.Second,
	},
}

// pci lists the physical functions of a vendor with a class.
func pci(vendor uint64, is func(class uint64) bool) func(string) ([]string, error) {
	return func(root string) (gpus []string, err error) {
		functions, err := sysfs.PCI(root, vendor)
		for _, f := range functions {
			if is(f.Class) && !f.Virtual {
				gpus = append(gpus, gpu.Address(f.Address))
			}
		}
		return gpus, err
	}
}

// errNone reports that the node has no accelerator.
var errNone = refuse("no GPU of NVIDIA or MetaX and no NPU of Ascend is on the PCI bus")

// vendorOf finds the vendor of the accelerators of this node, and these.
func vendorOf(name, root string) (vendor, []string, error) {
	var found []vendor
	var gpus []string
	for _, v := range vendors {
		if name != "" && v.name != name {
			continue
		}
		on, err := v.bus(root)
		if err != nil {
			return vendor{}, nil, refuse("the PCI bus: %v", err)
		}
		if len(on) > 0 || v.name == name {
			found, gpus = append(found, v), on
		}
	}
	switch len(found) {
	case 1:
		return found[0], gpus, nil
	case 0:
		return vendor{}, nil, errNone
	default:
		return vendor{}, nil, refuse("accelerators of %s and %s are on the PCI bus: -vendor says which", found[0].name, found[1].name)
	}
}

// long is how nvidia-smi names a GPU: 00000000:4E:00.0.
func long(address string) string {
	domain, rest, _ := strings.Cut(address, ":")
	return strings.ToUpper(strings.Repeat("0", max(0, 8-len(domain)))+domain+":"+rest) + ".0"
}

func resetNVIDIA(ctx context.Context, t program.Command, gpus []string, limit time.Duration) error {
	var ids []string
	for _, g := range gpus {
		ids = append(ids, long(g))
	}
	text, err := t.With(limit, "--gpu-reset", "-i", strings.Join(ids, ",")).Run(ctx)
	// Texts of nvidia-smi 535 and 550. With these it may exit 0.
	switch {
	case strings.Contains(text, "must be reset together"):
		return errTogether
	case strings.Contains(text, "In use by another client") || strings.Contains(text, "is currently in use by another process"):
		return refuse("nvidia-smi does not reset GPUs that are in use: %.300s", program.OneLine(text))
	}
	if exit := (*program.ExitError)(nil); errors.As(err, &exit) {
		if means, known := nvidiaExits[exit.Code]; known {
			return fmt.Errorf("%w (%s)", err, means)
		}
	}
	return err
}

// nvidiaExits are what the exit codes of nvidia-smi mean, nvidia-smi(1).
var nvidiaExits = map[int]string{
	2: "an argument is wrong", 3: "not available on this device", 4: "no permission", 6: "the GPU is not found",
	8: "external power cables are not attached",
	9: "the driver is not loaded", 10: "an interrupt of the GPU is not delivered", 12: "no NVML library", 13: "the NVML library is too old",
	14: "the infoROM is corrupt", 15: "the GPU is lost from the bus or not reachable", 255: "another error, or an internal one of the driver",
}

func nvidiaAnswers(ctx context.Context, t program.Command, address string) error {
	text, err := t.With(asking, "--query-gpu=pci.bus_id", "--format=csv,noheader", "-i", long(address)).Run(ctx)
	if err == nil && gpu.Address(strings.TrimSpace(text)) != address {
		err = fmt.Errorf("nvidia-smi --query-gpu answered %.80q", text)
	}
	return err
}

// persistence reads the persistence mode of a GPU of NVIDIA.
func persistence(ctx context.Context, t program.Command, address string) (on bool, err error) {
	text, err := t.With(asking, "--query-gpu=persistence_mode", "--format=csv,noheader", "-i", long(address)).Run(ctx)
	if err != nil {
		return false, err
	}
	switch mode := strings.TrimSpace(text); mode {
	case "Enabled":
		return true, nil
	case "Disabled":
		return false, nil
	default:
		return false, fmt.Errorf("nvidia-smi says that the persistence mode is %.80q", mode)
	}
}

func setPersistence(ctx context.Context, t program.Command, address, mode string) error {
	_, err := t.With(asking, "-pm", mode, "-i", long(address)).Run(ctx)
	return err
}

// metaXLine is a line of `mx-smi -L`: "GPU#0  MXC500  0000:08:00.0  Available (UUID: ...)".
var metaXLine = regexp.MustCompile(`^GPU#(\d+)\s+\S+\s+([0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7])\s+(\S.*)$`)

// metaXIndex finds the number of a GPU and its state. Another vendor's tool has the same name; its lists look different.
func metaXIndex(ctx context.Context, t program.Command, address string) (index, state string, err error) {
	text, err := t.With(asking, "-L").Run(ctx)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(text) {
		if m := metaXLine.FindStringSubmatch(strings.TrimSpace(line)); m != nil && gpu.Address(m[2]) == address {
			state, _, _ := strings.Cut(m[3], " (UUID:")
			return m[1], strings.TrimSpace(state), nil
		}
	}
	return "", "", fmt.Errorf("mx-smi -L does not list the GPU %s: %.200s", address, program.OneLine(text))
}

func resetMetaX(ctx context.Context, t program.Command, gpus []string, limit time.Duration) error {
	for _, g := range gpus {
		index, _, err := metaXIndex(ctx, t, g)
		if err != nil {
			return err
		}
		if _, err := t.With(limit, "-r", "-i", index).Run(ctx); err != nil {
			return fmt.Errorf("GPU %s: %w", g, err)
		}
	}
	return nil
}

func metaXAnswers(ctx context.Context, t program.Command, address string) error {
	_, state, err := metaXIndex(ctx, t, address)
	if err == nil && state != "Available" {
		err = fmt.Errorf("mx-smi says that the GPU %s is %.80q", address, state)
	}
	return err
}

// ascendRow is a row of `npu-smi info -m`: NPU id, chip id, logic id, name. Other chips, like the MCU, have no logic id.
var ascendRow = regexp.MustCompile(`^\s*(\d+)\s+(\d+)\s+(\d+)\s+Ascend`)

// ascendChip finds the ids of an NPU and of its chip.
func ascendChip(ctx context.Context, t program.Command, address string) (npu, chip string, err error) {
	text, err := t.With(asking, "info", "-m").Run(ctx)
	if err != nil {
		return "", "", err
	}
	for line := range strings.Lines(text) {
		m := ascendRow.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		board, err := t.With(asking, "info", "-t", "board", "-i", m[1], "-c", m[2]).Run(ctx)
		if err != nil {
			return "", "", err
		}
		for line := range strings.Lines(board) {
			// Some versions write "PCIeBusInfo".
			key, value, _ := strings.Cut(line, ":")
			if strings.ReplaceAll(strings.TrimSpace(key), " ", "") == "PCIeBusInfo" && gpu.Address(strings.TrimSpace(value)) == address {
				return m[1], m[2], nil
			}
		}
	}
	return "", "", fmt.Errorf("npu-smi lists no NPU at %s", address)
}

func resetAscend(ctx context.Context, t program.Command, gpus []string, limit time.Duration) error {
	for _, g := range gpus {
		npu, chip, err := ascendChip(ctx, t, g)
		if err != nil {
			return err
		}
		// By PCIe: the way through the BMC (without -m 1) needs its newest firmware. The tool asks whether it really shall.
		set := t.With(limit, "set", "-t", "reset", "-i", npu, "-c", chip, "-m", "1")
		set.Stdin = "Y\n"
		text, err := set.Run(ctx)
		if err == nil && !slices.ContainsFunc(strings.Split(text, "\n"), isStatusOK) {
			err = fmt.Errorf("npu-smi set -t reset: %.200s", program.OneLine(text))
		}
		if err != nil {
			return fmt.Errorf("NPU %s: %w", g, err)
		}
	}
	return nil
}

func isStatusOK(line string) bool {
	key, value, _ := strings.Cut(line, ":")
	return strings.TrimSpace(key) == "Status" && strings.TrimSpace(value) == "OK"
}

func ascendAnswers(ctx context.Context, t program.Command, address string) error {
	npu, chip, err := ascendChip(ctx, t, address)
	if err != nil {
		return err
	}
	text, err := t.With(asking, "info", "-t", "health", "-i", npu, "-c", chip).Run(ctx)
	if err == nil && !strings.Contains(text, "Health") {
		err = fmt.Errorf("npu-smi info -t health: %.200s", program.OneLine(text))
	}
	return err
}
