package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	pci "github.com/pitcrew-dev/pitcrew/internal/sysfs"
)

// OnBus lists the NVIDIA GPUs below sysfs's bus/pci/devices by their names there: vendor 10de, class 0300 (VGA) or 0302 (3D controller).
// Virtual functions are left out. What it reads the kernel knows without asking the device.
func OnBus(sysfs string) (names []string, err error) {
	dir := filepath.Join(sysfs, devices)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list the PCI bus: %w", err)
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		// A server has hundreds of functions, most of them of other vendors.
		if attribute(path, "vendor") != "0x10de" {
			continue
		}
		if class := attribute(path, "class"); !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		if _, err := os.Lstat(filepath.Join(path, "physfn")); err != nil {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

const devices = "bus/pci/devices"

// ReadBus reads what the PCI bus says of the GPUs of [OnBus].
func ReadBus(sysfs string) (gpus []BusDevice, err error) {
	names, err := OnBus(sysfs)
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		path := filepath.Join(sysfs, devices, name)
		d := BusDevice{Address: Address(name), Width: number(path, "current_link_width"), MaxWidth: number(path, "max_link_width")}
		if driver, err := filepath.EvalSymlinks(filepath.Join(path, "driver")); err == nil {
			d.Driver = filepath.Base(driver)
		}
		// The port above may have fewer lanes; then fewer are no fault of the GPU.
		if real, err := filepath.EvalSymlinks(path); err == nil {
			if port := number(filepath.Dir(real), "max_link_width"); port > 0 && port < d.MaxWidth {
				d.MaxWidth = port
			}
		}
		gpus = append(gpus, d)
	}
	return gpus, nil
}

func attribute(dir, name string) string {
	// A device that is being removed has no attributes left, and is not of interest then.
	text, _ := pci.Read(filepath.Join(dir, name))
	return text
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
