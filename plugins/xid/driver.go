package main

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/xid"
)

// driverList has another process, this plugin with -gpus, read the driver's list, once per run. These files are calls
// into the driver: one that hangs cannot be killed, and in this process it would keep NPD's pipes open permanently.
func (r *reader) driverList(ctx context.Context) map[string]xid.GPU {
	const limit = 500 * time.Millisecond
	if r.listed {
		return r.list
	}
	r.listed = true
	if _, err := os.Stat(filepath.Join(r.procfs, "driver/nvidia")); err != nil {
		return nil
	}
	lock, err := r.lock("xid-gpus.lock")
	if err != nil {
		return nil
	}
	defer lock.Close()
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	printed := make(chan []byte, 1)
	go func() { printed <- r.printGPUs(ctx, lock) }()
	select {
	case out := <-printed:
		if err := json.Unmarshal(out, &r.list); err != nil {
			slog.Warn("the driver's list of GPUs is not understood", "err", err)
		}
	case <-ctx.Done():
		slog.Warn("the driver's list of GPUs is not read in time", "limit", limit)
	}
	return r.list
}

// listGPUs reads the driver's own list of GPUs.
func listGPUs(procfs string) map[string]xid.GPU {
	found := map[string]xid.GPU{}
	files, _ := filepath.Glob(filepath.Join(procfs, "driver/nvidia/gpus/*/information"))
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		gpu := driverInformation(string(text))
		instances, _ := filepath.Glob(filepath.Join(procfs, "driver/nvidia/capabilities/gpu"+gpu.Index+"/mig/gi*"))
		gpu.MIG = len(instances) > 0
		found[xid.Device(filepath.Base(filepath.Dir(file)))] = gpu
	}
	return found
}

// driverInformation parses /proc/driver/nvidia/gpus/<address>/information.
func driverInformation(text string) xid.GPU {
	var gpu xid.GPU
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		value = strings.TrimSpace(value)
		switch key {
		case "Model":
			gpu.Model = value
		case "GPU UUID":
			gpu.UUID = value
		case "Device Minor":
			gpu.Index = value
		}
	}
	return gpu
}

// gpus is what is known of each GPU: the UUIDs that the driver logged, and its own list.
func gpus(uuids map[string]string, list map[string]xid.GPU) map[string]xid.GPU {
	known := map[string]xid.GPU{}
	for device, uuid := range uuids {
		known[device] = xid.GPU{UUID: uuid}
	}
	maps.Copy(known, list)
	return known
}
