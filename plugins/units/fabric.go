package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/sysfs"
)

// managesFabric reports whether the node has what a fabric manager manages: NVSwitches on the PCI bus (HGX A100, HGX H100), or adapters
// that lead to switches which are not there (HGX B200 and later), by the mark for which its own start script looks, SW_MNG in their vital
// product data. PCIe cards, a guest with a GPU and no switch, and the compute trays of GB200, whose fabric manager runs on the switch
// trays, have neither. What was passed on to a guest is managed there (Fabric Manager User Guide and NVOS user manual of NVIDIA).
func managesFabric(root string) (bool, error) {
	switches, err := sysfs.PCI(root, nvidia)
	if slices.ContainsFunc(switches, func(f sysfs.Function) bool { return f.Class>>8 == bridge && !f.PassedOn() }) {
		return true, nil
	}
	adapters, failed := sysfs.PCI(root, mellanox)
	err = errors.Join(err, failed)
	for _, f := range adapters {
		if f.Virtual || f.PassedOn() {
			continue
		}
		vpd, failed := os.ReadFile(filepath.Join(root, "bus/pci/devices", f.Address, "vpd"))
		if bytes.Contains(vpd, []byte("SW_MNG")) {
			return true, nil
		}
		// Not every adapter has such data.
		if failed != nil && !errors.Is(failed, fs.ErrNotExist) {
			err = errors.Join(err, failed)
		}
	}
	if err != nil {
		return false, fmt.Errorf("not known whether the node needs it: %w", err)
	}
	return false, nil
}

// logged is an error in the fabric manager's log, after its time and thread: what stands there changes from start to start.
var logged = regexp.MustCompile(`(?m)^\[[^]\n]*\] \[ERROR\] (?:\[[^]\n]*\] )*(.*)$`)

// lastError returns the last error in a log, "" if there is none that can be read.
func lastError(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	const most = 64 << 10
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return ""
	}
	tail, err := io.ReadAll(io.NewSectionReader(f, max(0, size-most), most))
	if err != nil {
		return ""
	}
	all := logged.FindAllSubmatch(tail, -1)
	if len(all) == 0 {
		return ""
	}
	return string(bytes.TrimSpace(all[len(all)-1][1]))
}
