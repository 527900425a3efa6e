package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

const healthy = "all GPUs are on the PCI bus and known to the driver"

func TestAbsent(t *testing.T) {
	nvmltest.Absent(nvmltest.New(t), healthy, "exit 1\nInspect driver: the NVIDIA driver is not loaded", noGPU,
		[2]string{"exit 1\nInspect driver: ", ": reboot or reload the driver"})
}

const noGPU = "exit 2\nunknown: gpu count: no GPU found on the PCI bus, set -expect to how many there should be"

func TestANodeWithoutAnyGPU(t *testing.T) {
	n := nvmltest.New(t)
	for gpu := range 8 {
		n.Unplug(gpu)
	}
	n.Say("gpus 0")
	n.Want(noGPU)
	n.Want("exit 0\nno NVIDIA GPU", "-expect", "0")
	n.Want("exit 1\nReboot gpu count: 0 of 8 GPUs on the PCI bus", "-expect", "8")
	n.Want("exit 1\nReboot gpu count: 0 of 8 GPUs on the PCI bus", "-instance-type", "p5.48xlarge")
	n.Want("exit 1\nReboot gpu count: 0 of 8 GPUs on the PCI bus", "-instance-type", "p5.48xlarge", "-expect", "0")
}

func TestANodeThatHasLostAllItsGPUs(t *testing.T) {
	n := nvmltest.New(t)
	n.Want("exit 0\n" + healthy)
	for gpu := range 8 {
		n.Unplug(gpu)
	}
	n.Say("gpus 0")
	for _, args := range [][]string{nil, {"-expect", "0"}} {
		n.Want("exit 1\nReboot gpu 0000:10:00: gone from the PCI bus; gpu 0000:11:00: gone from the PCI bus; gpu 0000:12:00: gone from the PCI bus; "+
			"gpu 0000:13:00: gone from the PCI bus; gpu 0000:14:00: gone from the PCI bus; gpu 0000:15:00: gone from the PCI bus; "+
			"gpu 0000:16:00: gone from the PCI bus; gpu 0000:17:00: gone from the PCI bus", args...)
	}
	reboot(n)
	n.Want("exit 1\nReplace gpu 0000:10:00: gone from the PCI bus, also after a reboot; gpu 0000:11:00: gone from the PCI bus, also after a reboot; " +
		"gpu 0000:12:00: gone from the PCI bus, also after a reboot; gpu 0000:13:00: gone from the PCI bus, also after a reboot; " +
		"gpu 0000:14:00: gone from the PCI bus, also after a reboot; gpu 0000:15:00: gone from the PCI bus, also after a reboot; " +
		"gpu 0000:16:00: gone from the PCI bus, also after a reboot; +1 more")
}

// A vendor asks for them before a part is replaced. A GPU that does not tell them has no fault.
func TestADumpHasWhatAVendorAsksFor(t *testing.T) {
	n := nvmltest.New(t)
	n.Say("1.error.nvmlDeviceGetSerial 3", "1.error.nvmlDeviceGetVbiosVersion 999")
	n.Module("580.95.05")
	n.Want("exit 0\n" + healthy)
	var s snapshot
	dump := n.Run("-dump")
	_, text, _ := strings.Cut(dump, "{")
	if err := json.Unmarshal([]byte("{"+text), &s); err != nil || len(s.GPUs) != 8 || s.Module != "nvidia 580.95.05" {
		t.Fatalf("%v, driver %q\n%s", err, s.Module, dump)
	}
	for i, want := range []string{
		"1650521000000 GPU-5f0c3ab1-0000-4000-8000-000000000000 96.00.74.00.01", " GPU-5f0c3ab1-0000-4000-8000-000000000001 ",
		"1650521000002 GPU-5f0c3ab1-0000-4000-8000-000000000002 96.00.74.00.01",
	} {
		if g := s.GPUs[i]; g.Serial+" "+g.UUID+" "+g.VBIOS != want {
			t.Errorf("%s: %q %q %q, want %s", g.Subject(), g.Serial, g.UUID, g.VBIOS, want)
		}
	}
}

