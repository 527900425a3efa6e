package main

import (
	"context"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/gpu"
)

// machine is what is known of the machine before anything is run on it.
type machine struct {
	Kernel  string  `json:"kernel"`
	Arch    string  `json:"arch"`
	CPUs    int     `json:"cpus"`
	Uptime  string  `json:"uptime"`
	Root    bool    `json:"root"`
	Libc    string  `json:"libc"`
	First   string  `json:"firstProcess"`
	GPUs    []busID `json:"gpus"`
	BusRead string  `json:"busUnread,omitempty"`
	// Module is the version of the loaded driver, Library the driver's library with its version in the name, SMI nvidia-smi; "" for none.
	Module  string `json:"module"`
	Library string `json:"library"`
	SMI     string `json:"nvidiaSMI"`
	// DriverRoot is the flag -driver-root of the plugins, "" where the loader finds the library.
	DriverRoot string `json:"driverRoot,omitempty"`
	// Holders are processes that had a device open before.
	Holders []string `json:"holders,omitempty"`
}

// busID is an address on the PCI bus.
type busID = string

// roots are folders below which drivers lie: of the distributions, of NVIDIA's and of cloud providers' installers.
var roots = []string{
	"/", "/usr/local/nvidia", "/run/nvidia/driver", "/home/kubernetes/bin/nvidia", "/opt/nvidia", "/var/lib/nvidia", "/usr/lib/nvidia",
	"/host", "/host/run/nvidia/driver", "/host/usr/local/nvidia", "/host/home/kubernetes/bin/nvidia",
}

// libraryFolders and toolFolders are folders below a root.
var (
	libraryFolders = []string{"", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "usr/lib64", "usr/lib", "lib64", "lib"}
	toolFolders    = []string{"", "usr/bin", "bin", "usr/local/bin"}
)

const libraryName, toolName = "libnvidia-ml.so.1", "nvidia-smi"

// look reads what the kernel knows and finds the driver's files.
func (k *kit) look(ctx context.Context) machine {
	m := machine{
		Kernel: text("/proc/sys/kernel/osrelease"), Arch: runtime.GOARCH, CPUs: runtime.NumCPU(),
		Root: os.Geteuid() == 0, First: text("/proc/1/comm"), Module: text(filepath.Join(k.sysfs, "module/nvidia/version")),
	}
	m.Uptime, _, _ = strings.Cut(text("/proc/uptime"), " ")
	names, err := gpu.OnBus(k.sysfs)
	if err != nil {
		m.BusRead = err.Error()
	}
	for _, name := range names {
		m.GPUs = append(m.GPUs, gpu.Address(name))
	}
	r := k.run(ctx, program{argv: []string{"getconf", "GNU_LIBC_VERSION"}, limit: 5 * time.Second})
	m.Libc = strings.TrimSpace(r.stdout)
	m.Holders = k.holders()
	m.Library, m.DriverRoot = k.library(ctx)
	m.SMI = k.tool(filepath.Dir(m.Library))
	return m
}

// holders returns the processes that have a device open.
func (k *kit) holders() (all []string) {
	for _, p := range holdersOf(k.devices) {
		all = append(all, p.String())
	}
	return all
}

// library returns the path of the driver's library and the flag -driver-root with which the plugins find it.
func (k *kit) library(ctx context.Context) (path, root string) {
	if k.driverRoot != "" {
		return real(find(libraryName, []string{k.driverRoot}, libraryFolders)), k.driverRoot
	}
	if path := k.loaders(ctx, libraryName); path != "" {
		return real(path), ""
	}
	if path = find(libraryName, roots, libraryFolders); path != "" {
		root = filepath.Dir(path)
	}
	return real(path), root
}

// loaders returns where the loader finds a library, "" if it does not.
func (k *kit) loaders(ctx context.Context, library string) string {
	if path := find(library, filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")), []string{""}); path != "" {
		return path
	}
	for _, ldconfig := range []string{"ldconfig", "/sbin/ldconfig"} {
		r := k.run(ctx, program{argv: []string{ldconfig, "-p"}, limit: 5 * time.Second})
		for line := range strings.Lines(r.stdout) {
			if name, path, ok := strings.Cut(strings.TrimSpace(line), " => "); ok && strings.HasPrefix(name, library+" ") && exists(path) {
				return path
			}
		}
	}
	return ""
}

// tool returns the path of nvidia-smi: in the folder of the driver, in PATH, or where drivers lie.
func (k *kit) tool(libraryFolder string) string {
	if k.driverRoot != "" {
		return find(toolName, []string{k.driverRoot}, toolFolders)
	}
	path := filepath.SplitList(os.Getenv("PATH"))
	return find(toolName, append(append([]string{filepath.Join(libraryFolder, "..")}, path...), roots...), toolFolders)
}

// find returns the first file of that name, "" if there is none.
func find(name string, roots, folders []string) string {
	for _, root := range roots {
		for _, folder := range folders {
			if path := filepath.Join(root, folder, name); exists(path) {
				return path
			}
		}
	}
	return ""
}

func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// real returns what links lead to, for the version in the name.
func real(path string) string {
	if path == "" {
		return ""
	}
	if target, err := filepath.EvalSymlinks(path); err == nil {
		return target
	}
	return path
}

func text(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}
