package nvmltest

import "path/filepath"

// Absent runs the plugin on nodes that have no GPU, no driver, no library, or a driver that hangs. All checks that use
// NVML say the same there, except noDriver, which is what the plugin says without a driver after the grace, noGPU, which is what
// it says where no GPU is on the bus and none was before, and the beginning and end of what it says of a mismatch of versions.
func Absent(n *Node, healthy, noDriver, noGPU string, mismatch [2]string) {
	n.t.Helper()
	n.Want("exit 0\n" + healthy)
	for ret, text := range map[string]string{
		"9": "couldn't communicate with the NVIDIA driver", "4": "Failed to initialize NVML: Insufficient Permissions",
		"999": "Failed to initialize NVML: Unknown Error", "98": "Failed to initialize NVML: NVML error 98",
	} {
		n.Say("init " + ret)
		n.Want("exit 2\nunknown: NVML: " + text)
	}
	n.Say("init 18", "library 12.575.51.03")
	n.Want(mismatch[0] + "Driver/library version mismatch (library 575.51.03, kernel module 580.95.05)" + mismatch[1])
	n.Want("exit 2\nunknown: NVML: libnvidia-ml.so.1 not found", "-driver-root", n.Path("empty"))
	n.Say()
	n.Want("exit 2\nunknown: NVML: couldn't communicate with the NVIDIA driver", "-driver-root", n.debian())
	n.Say("hang nvmlInit_v2")
	n.Want("exit 2\nunknown: no answer within 6s", "-timeout", "8s")

	n.Say("init 18")
	n.Module("")
	n.Want(noDriver)
	n.Say("init 9")
	n.Want(noDriver)
	n.Want(noDriver, "-driver-root", n.debian())
	n.Want("exit 2\nunknown: driver: the NVIDIA driver is not loaded", "-grace", "8760h")
	for gpu := range 8 {
		n.Plug(gpu, "vfio-pci")
	}
	n.Want("exit 0\nall NVIDIA GPUs are bound to vfio-pci")
	for gpu := range 8 {
		n.Unplug(gpu)
	}
	// Not a node that lost its GPUs: one that has never had any.
	n.Want(noGPU, "-state-dir", n.Path("fresh"))
	n.Want("exit 2\nunknown: list the PCI bus: open "+n.Path("none")+"/bus/pci/devices: no such file or directory", "-sysfs", n.Path("none"))
}

// debian is where NVIDIA's own library lies, which `make test` unpacks for the tests. On a machine without the driver it
// loads and fails to initialize. As root it makes /dev/nvidiactl, as on any node.
func (n *Node) debian() string {
	n.t.Helper()
	found, err := filepath.Glob("../../bin/debian/usr/lib/*/nvidia/current/" + library)
	if err != nil || len(found) != 1 {
		n.t.Fatalf("NVIDIA's library is in %q, %v: make bin/debian unpacks it", found, err)
	}
	return filepath.Dir(found[0])
}
