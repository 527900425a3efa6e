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
	// Uptime is the time since the boot, suspended time included. It is the clock of whatever is kept in a
	// boot-scoped state: nobody can set it.
	Uptime time.Duration `json:"uptime"`
}

// Read reads the boot of the node whose proc filesystem is mounted at procfs: sys/kernel/random/boot_id and uptime,
// proc_uptime(5).
func Read(procfs string) (Boot, error) {
	id, err := os.ReadFile(filepath.Join(procfs, "sys/kernel/random/boot_id"))
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
	return Boot{ID: strings.TrimSpace(string(id)), Uptime: since}, nil
}
