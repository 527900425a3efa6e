package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

// port returns the configuration space of a PCIe port with ACS, whose control lspci shows as ACSCtl.
func port(kind byte, control uint16) []byte {
	c := make([]byte, 4096)
	binary.LittleEndian.PutUint16(c, 0x10b5)
	c[capabilities] = 0x40
	c[0x40], c[0x41] = 0x01, 0x68 // power management first
	c[0x68], c[0x6a] = capExpress, kind<<4|2
	binary.LittleEndian.PutUint32(c[0x100:], 0x0001|1<<16|0x148<<20) // AER first
	binary.LittleEndian.PutUint32(c[0x148:], extendedACS|1<<16)
	binary.LittleEndian.PutUint16(c[0x148+acsControl:], control)
	return c
}

func TestRedirects(t *testing.T) {
	// SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-, as the kernel sets it with an IOMMU.
	const enabled = 0x1d
	noACS := port(downstream, enabled)
	noACS[0x148] = 0x0e
	for name, test := range map[string]struct {
		config    []byte
		want, err bool
	}{
		"enabled":             {port(downstream, enabled), true, false},
		"requests only":       {port(downstream, 0x04), true, false},
		"completions only":    {port(downstream, 0x08), true, false},
		"off":                 {port(downstream, 0), false, false},
		"source validation":   {port(downstream, 0x01), false, false},
		"direct translated":   {port(downstream, enabled|acsTranslated), false, false},
		"root port":           {port(4, enabled), false, false},
		"upstream port":       {port(5, enabled), false, false},
		"no ACS":              {noACS, false, false},
		"off the bus":         {[]byte(strings.Repeat("\xff", 4096)), false, true},
		"not for this reader": {port(downstream, enabled)[:64], false, false},
		"cut":                 {port(downstream, enabled)[:256], false, true},
		"nothing":             {nil, false, true},
	} {
		if got, err := redirectsPeers(test.config); got != test.want || (err != nil) != test.err {
			t.Errorf("%s: %t, %v", name, got, err)
		}
	}
}

func FuzzRedirects(f *testing.F) {
	f.Add(port(downstream, 0x1d))
	f.Fuzz(func(t *testing.T, config []byte) {
		if redirects, err := redirectsPeers(config); redirects && err != nil {
			t.Error(err)
		}
	})
}

// node has a GPU and an adapter below a PCIe switch, with Intel's IOMMU.
type node struct {
	t           *testing.T
	dir, binary string
}

func newNode(t *testing.T) node {
	n := node{t, t.TempDir(), npdtest.Build(t)}
	n.write("proc/sys/kernel/random/boot_id", "7e1f6f4c")
	n.write("proc/uptime", "86400.00 1.00")
	n.write("sys/class/iommu/dmar0/x", "")
	n.write("sys/class/infiniband/rdmap79s0/ports/1/hw_counters/rx_drops", "12")
	for i, class := range []string{"0x030200", "0x020000"} {
		vendor := []string{"0x10de", "0x15b3"}[i]
		at := fmt.Sprintf("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:0%d.0/0000:1%d:00.0", i, 8+i)
		n.write(at+"/vendor", vendor)
		n.write(at+"/device", "0x2330")
		n.write(at+"/class", class)
		n.write(at+"/iommu_group/type", "identity")
		n.write(at+"/infiniband/mlx5_0/x", "")
		n.write(filepath.Dir(at)+"/config", string(port(downstream, 0)))
		if err := os.MkdirAll(n.dir+"/sys/bus/pci/devices", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(n.dir+"/"+at, n.dir+"/sys/bus/pci/devices/"+filepath.Base(at)); err != nil {
			t.Fatal(err)
		}
	}
	return n
}

func (n node) write(name, text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		n.t.Fatal(err)
	}
}

