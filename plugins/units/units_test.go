package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/systemd/systemdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

const fine = "exit 0\nservices are as expected\n"

// node is a real systemd and the plugin.
type node struct {
	*systemdtest.Node
	binary string
}

func newNode(t *testing.T, units map[string]string, wanted ...string) *node {
	n := &node{systemdtest.New(t, units, wanted...), npdtest.Build(t)}
	n.Write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086")
	return n
}

func (n *node) run(args ...string) string {
	n.T.Helper()
	return npdtest.Run(n.T, "nsenter", n.Enter(n.binary, append([]string{"-grace", "0s",
		"-sysfs", filepath.Join(n.Dir, "sys"), "-state-dir", filepath.Join(n.Dir, "state")}, args...)...)...)
}

func (n *node) until(want string, args ...string) {
	n.T.Helper()
	got := ""
	defer func() {
		if n.T.Failed() {
			n.T.Logf("got %s", got)
		}
	}()
	n.Wait(want, func() bool {
		got = n.run(args...)
		return got == want
	})
}

const (
	runs  = "[Service]\nExecStart=/bin/sleep infinity"
	fails = "[Service]\nExecStart=/bin/false"
	loops = "[Service]\nExecStart=/bin/false\nRestart=always\nRestartSec=100ms"
	slow  = "[Service]\nType=oneshot\nExecStart=/bin/sleep infinity\nTimeoutStartSec=infinity"
)

func TestUnitsThatAreAskedFor(t *testing.T) {
	n := newNode(t, map[string]string{
		"good.service": runs, "fails.service": fails, "loops.service": loops, "slow.service": slow, "off.service": runs, "masked.service": "",
		"killed.service": "[Service]\nExecStart=/bin/sh -c 'kill -9 $$$$'",
	}, "killed.service", "good.service", "fails.service", "loops.service", "slow.service")
	tests := map[string]string{
		"good.service":              fine,
		"good.service,slow.service": fine,
		"node.target":               fine,
		"fails.service":             "exit 1\nInspect unit fails.service: failed (Result: exit-code, status=1)\n",
		"killed.service":            "exit 1\nInspect unit killed.service: failed (Result: signal, signal=9)\n",
		"loops.service":             "exit 1\nInspect unit loops.service: restarted 3 times or more within 10m0s (Result: exit-code, status=1)\n",
		"off.service":               "exit 1\nInspect unit off.service: not running\n",
		"masked.service":            "exit 1\nInspect unit masked.service: masked\n",
		"absent.service":            "exit 1\nInspect unit absent.service: not-found\n",
		"good.service,off.service,absent.service": "exit 1\nInspect unit absent.service: not-found; unit off.service: not running\n",
	}
	for units, want := range tests {
		t.Run(units, func(t *testing.T) {
			n.T = t
			n.until(want, "-units", units)
		})
	}
	n.T = t
	n.until("exit 2\nunknown: unit off.service: not running, but the node has only just booted\n", "-units", "off.service", "-grace", "8760h")
	n.until("exit 1\nMonitor unit slow.service: activating\n", "-units", "slow.service", "-min-repair", "Monitor")
}

func TestTheUnitsOfAGPUNode(t *testing.T) {
	n := newNode(t, map[string]string{
		"kubelet.service": runs, "containerd.service": runs, "chrony.service": runs + "\n[Install]\nAlias=chronyd.service",
		"nvidia-imex.service": runs, "nvidia-fabricmanager.service": runs,
	}, "kubelet.service", "containerd.service")
	// Units that are not enabled or not installed are not reported as missing.
	n.until(fine)
	n.Write("sys/bus/pci/devices/0000:07:00.0/vendor", "0x10de")
	n.Write("sys/bus/pci/devices/0000:07:00.0/device", "0x22a3")
	n.Write("sys/bus/pci/devices/0000:07:00.0/class", "0x068000")
	n.until("exit 1\nInspect unit nvidia-fabricmanager.service: not running\n")
	n.Write("sys/bus/pci/devices/0000:07:00.0/class", "0x030200")
	n.until(fine)
}

// It is enabled by its package and finds nothing to do on PCIe cards; where it is needed, its log says why it fails.
func TestAFabricManagerThatFails(t *testing.T) {
	n := newNode(t, map[string]string{"nvidia-fabricmanager.service": fails + "\n[Install]\nWantedBy=node.target"}, "nvidia-fabricmanager.service")
	n.until(fine)
	n.until("exit 1\nMonitor unit nvidia-fabricmanager.service: failed (Result: exit-code, status=1)\n", "-min-repair", "Monitor")
	n.Write("sys/bus/pci/devices/0000:07:00.0/vendor", "0x10de")
	n.Write("sys/bus/pci/devices/0000:07:00.0/device", "0x1af1")
	n.Write("sys/bus/pci/devices/0000:07:00.0/class", "0x068000")
	log := filepath.Join(n.Dir, "fabricmanager.log")
	n.until("exit 1\nInspect unit nvidia-fabricmanager.service: failed (Result: exit-code, status=1)\n", "-fabric-manager-log", log)
	n.Write("fabricmanager.log", strings.Repeat("[Nov 26 2026 10:00:00] [INFO] [tid 77] Fabric Manager is up\n", 2000)+
		"[Nov 27 2026 10:00:00] [ERROR] [tid 1234] request to query NVSwitch device information from NVSwitch driver failed with error:WARNING Nothing to do\n"+
		"[Nov 27 2026 11:00:00] [ERROR] [tid 4321] fabric manager NVIDIA GPU driver interface version 570.86.15 don't match with driver version "+
		"570.133.20. Please update with matching NVIDIA driver package.\n[Nov 27 2026 11:00:00] [INFO] [tid 4321] stopping\n")
	n.until("exit 1\nInspect unit nvidia-fabricmanager.service: failed (Result: exit-code, status=1): fabric manager NVIDIA GPU driver interface version "+
		"570.86.15 don't match with driver version 570.133.20. Please update with matching NVIDIA driver package.\n", "-fabric-manager-log", log)
}

