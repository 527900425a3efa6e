package main

import "context"

// step is one thing to check.
type step struct {
	name string
	run  func(*kit, context.Context, *outcome)
}

// steps lists the steps. Those that need no driver come first: what hangs in it takes its time from the others.
func steps() []step {
	steps := []step{
		{"programs start", (*kit).versions},
		{"xid on a fixture", fixture("xid", "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus", "-log", "fixtures/kernel.log")},
		{"podlog on a fixture", fixture("podlog", "Inspect pod default/train: uncorrectable ECC error",
			"-namespaces", "*", "-pod-logs", "fixtures/pods", "-procfs", "fixtures/proc")},
		{"kernel log", (*kit).kernelLog},
		{"journal", (*kit).journal},
		{"podlog", (*kit).podlog},
	}
	for _, name := range []string{"hca", "ntp", "units", "mounts", "metax", "ascend"} {
		steps = append(steps, step{name, func(k *kit, ctx context.Context, o *outcome) { k.plugin(ctx, o, name) }})
	}
	// What dcgm asks without -run is whether there is a GPU.
	for _, name := range []string{"ecc", "thermal", "gpucount", "nvlink", "stall", "dcgm"} {
		steps = append(steps, step{name, func(k *kit, ctx context.Context, o *outcome) { k.nvml(ctx, o, name) }})
	}
	return append(steps,
		step{"library", (*kit).symbols},
		step{"PCI bus", (*kit).bus},
		step{"nvidia-smi", (*kit).smi},
		step{"preflight", (*kit).preflight},
		step{"repair reset-gpu", (*kit).reset},
		step{"repair check", (*kit).check},
		step{"DCGM", (*kit).dcgm},
		step{"persistence mode", (*kit).persistence},
		step{"hold", (*kit).holding},
	)
}