func (n node) want(want string, args ...string) {
	n.t.Helper()
	node := []string{"-sysfs", n.dir + "/sys", "-procfs", n.dir + "/proc", "-state-dir", n.dir + "/state"}
	got := npdtest.Run(n.t, n.binary, append(node, args...)...)
	if got != want+"\n" {
		n.t.Errorf("%s: got\n%swant\n%s", args, got, want)
	}
}

const healthy = "exit 0\nnothing is known to slow the fabric down"

func TestPathsOfGPUDirect(t *testing.T) {
	n := newNode(t)
	n.want(healthy, "-acs", "-min-repair", "Monitor")
	n.write("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/config", string(port(downstream, 0x1d)))
	n.want(healthy)
	const redirected = "exit 1\nInspect pci 0000:17:01.0: access control (ACS) of this switch port sends the traffic of GPUs or adapters " +
		"through the CPU"
	n.want(redirected, "-acs")
	n.write("sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:01.0/config", string(port(downstream, 0)))
	n.write("sys/bus/pci/devices/0000:18:00.0/iommu_group/type", "DMA-FQ")
	const translated = "exit 1\nMonitor iommu: translates the traffic of GPUs, which slows GPUDirect down (iommu=pt does not)"
	n.want(translated, "-acs", "-min-repair", "Monitor")
	n.want(healthy, "-acs")
	// Grace has an SMMU, and works with it.
	if err := os.Rename(n.dir+"/sys/class/iommu/dmar0", n.dir+"/sys/class/iommu/smmu3.0x0000000005000000"); err != nil {
		t.Fatal(err)
	}
	n.want(healthy, "-acs", "-min-repair", "Monitor")
}

// A pipe without a writer never answers, as a register of a device whose firmware is gone. The other parts are judged all the same.
func TestAPartThatHangsHidesNoOther(t *testing.T) {
	const port = "sys/devices/pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/config"
	const counter = "sys/class/infiniband/rdmap79s0/ports/1/hw_counters/retrans_timeout_events"
	for hangs, who := range map[string]string{
		port: "pci 0000:17:00.0", counter: "efa rdmap79s0", "mlxlink/mlx5_0": "link mlx5_0", "sys/bus/pci/devices/0000:1a:00.0/vendor": "pci",
	} {
		n := newNode(t)
		n.write("mlxlink/mlx5_1", "State : Active\nEffective Physical BER : 1E-3\n")
		n.write(hangs, "")
		if err := errors.Join(os.Remove(filepath.Join(n.dir, hangs)), syscall.Mkfifo(filepath.Join(n.dir, hangs), 0o600)); err != nil {
			t.Fatal(err)
		}
		n.want("exit 1\nInspect link mlx5_1: too many bit errors after error correction (effective BER); module gdrdrv: not loaded; "+
			who+": not read: did not answer in time", "-modules", "gdrdrv", "-acs", "-mlxlink", n.dir+"/mlxlink", "-timeout", "4s")
	}
}

func TestModules(t *testing.T) {
	n := newNode(t)
	const missing = "exit 1\nInspect module gdrdrv: not loaded"
	n.want(missing, "-modules", "gdrdrv")
	n.want("exit 2\nunknown: module gdrdrv: not loaded, but the node has only just booted", "-modules", "gdrdrv", "-grace", "25h")
	n.write("sys/module/gdrdrv/initstate", "live")
	n.want(healthy, "-modules", "gdrdrv")
	n.want("exit 1\nInspect module nvidia-peermem: not loaded", "-modules", "gdrdrv,nvidia-peermem")
	// Only the closed driver needs it.
	n.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build\n")
	n.want(healthy, "-min-repair", "Monitor")
	n.write("proc/driver/nvidia/version", "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.133.20  Sun Mar 23 04:47:34 UTC 2025\n")
	n.want("exit 1\nMonitor module nvidia_peermem: not loaded, so that GPUDirect RDMA cannot work with this driver", "-min-repair", "Monitor")
	n.write("sys/module/nvidia_peermem/initstate", "live")
	n.want(healthy, "-min-repair", "Monitor")
}