func TestWhatAFabricManagerManages(t *testing.T) {
	function := func(vendor, class, vpd string) map[string]string {
		f := map[string]string{"vendor": vendor, "device": "0x1", "class": class}
		if vpd != "" {
			f["vpd"] = vpd
		}
		return f
	}
	gpu, card := function("0x10de", "0x030200", ""), function("0x10de", "0x030000", "")
	nic := function("0x15b3", "0x020700", "ConnectX-7 HDR\x00PN\x0bMCX75310AAS")
	virtual := function("0x15b3", "0x020700", "SW_MNG")
	virtual["physfn"] = ""
	passed := function("0x10de", "0x068000", "")
	passed["driver"] = "vfio-pci"
	for name, node := range map[string]struct {
		functions []map[string]string
		needed    bool
	}{
		"HGX A100, HGX H100":         {[]map[string]string{gpu, gpu, nic, function("0x10de", "0x068000", "")}, true},
		"HGX B200":                   {[]map[string]string{gpu, gpu, nic, function("0x15b3", "0x020700", "\x82Mellanox\x00V0SW_MNG\x78")}, true},
		"HGX B200, Ethernet":         {[]map[string]string{gpu, function("0x15b3", "0x020000", "SW_MNG")}, true},
		"GB200 compute tray":         {[]map[string]string{gpu, gpu, gpu, gpu, nic, nic}, false},
		"PCIe cards":                 {[]map[string]string{gpu, gpu, nic, card, function("0x10de", "0x040300", "")}, false},
		"switches of a guest":        {[]map[string]string{gpu, passed, passed}, false},
		"HGX H100, one passed on":    {[]map[string]string{gpu, function("0x10de", "0x068000", ""), passed}, true},
		"B200 in two, no adapter":    {[]map[string]string{gpu, gpu, function("0x15b3", "0x020700", "BlueField-3")}, false},
		"a guest with one GPU":       {[]map[string]string{gpu}, false},
		"a guest with a function":    {[]map[string]string{gpu, virtual}, false},
		"a bridge of another vendor": {[]map[string]string{gpu, function("0x1000", "0x068000", "")}, false},
		"no GPU":                     {nil, false},
	} {
		root := t.TempDir()
		for i, f := range node.functions {
			for attribute, value := range f {
				dir := filepath.Join(root, "bus/pci/devices", fmt.Sprintf("0000:%02x:00.0", i))
				if err := os.MkdirAll(dir, 0o755); err != nil {
					t.Fatal(err)
				}
				write := func() error { return os.WriteFile(filepath.Join(dir, attribute), []byte(value), 0o600) }
				if attribute == "driver" {
					write = func() error { return os.Symlink("../../drivers/"+value, filepath.Join(dir, attribute)) }
				}
				if err := write(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if needed, err := managesFabric(root); needed != node.needed || err != nil {
			t.Errorf("%s: %t, %v", name, needed, err)
		}
	}
	// An adapter that cannot be asked may lead to switches.
	root := t.TempDir()
	for attribute, value := range nic {
		path := filepath.Join(root, "bus/pci/devices/0000:01:00.0", attribute)
		if attribute == "vpd" {
			path = filepath.Join(path, "in the way")
		}
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if needed, err := managesFabric(root); needed || err == nil {
		t.Errorf("vital product data unread: %t, %v", needed, err)
	}
}

func TestAServiceThatDies(t *testing.T) {
	n := newNode(t, map[string]string{"containerd.service": runs, "kubelet.service": runs}, "containerd.service", "kubelet.service")
	n.until(fine)
	// systemd calls a service active before it runs its program.
	var pids []int
	n.Wait("both programs", func() bool {
		pids = n.sleeping()
		return len(pids) == 2
	})
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.until("exit 1\nInspect unit containerd.service: failed (Result: signal, signal=9); " +
		"unit kubelet.service: failed (Result: signal, signal=9)\n")
}

// sleeping returns systemd's children that run sleep.
func (n *node) sleeping() (pids []int) {
	n.T.Helper()
	children, err := os.ReadFile("/proc/" + n.PID + "/task/" + n.PID + "/children")
	if err != nil {
		n.T.Fatal(err)
	}
	for child := range strings.FieldsSeq(string(children)) {
		// A child may be gone by now.
		comm, err := os.ReadFile("/proc/" + child + "/comm")
		if err != nil || strings.TrimSpace(string(comm)) != "sleep" {
			continue
		}
		pid, err := strconv.Atoi(child)
		if err != nil {
			n.T.Fatal(err)
		}
		pids = append(pids, pid)
	}
	return pids
}

func TestNoSystemd(t *testing.T) {
	binary, socket := npdtest.Build(t), filepath.Join(t.TempDir(), "private")
	want := "exit 2\nunknown: no systemd here: stat " + socket + ": no such file or directory\n"
	if got := npdtest.Run(t, binary, "-systemd", socket); got != want {
		t.Errorf("got %swant %s", got, want)
	}
	if err := os.WriteFile(socket, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if got := npdtest.Run(t, binary, "-systemd", socket); !strings.HasPrefix(got, "exit 2\nunknown: systemd at "+socket+": ") {
		t.Errorf("got %s", got)
	}
}
