package main

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// nvidiaSMI runs nvidia-smi, unless it hung before.
func (k *kit) nvidiaSMI(ctx context.Context, output string, args ...string) ran {
	r := k.try(ctx, program{name: output, limit: smiLimit(k.limit), argv: append([]string{k.machine.SMI}, args...), env: k.environment()})
	k.smiHangs = k.smiHangs || r.Hung
	return r
}

// smiLimit is how long nvidia-smi may take: it waits for all GPUs to initialise.
func smiLimit(limit time.Duration) time.Duration { return 2 * limit }

// attached is the line of nvidia-smi -q with the number of GPUs.
var attached = regexp.MustCompile(`(?m)^Attached GPUs\s*:\s*(\d+)`)

// smi keeps what nvidia-smi says, and compares its number of GPUs.
func (k *kit) smi(ctx context.Context, o *outcome) {
	if k.machine.SMI == "" {
		o.note("no nvidia-smi was found")
		return
	}
	r := o.file(k.nvidiaSMI(ctx, "nvidia-smi-q.txt", "-q"))
	if k.smiHangs {
		return
	}
	// Older ones do not have it.
	k.nvidiaSMI(ctx, "nvidia-smi-version.txt", "--version")
	m := attached.FindStringSubmatch(r.stdout)
	switch {
	case r.Exit != 0:
		o.differs("exit %d: %s", r.Exit, r.Says)
	case m == nil:
		o.differs("nvidia-smi -q does not say how many GPUs there are")
	default:
		if n, _ := strconv.Atoi(m[1]); n != len(k.machine.GPUs) {
			o.differs("nvidia-smi has %d GPUs, the PCI bus %d", n, len(k.machine.GPUs))
		}
		o.note("%s GPUs", m[1])
	}
}

// modes reads the persistence mode of each GPU by its address.
func (k *kit) modes(ctx context.Context, o *outcome) (map[string]string, bool) {
	r := k.nvidiaSMI(ctx, "", "--query-gpu=pci.bus_id,persistence_mode", "--format=csv,noheader")
	modes := map[string]string{}
	for scan := bufio.NewScanner(strings.NewReader(r.stdout)); scan.Scan(); {
		if address, mode, ok := strings.Cut(scan.Text(), ", "); ok {
			modes[strings.TrimSpace(address)] = strings.TrimSpace(mode)
		}
	}
	if r.Exit != 0 || len(modes) == 0 {
		o.note("nvidia-smi does not say what the persistence mode is: %s", r.Failed+r.Says)
		return nil, false
	}
	return modes, true
}

// numberOf are the arguments of nvidia-smi -pm.
var numberOf = map[string]string{"Enabled": "1", "Disabled": "0"}

// persistence measures how long a look takes with persistence mode and without, and puts the mode back.
func (k *kit) persistence(ctx context.Context, o *outcome) {
	switch {
	case k.machine.SMI == "" || k.smiHangs || !k.machine.Root:
		o.note("not run: it needs root, and nvidia-smi that answers")
		return
	case k.silent > 0:
		o.note("not run: NVML gives no answer")
		return
	case time.Until(k.deadline) < 6*k.limit:
		o.note("not run: too little time is left")
		return
	}
	before, ok := k.modes(ctx, o)
	if !ok {
		return
	}
	for address, mode := range before {
		if numberOf[mode] == "" {
			o.note("not run: the persistence mode of %s is %q", address, mode)
			return
		}
	}
	defer k.restore(ctx, o, before)
	for _, mode := range []string{"Enabled", "Disabled"} {
		if r := o.file(k.nvidiaSMI(ctx, "", "-pm", numberOf[mode])); r.Exit != 0 {
			o.differs("nvidia-smi -pm %s exits %d: %s", numberOf[mode], r.Exit, r.Says)
			return
		}
		var times []string
		for range 3 {
			r := o.file(k.try(ctx, k.nvmlCommand("ecc", "", "-dump")))
			if r.Exit != 0 {
				o.differs("with persistence mode %s: exit %d after %.1f s: %s", mode, r.Exit, r.Seconds, r.Says)
				return
			}
			times = append(times, fmt.Sprintf("%.2f s", r.Seconds))
		}
		o.note("%s: %s", mode, strings.Join(times, ", "))
	}
}

// restoring is how long putting the persistence modes back may take.
const restoring = 25 * time.Second

// restore puts the persistence modes back, and checks it. It goes on when the run is over.
func (k *kit) restore(ctx context.Context, o *outcome, before map[string]string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoring)
	defer cancel()
	modes := map[string]bool{}
	for _, mode := range before {
		modes[mode] = true
	}
	for address, mode := range before {
		args := []string{"-pm", numberOf[mode], "-i", address}
		if len(modes) == 1 {
			args = args[:2]
		}
		if k.smiHangs {
			break
		}
		// What it says of the modes in the end counts.
		k.nvidiaSMI(ctx, "", args...)
		if len(modes) == 1 {
			break
		}
	}
	now := map[string]string{}
	if !k.smiHangs {
		now, _ = k.modes(ctx, o)
	}
	for _, address := range slices.Sorted(maps.Keys(before)) {
		if mode := before[address]; now[address] != mode {
			o.differs("the persistence mode of %s is not put back: nvidia-smi -pm %s -i %s", address, numberOf[mode], address)
		}
	}
}