func TestEFACounters(t *testing.T) {
	n := newNode(t)
	n.write("sys/class/infiniband/rdmap79s0/ports/1/hw_counters/retrans_timeout_events", "7")
	n.want(healthy, "-min-repair", "Monitor")
	n.write("sys/class/infiniband/rdmap79s0/ports/1/hw_counters/retrans_timeout_events", "8")
	const grew = "exit 1\nMonitor efa rdmap79s0: retrans_timeout_events grew within the last hour"
	n.want(grew, "-min-repair", "Monitor")
	n.want(healthy)
	n.write("proc/uptime", "89999.00 1.00")
	n.want(grew, "-min-repair", "Monitor")
	n.write("proc/uptime", "90001.00 1.00")
	n.want(healthy, "-min-repair", "Monitor")
	n.write("sys/class/infiniband/rdmap79s0/ports/1/hw_counters/retrans_timeout_events", "none")
	n.want("exit 2\nunknown: efa rdmap79s0: " + n.dir + `/sys/class/infiniband/rdmap79s0/ports/1/hw_counters/retrans_timeout_events: ` +
		`strconv.ParseUint: parsing "none": invalid syntax`)
}

func TestOldReports(t *testing.T) {
	n := newNode(t)
	n.write("mlxlink/mlx5_0.txt", "State : Active\nFEC : No FEC\nRaw Physical BER : 15E-255\n")
	n.want(healthy, "-mlxlink", n.dir+"/mlxlink")
	old := time.Now().Add(-3 * time.Hour)
	if err := os.Chtimes(n.dir+"/mlxlink/mlx5_0.txt", old, old); err != nil {
		t.Fatal(err)
	}
	n.want("exit 2\nunknown: link mlx5_0: the report of mlxlink is too old", "-mlxlink", n.dir+"/mlxlink")
	n.want(healthy, "-mlxlink", n.dir+"/mlxlink", "-max-age", "4h")
}

func TestLimitsOfBitErrors(t *testing.T) {
	for report, want := range map[string]string{
		"FEC : Standard RS-FEC - RS(528,514)\nEffective Physical BER : 1E-12":                            "",
		"FEC : Standard RS-FEC - RS(528,514)\nEffective Physical BER : 1.1E-12":                          "effective",
		"FEC : Standard_RS-FEC - (544,514)\nRaw Physical BER : 2.4E-4\nEffective Physical BER : 15E-255": "",
		"FEC : Standard_RS-FEC - (544,514)\nRaw Physical BER : 3E-4\nEffective Physical BER : 15E-255":   "raw",
		"FEC : Standard_RS-FEC - (544,514)\nEffective Physical BER : 15E-255\nSymbol BER : 2E-12":        "symbol",
		"FEC : Standard RS-FEC - RS(528,514)\nRaw Physical BER : 3E-4\nEffective Physical BER : 0":       "",
		"FEC : No FEC\nRaw Physical BER : 2E-12":                                                         "raw",
		"FEC : Standard RS-FEC - RS(528,514)\nRaw Physical BER : 3E-9\nEffective Physical BER : 0":       "",
	} {
		l, err := parseLink("State : Active\n" + report)
		if err != nil {
			t.Fatal(err)
		}
		var result npd.Result
		(&limits{maxAge: time.Hour, ber: 1e-12, raw: 2.4e-4}).link(l, &result)
		if found := fmt.Sprint(result.Findings); (want == "") != (len(result.Findings) == 0) || !strings.Contains(found, want) {
			t.Errorf("%q: %s", report, found)
		}
	}
}

func FuzzParseLink(f *testing.F) {
	f.Add("State : Active\nEffective Physical BER : 15E-255\n")
	f.Fuzz(func(t *testing.T, report string) {
		if l, err := parseLink(report); err == nil && l.Effective != nil && !(*l.Effective >= 0 && *l.Effective <= 1) {
			t.Errorf("%q: %v", report, *l.Effective)
		}
	})
}