func TestBusDriverAndDeviceFilesDisagree(t *testing.T) {
	n := nvmltest.New(t)
	n.Want("exit 0\n"+healthy, "-dev", n.Path("dev"))

	n.Say("3.error 15")
	n.Want("exit 1\nReboot gpu 0000:13:00: GPU is lost")
	n.Say("3.hidden 1", "5.error.nvmlDeviceGetMinorNumber 999")
	n.Want("exit 1\nReboot gpu 0000:13:00: on the PCI bus but not in NVML; gpu 0000:15:00: not read: minor number: Unknown Error")
	n.Want("exit 2\nunknown: gpu 0000:15:00: minor number: Unknown Error, gpu 0000:13:00: on the PCI bus but not in NVML", "-grace", "8760h")
	n.Say("*.error 4")
	n.Want("exit 2\nunknown: gpu 0000:10:00, gpu 0000:11:00, gpu 0000:12:00, gpu 0000:13:00, gpu 0000:14:00, gpu 0000:15:00, " +
		"gpu 0000:16:00, gpu 0000:17:00: Unable to determine the device handle for GPU: Insufficient Permissions")
	n.Say("gpus 0")
	n.Want("exit 2\nunknown: gpu 0000:10:00, gpu 0000:11:00, gpu 0000:12:00, gpu 0000:13:00, gpu 0000:14:00, gpu 0000:15:00, "+
		"gpu 0000:16:00, gpu 0000:17:00: on the PCI bus but not in NVML, No devices were found", "-grace", "8760h")

	n.Say("2.persistence 0")
	n.Want("exit 0\n" + healthy)
	n.Want("exit 1\nMonitor gpu 0000:12:00: persistence mode is off", "-min-repair", "Monitor")

	n.Say()
	for _, file := range []string{"0", "1", "2", "3", "4", "6", "7", "ctl", "-uvm"} {
		n.Write("dev/nvidia"+file, "")
	}
	n.Want("exit 1\nInspect gpu 0000:15:00: has no /dev/nvidia5", "-dev", n.Path("dev"))

	n.Width(6, 8)
	n.Want("exit 1\nInspect gpu 0000:16:00: PCIe link is x8 of x16")
	n.Width(6, 63)
	n.Want("exit 0\n" + healthy)
}

