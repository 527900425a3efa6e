// Package boot reads which boot of the node is running and for how long. State and grace periods hang on it.
package boot

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Boot is the running boot of a node.
type Boot struct {
	// ID is the kernel's boot id, a new one for every boot.
	ID string `json:"id"`
	// Uptime is the time since the boot, suspended time included. It is the clock of boot-scoped state, because it
	// cannot be set.
	Uptime time.Duration `json:"uptime"`
}

// ID reads the boot id of the node whose proc filesystem is mounted at procfs: sys/kernel/random/boot_id, random(4).
func ID(procfs string) (string, error) {
	id, err := os.ReadFile(filepath.Join(procfs, "sys/kernel/random/boot_id"))
	return strings.TrimSpace(string(id)), err
}

// Read reads the boot id and the uptime, proc_uptime(5), of the node whose proc filesystem is mounted at procfs.
func Read(procfs string) (Boot, error) {
	id, err := ID(procfs)
	if err != nil {
		return Boot{}, err
	}
	path := filepath.Join(procfs, "uptime")
	uptime, err := os.ReadFile(path)
	if err != nil {
		return Boot{}, err
	}
	seconds, _, _ := strings.Cut(string(uptime), " ")
	since, err := time.ParseDuration(strings.TrimSpace(seconds) + "s")
	if err != nil {
		return Boot{}, fmt.Errorf("%s: %w", path, err)
	}
	return Boot{ID: id, Uptime: since}, nil
}
