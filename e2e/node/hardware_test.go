package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/godbus/dbus/v5"
	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// theGPU is the address of the only GPU that containers see on the PCI bus.
const theGPU = "0000:10:00"

// hardware is what a repair finds at the outermost edge of the node: stand-ins for NVIDIA's tool and libraries, and for logind.
type hardware struct {
	m *host
	// reboots has a value for each reboot that logind was asked for.
	reboots chan struct{}

	mu    sync.Mutex
	asked int
}

// addHardware gives the node the hardware, once.
func (m *host) addHardware(t *testing.T) *hardware {
	t.Helper()
	if m.hardware != nil {
		return m.hardware
	}
	m.dcgm(t)
	m.nvidiaSMI(t)
	m.podResources(t)
	h := &hardware{m: m, reboots: make(chan struct{}, 100)}
	h.logind(t)
	m.hardware = h
	return h
}

// dcgm puts DCGM below the driver's root, where NVIDIA's packages have it: the library, the module that it opens by name, and the program
// that it starts, which needs the driver's libraries.
func (m *host) dcgm(t *testing.T) {
	t.Helper()
	m.library(t, "libdcgm.so.4", "plugins/dcgm/testdata/libdcgm.c", "DCGM_STANDIN", "/diag", "github.com/NVIDIA/go-dcgm", "pkg/dcgm")
	nvvs := filepath.Join(driverRoot, "usr/libexec/datacenter-gpu-manager-4/nvvs")
	if err := os.MkdirAll(filepath.Dir(nvvs), 0o755); err != nil {
		t.Fatal(err)
	}
	empty := m.Write(t, "empty.c", "int nothing;")
	libraries := filepath.Join(driverRoot, "usr/lib64")
	for _, args := range [][]string{
		{"-shared", "-Wl,-soname,libdcgmmodulediag.so.4", "-o", filepath.Join(libraries, "libdcgmmodulediag.so.4"), empty},
		{"-shared", "-Wl,-soname,libcuda.so.1", "-o", filepath.Join(libraries, "libcuda.so.1"), empty},
		{"-o", nvvs, filepath.Join(m.Root, "plugins/dcgm/testdata/nvvs.c")},
	} {
		if out, err := exec.CommandContext(t.Context(), "gcc", append([]string{"-fPIC"}, args...)...).CombinedOutput(); err != nil {
			t.Fatalf("gcc %q: %v\n%s", args, err, out)
		}
	}
}

// pciBus makes the sysfs of a node with one GPU, and returns the commands that give it to containers.
func (m *host) pciBus(t *testing.T) string {
	t.Helper()
	commands := ""
	for path, content := range gpuFiles {
		m.Write(t, filepath.Join("hardware", path), content)
	}
	for _, path := range []string{"/sys/bus/pci", "/sys/module"} {
		commands += fmt.Sprintf("mount --bind %s .%s\n", filepath.Join(m.Dir, "hardware", path), path)
	}
	return commands
}

// nvidiaSMI adds a stand-in for nvidia-smi, and a shell to run it, to the driver's root. It writes how it was called into a file there. A reset
// waits for a line of the pipe that a test has put there.
func (m *host) nvidiaSMI(t *testing.T) {
	t.Helper()
	m.Busybox(t, "docker.io/e2e/busybox:1")
	script := `#!/bin/sh
{ echo "$*" >>/nvidia-smi.calls; } 2>&- # a check cannot write here
case "$*" in
-q) echo "        Name                              : python3 train.py PLANTED" ;;
*persistence_mode*) echo Disabled ;;
*pci.bus_id*) echo 00000000:10:00.0 ;;
*--gpu-reset*) [ ! -p /nvidia-smi.gate ] || read -r go </nvidia-smi.gate; echo "GPU 00000000:10:00.0 was successfully reset." ;;
esac
`
	busybox, err := os.ReadFile(filepath.Join(m.Dir, "busybox", "bin", "busybox"))
	if err != nil {
		t.Fatal(err)
	}
	for path, content := range map[string][]byte{"bin/sh": busybox, "usr/bin/nvidia-smi": []byte(script)} {
		path = filepath.Join(driverRoot, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, content, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// podResources puts the kubelet's socket where nodes have it: the kubelet of the tests has another folder.
func (m *host) podResources(t *testing.T) {
	t.Helper()
	mount(t, filepath.Join(m.KubeletDir(), "pod-resources"), "/var/lib/kubelet/pod-resources", "", unix.MS_BIND, "")
}

// logind starts a system bus with a stand-in for logind.
func (h *hardware) logind(t *testing.T) {
	t.Helper()
	const socket = "/run/dbus/system_bus_socket"
	config := h.m.Write(t, "bus.conf", `<busconfig><listen>unix:path=`+socket+`</listen><auth>EXTERNAL</auth><policy context="default">
		<allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`)
	if err := os.MkdirAll(filepath.Dir(socket), 0o755); err != nil {
		t.Fatal(err)
	}
	h.m.Start(t, "dbus-daemon", "--nofork", "--nopidfile", "--config-file", config)
	var conn *dbus.Conn
	clustertest.Until(t, patience, "the system bus", func() (err error) {
		conn, err = dbus.Connect("unix:path=" + socket)
		return err
	})
	if err := conn.Export(h, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"); err != nil {
		t.Fatal(err)
	}
	if _, err := conn.RequestName("org.freedesktop.login1", dbus.NameFlagDoNotQueue); err != nil {
		t.Fatal(err)
	}
}

// Reboot is that of logind.
func (h *hardware) Reboot(bool) *dbus.Error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.asked++
	h.reboots <- struct{}{}
	return nil
}

// ListInhibitors is that of logind: nobody blocks a reboot.
func (h *hardware) ListInhibitors() ([]struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}, *dbus.Error) {
	return nil, nil
}

// diagnosis sets what DCGM's diagnostics find from now on.
func (h *hardware) diagnosis(t *testing.T, results string) {
	t.Helper()
	if err := os.WriteFile(driverRoot+"/diag", []byte(results), 0o644); err != nil {
		t.Fatal(err)
	}
}

// counts are the actions so far: how often logind was asked for a reboot, and nvidia-smi for a reset.
func (h *hardware) counts() (reboots, resets int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	calls, _ := os.ReadFile(driverRoot + "/nvidia-smi.calls") // there is none before the first call
	return h.asked, strings.Count(string(calls), "--gpu-reset")
}

// rebooted waits until logind was asked for a reboot, and reboots the node.
func (h *hardware) rebooted(t *testing.T) {
	t.Helper()
	h.askedForReboot(t)
	h.m.PowerOff(t)
	h.m.UntilBoot(t, h.m.PowerOn(t))
}

func (h *hardware) askedForReboot(t *testing.T) {
	t.Helper()
	clustertest.Until(t, patience, "a call of logind", func() error {
		select {
		case <-h.reboots:
			return nil
		default:
			return fmt.Errorf("none yet")
		}
	})
}

// reset waits for a reset after the first n, and has the driver say that the GPU needs none any more.
func (h *hardware) reset(t *testing.T, n int) {
	t.Helper()
	clustertest.Until(t, patience, "a call of nvidia-smi", func() error {
		if _, resets := h.counts(); resets <= n {
			return fmt.Errorf("%d resets", resets)
		}
		return nil
	})
	h.m.kernel(t, "NVRM: Xid (PCI:"+theGPU+"): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)")
}