// The usual face of a GPU that is off the bus, as in NVIDIA/dcgm-exporter issue 604 and NVIDIA/open-gpu-kernel-modules issue 387.
func TestAGPUWithoutAHandle(t *testing.T) {
	const unknown = "Unable to determine the device handle for GPU: Unknown Error"
	n := nvmltest.New(t)
	for name, test := range map[string]struct {
		say, want string
		args      []string
	}{
		"every call fails":     {"3.error 999", "exit 1\nReboot gpu 0000:13:00: " + unknown, nil},
		"only the handle does": {handle(3, "999"), "exit 1\nReboot gpu 0000:13:00: " + unknown, nil},
		"no index":             {"3.error.nvmlDeviceGetHandleByIndex_v2 999", "exit 0\n" + healthy, nil}, // asked twice
		"two of them, one lost": {"3.error 999\n5.error 999\n6.error 15",
			"exit 1\nReboot gpu 0000:13:00: " + unknown + "; gpu 0000:15:00: " + unknown + "; gpu 0000:16:00: GPU is lost", nil},
		"every question": {"3.error.nvmlDeviceGetName 999\n3.error.nvmlDeviceGetMinorNumber 999\n3.error.nvmlDeviceGetPersistenceMode 999",
			"exit 1\nReboot gpu 0000:13:00: every question is answered with Unknown Error", nil},
		"a young node": {"3.error 999", "exit 2\nunknown: gpu 0000:13:00: " + unknown, []string{"-grace", "8760h"}},
		"no power": {"3.error 8",
			"exit 1\nInspect gpu 0000:13:00: Unable to determine the device handle for GPU: Insufficient External Power, external power not connected", nil},
		"an interrupt issue": {"3.error 11",
			"exit 1\nInspect gpu 0000:13:00: Unable to determine the device handle for GPU: Interrupt Request Issue, the kernel has an interrupt issue with it", nil},
		"a young node without power": {handle(3, "8"),
			"exit 1\nInspect gpu 0000:13:00: Unable to determine the device handle for GPU: Insufficient External Power, external power not connected",
			[]string{"-grace", "8760h"}},
		"no permission":              {"3.error 4", "exit 2\nunknown: gpu 0000:13:00: Unable to determine the device handle for GPU: Insufficient Permissions", nil},
		"cgroup":                     {"3.error 17", "exit 2\nunknown: gpu 0000:13:00: Unable to determine the device handle for GPU: GPU access blocked by the operating system", nil},
		"an error of a later driver": {"3.error 98", "exit 2\nunknown: gpu 0000:13:00: Unable to determine the device handle for GPU: NVML error 98", nil},
	} {
		t.Run(name, func(t *testing.T) {
			n.Say(test.say)
			if got := n.Run(append(test.args, "-state-dir", n.Path(name))...); got != test.want+"\n" {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
		})
	}
	// It may be our own access that is at fault.
	n.Say("*.error 999")
	if got := n.Run(); !strings.HasPrefix(got, "exit 2\nunknown: gpu 0000:10:00, ") || !strings.HasSuffix(got, ", gpu 0000:17:00: "+unknown+"\n") {
		t.Error(got)
	}
	n.Say("3.error 999")
	n.Want("exit 1\nReboot gpu 0000:13:00: " + unknown)
	reboot(n)
	n.Want("exit 1\nReplace gpu 0000:13:00: " + unknown + ", also after a reboot")
	n.Say()
	n.Want("exit 0\n" + healthy)
	for gpu := range 7 {
		n.Unplug(gpu + 1)
	}
	n.Say("gpus 1", "0.error 999")
	n.Want("exit 1\nReboot gpu 0000:10:00: "+unknown, "-state-dir", n.Path("one GPU"))
}

func handle(gpu int, ret string) string {
	return fmt.Sprintf("%d.error.nvmlDeviceGetHandleByIndex_v2 %s\n%[1]d.error.nvmlDeviceGetHandleByPciBusId_v2 %[2]s", gpu, ret)
}

// What most people report: a library that an upgrade has replaced under the loaded module. No container with a GPU starts.
func TestVersionsOfLibraryAndModuleDiffer(t *testing.T) {
	n := nvmltest.New(t)
	const text = "Driver/library version mismatch (library 575.51.03, kernel module 580.95.05)"
	n.Say("init 18", "library 575.51.03")
	// For as long as the grace, and not only on a node that is up for so long: it may be an upgrade under way.
	n.Want("exit 2\nunknown: NVML: "+text, "-grace", "1h")
	n.Want("exit 1\nInspect driver: " + text + ": reboot or reload the driver")
	n.Module("570.12")
	n.Want("exit 2\nunknown: NVML: Driver/library version mismatch (library 575.51.03, kernel module 570.12)", "-grace", "1ms")
	n.Module("580.95.05")
	n.Say("init 18", "library 12.575.51")
	n.Want("exit 2\nunknown: NVML: Driver/library version mismatch (library 575.51, kernel module 580.95.05)", "-grace", "1ms")
	n.Say("init 18", "library 580.95.05") // the module was replaced after the library had looked at it
	n.Want("exit 2\nunknown: NVML: Driver/library version mismatch", "-grace", "1ms")
	n.Say()
	n.Want("exit 0\n"+healthy, "-grace", "1ms")
	// The faults that need no library are still told.
	n.Say("init 18", "library 575.51.03")
	n.Unplug(7)
	n.Want("exit 1\nReboot gpu 0000:17:00: gone from the PCI bus; driver: " + text + ": reboot or reload the driver")
	n.Want("exit 1\nReboot gpu 0000:17:00: gone from the PCI bus; NVML: not read: "+text, "-grace", "8760h")
	for gpu := range 7 {
		n.Plug(gpu, "vfio-pci")
	}
	n.Want("exit 0\nall NVIDIA GPUs are bound to vfio-pci", "-state-dir", n.Path("passed through"))
}

// The calls about one GPU hang, those about the others do not.
func TestOneGPUHangs(t *testing.T) {
	n := nvmltest.New(t)
	const others = "exit 1\nReboot gpu 0000:15:00: GPU is lost; gpu 0000:13:00: not read: the calls about it do not return"
	for _, function := range []string{"*", "nvmlDeviceGetName", "nvmlDeviceGetMinorNumber"} {
		n.Say("3.hang "+function, "5.error 15")
		n.Want(others, "-timeout", "4s")
	}
	// Its address gives a handle.
	n.Say("3.hang nvmlDeviceGetHandleByIndex_v2", "5.error 15")
	n.Want("exit 1\nReboot gpu 0000:15:00: GPU is lost", "-timeout", "4s")
	n.Say("3.hang nvmlDeviceGetMinorNumber")
	n.Want("exit 2\nunknown: gpu 0000:13:00: the calls about it do not return", "-timeout", "4s")
}

func TestAGPUGoesWhileTheNodeRuns(t *testing.T) {
	n := nvmltest.New(t)
	n.Want("exit 0\n"+healthy, "-expect", "8")
	n.Unplug(7)
	n.Say("7.hidden 1")
	// By its address, because it was seen in this boot; and once only.
	n.Want("exit 1\nReboot gpu 0000:17:00: gone from the PCI bus", "-expect", "8")
	n.Want("exit 1\nReboot gpu 0000:17:00: gone from the PCI bus", "-expect", "8", "-grace", "8760h")
}

// reboot makes what the plugin remembers that of an earlier boot.
func reboot(n *nvmltest.Node) {
	path := filepath.Join(n.State(), "gpucount.json")
	data, err := os.ReadFile(path)
	if err == nil {
		err = os.WriteFile(path, regexp.MustCompile(`"bootID":"[^"]*"`).ReplaceAll(data, []byte(`"bootID":"earlier"`)), 0o600)
	}
	if err != nil {
		panic(err)
	}
}

func TestAGPUIsStillMissingAfterTheReboot(t *testing.T) {
	n := nvmltest.New(t)
	n.Want("exit 0\n" + healthy)
	n.Unplug(7)
	n.Say("7.hidden 1", "3.hidden 1", "2.error 15")
	const sick = "exit 1\nReboot gpu 0000:12:00: GPU is lost; gpu 0000:13:00: on the PCI bus but not in NVML; gpu 0000:17:00: gone from the PCI bus"
	n.Want(sick)
	n.Want(sick)
	for range 2 {
		reboot(n)
		n.Want("exit 1\nReplace gpu 0000:12:00: GPU is lost, also after a reboot; "+
			"gpu 0000:13:00: not read: on the PCI bus but not in NVML; gpu 0000:17:00: not read: gone from the PCI bus", "-grace", "8760h", "-expect", "8")
		n.Want("exit 1\nReplace gpu 0000:12:00: GPU is lost, also after a reboot; "+
			"gpu 0000:13:00: on the PCI bus but not in NVML, also after a reboot; gpu 0000:17:00: gone from the PCI bus, also after a reboot", "-expect", "8")
	}
	// Without an answer of the driver nothing is known to be well.
	n.Say("init 9")
	n.Want("exit 1\nReplace gpu 0000:17:00: gone from the PCI bus, also after a reboot; NVML: not read: couldn't communicate with the NVIDIA driver")
	n.Say("3.error 15", "7.hidden 1")
	n.Want("exit 1\nReplace gpu 0000:13:00: GPU is lost, also after a reboot; gpu 0000:17:00: gone from the PCI bus, also after a reboot")
	// The one that was well for a look is lost anew.
	n.Say("2.error 15", "7.hidden 1")
	n.Want("exit 1\nReplace gpu 0000:17:00: gone from the PCI bus, also after a reboot; gpu 0000:12:00: GPU is lost")
	n.Say("7.hidden 1")
	n.Want("exit 0\ncleared gpu 0000:17:00", "-clear", "17:00")
	n.Want("exit 0\n" + healthy)
}

// The default state directory is on a tmpfs. The help of the flag says what a reboot costs there.
func TestAStateDirectoryThatARebootEmpties(t *testing.T) {
	n := nvmltest.New(t)
	n.Want("exit 0\n" + healthy)
	n.Unplug(7)
	n.Say("7.hidden 1")
	n.Want("exit 1\nReboot gpu 0000:17:00: gone from the PCI bus")
	if err := os.Remove(filepath.Join(n.State(), "gpucount.json")); err != nil {
		t.Fatal(err)
	}
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus", "-expect", "8")
	n.Want("exit 0\n" + healthy)
	binary, _ := n.Command()
	help, _ := exec.CommandContext(t.Context(), binary, "-h").CombinedOutput()
	_, help, _ = bytes.Cut(help, []byte("-state-dir"))
	for _, says := range []string{"tmpfs", "no answer is Replace", "-expect"} {
		if text, _, _ := strings.Cut(string(help), "\n  -"); !strings.Contains(text, says) {
			t.Errorf("the help of -state-dir does not say %q: %s", says, text)
		}
	}
}

func TestAGPUIsBackAfterTheReboot(t *testing.T) {
	for gpu, answers := range map[int][]string{7: nil, 9: {"gpus 10", "7.hidden 1", "8.hidden 1"}} {
		t.Run(fmt.Sprintf("at 0000:1%d:00", gpu), func(t *testing.T) {
			n := nvmltest.New(t)
			n.Want("exit 0\n" + healthy)
			n.Unplug(7)
			n.Say("7.hidden 1")
			n.Want("exit 1\nReboot gpu 0000:17:00: gone from the PCI bus")
			reboot(n)
			n.Plug(gpu, "nvidia")
			n.Say(answers...)
			n.Want("exit 0\n" + healthy)
			n.Unplug(gpu)
			n.Say("7.hidden 1")
			n.Want(fmt.Sprintf("exit 1\nReboot gpu 0000:1%d:00: gone from the PCI bus", gpu))
		})
	}
}

func TestExpectedCount(t *testing.T) {
	n := nvmltest.New(t)
	n.Unplug(7)
	n.Say("7.hidden 1")
	n.Want("exit 0\n" + healthy)
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus", "-expect", "8")
	n.Want("exit 2\nunknown: gpu count: 7 of 8 GPUs on the PCI bus", "-expect", "8", "-grace", "8760h")
	n.Want("exit 1\nInspect gpu count: 7 GPUs on the PCI bus, expected 4", "-expect", "4")
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus", "-instance-type", "p5.48xlarge")
	// A number that was asked for and is not known; what is found counts nevertheless.
	n.Want("exit 2\nunknown: gpu count: no row for instance type \"unknown.type\"", "-instance-type", "unknown.type")
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus", "-instance-type", "unknown.type", "-expect", "8")
	n.Write("sys/class/dmi/id/product_name", "p6-b200.48xlarge\n")
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus")

	imds := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Method == http.MethodPut && r.URL.Path == "/latest/api/token" && r.Header.Get("X-aws-ec2-metadata-token-ttl-seconds") != "":
			fmt.Fprint(w, "secret")
		case r.URL.Path == "/latest/meta-data/instance-type" && r.Header.Get("X-aws-ec2-metadata-token") == "secret":
			fmt.Fprint(w, "p4d.24xlarge")
		default:
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	defer imds.Close()
	n.Write("sys/class/dmi/id/sys_vendor", "Xen\n")
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus", "-imds", "127.0.0.1:1") // a name is asked for by nobody
	n.Write("sys/class/dmi/id/product_name", "HVM domU\n")
	n.Want("exit 1\nReboot gpu count: 7 of 8 GPUs on the PCI bus", "-imds", imds.Listener.Addr().String())
	n.Want("exit 0\n"+healthy, "-imds", "127.0.0.1:1")
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	n.Want("exit 0\n"+healthy, "-imds", silent.Addr().String())

	n.Write("profiles", "# ours\n\nshelf|7|2|true|\n")
	n.Want("exit 0\n"+healthy, "-profiles", n.Path("profiles"), "-instance-type", "shelf")
	n.Want("exit 2\nunknown: gpu count: no row for instance type \"HVM domU\"", "-profiles", n.Path("profiles"), "-imds", "127.0.0.1:1")
	n.Write("profiles", "shelf|many\n")
	n.Want("exit 2\nunknown: profile \"shelf|many\" has no number of GPUs", "-profiles", n.Path("profiles"))
}
