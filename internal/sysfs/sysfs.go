// Package sysfs reads attributes and PCI functions from a sysfs tree.
package sysfs

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Read returns an attribute without the white space around it.
func Read(path string) (string, error) {
	f, err := Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	return f.Read()
}

// File is an open attribute. To read it again costs a fraction of another walk along its path.
type File struct {
	path string
	fd   int
}

// Open opens an attribute. It does not use [os.Open]: a driver that answers EAGAIN would make Go's poller wait permanently
// (https://github.com/prometheus/node_exporter/pull/728).
func Open(path string) (*File, error) {
	fd, err := retry(func() (int, error) { return unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return &File{path, fd}, nil
}

// Close closes the file. Nothing was written that it could lose.
func (f *File) Close() { _ = unix.Close(f.fd) }

// Read returns what the attribute is now, without the white space around it. It fails when the kernel has removed the attribute.
func (f *File) Read() (string, error) {
	// An attribute is at most one page.
	buf := make([]byte, 4096)
	n, err := retry(func() (int, error) { return unix.Pread(f.fd, buf, 0) })
	if err != nil {
		return "", &os.PathError{Op: "read", Path: f.path, Err: err}
	}
	return strings.TrimSpace(string(buf[:n])), nil
}

func retry(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// Uint reads an attribute that is one number, decimal or with 0x.
func Uint(path string) (uint64, error) {
	text, err := Read(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(text, 0, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return n, nil
}

// Function is one PCI function.
type Function struct {
	// Address is domain:bus:device.function, e.g. 0000:4e:00.0.
	Address string `json:"address"`
	// Vendor and Device are the PCI ids, Class the 24 bit class code.
	Vendor uint64 `json:"vendor"`
	Device uint64 `json:"device"`
	Class  uint64 `json:"class"`
	// Driver is the kernel driver that it is bound to, "" for none.
	Driver string `json:"driver,omitempty"`
	// Virtual is true for a virtual function whose physical one is on this host.
	Virtual bool `json:"virtual,omitempty"`
}

// PassedOn reports whether the function is for a virtual machine.
func (f Function) PassedOn() bool { return f.Driver == "vfio-pci" }

// PCI lists the PCI functions of a vendor below root (/sys). A function that cannot be read is left out and its error
// is joined to the one returned, so that it hides no other.
func PCI(root string, vendor uint64) ([]Function, error) {
	dirs, err := filepath.Glob(filepath.Join(root, "bus/pci/devices/*"))
	if err != nil {
		return nil, err
	}
	var found []Function
	var errs []error
	for _, dir := range dirs {
		f := Function{Address: filepath.Base(dir)}
		if f.Vendor, err = Uint(filepath.Join(dir, "vendor")); err != nil {
			errs = append(errs, err)
			continue
		}
		if f.Vendor != vendor {
			continue
		}
		var deviceErr, classErr error
		f.Device, deviceErr = Uint(filepath.Join(dir, "device"))
		f.Class, classErr = Uint(filepath.Join(dir, "class"))
		if err := errors.Join(deviceErr, classErr); err != nil {
			errs = append(errs, err)
			continue
		}
		if driver, err := os.Readlink(filepath.Join(dir, "driver")); err == nil {
			f.Driver = filepath.Base(driver)
		}
		_, err = os.Lstat(filepath.Join(dir, "physfn"))
		f.Virtual = err == nil
		found = append(found, f)
	}
	return found, errors.Join(errs...)
}
