package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ReadBus lists the NVIDIA GPUs below sysfs's bus/pci/devices: vendor 10de, class 0300 (VGA) or 0302 (3D controller).
// Virtual functions are left out.
func ReadBus(sysfs string) ([]BusDevice, error) {
	dir := filepath.Join(sysfs, "bus/pci/devices")
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the PCI bus: %w", err)
	}
	var devices []BusDevice
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		class := attribute(path, "class")
		if attribute(path, "vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, "physfn")); err == nil {
			continue
		}
		d := BusDevice{Address: Address(e.Name()), Width: number(path, "current_link_width"), MaxWidth: number(path, "max_link_width")}
		if driver, err := filepath.EvalSymlinks(filepath.Join(path, "driver")); err == nil {
			d.Driver = filepath.Base(driver)
		}
		// The port above may have fewer lanes; then fewer are no fault of the GPU.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if port := number(filepath.Dir(real), "max_link_width"); port > 0 && port < d.MaxWidth {
				d.MaxWidth = port
			}
		}
		devices = append(devices, d)
	}
	return devices, nil
}

func attribute(dir, name string) string {
	// A device that is being removed has no attributes left, and is not of interest then.
	data, _ := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(data))
}

// number returns a PCIe attribute, 0 if it is absent or says "Unknown". 255 and 63 lanes are what a device reads like
// that no longer answers.
func number(dir, name string) int {
	n, err := strconv.Atoi(attribute(dir, name))
	if err != nil || n < 0 || n > 32 {
		return 0
	}
	return n
}
