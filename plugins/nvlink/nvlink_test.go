package main

import (
	"fmt"
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

const healthy = "all NVLinks are up"

func TestAbsent(t *testing.T) {
	nvmltest.Absent(nvmltest.New(t), healthy, "exit 2\nunknown: driver: the NVIDIA driver is not loaded", "exit 0\nno NVIDIA GPU",
		[2]string{"exit 2\nunknown: NVML: "})
}

func TestFindings(t *testing.T) {
	tests := map[string]struct {
		say, want string
		args      []string
	}{
		"one link down":            {"4.links 17", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17", nil},
		"three links down":         {"4.links 15", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 15, 16, 17", nil},
		"all links down":           {"4.links 0", "exit 1\nResetGPU gpu 0000:14:00: all NVLinks are inactive", nil},
		"no links at all":          {"*.links -999\nname NVIDIA L40S", "exit 0\n" + healthy, nil},
		"no bridge":                {"*.links 0\nname NVIDIA H100 PCIe", "exit 0\n" + healthy, nil},
		"A100 PCIe, three bridges": {"*.links 12\nname NVIDIA A100 80GB PCIe", "exit 0\n" + healthy, nil},
		"H100 NVL, two cards of eight with bridges": {"*.links 0\n2.links 12\n3.links 12\nname NVIDIA H100 NVL", "exit 0\n" + healthy, nil},
		"A30, one bridge":                             {"*.links 4\nname NVIDIA A30", "exit 0\n" + healthy, nil},
		"H200 NVL, a bridge of four":                  {"*.links 18\nname NVIDIA H200 NVL", "exit 0\n" + healthy, nil},
		"A100 PCIe, no bridge":                        {"*.links 0\nname NVIDIA A100-PCIE-40GB", "exit 0\n" + healthy, nil},
		"A100 PCIe, a link of both ends of a bridge":  {"*.links 0\n2.links 11\n3.links 11\nname NVIDIA A100 80GB PCIe", "exit 1\nResetGPU gpu 0000:12:00: 11 of 12 NVLinks are active; gpu 0000:13:00: 11 of 12 NVLinks are active", nil},
		"H100 PCIe, one bridge of three is loose":     {"*.links 12\n2.links 8\n3.links 8\nname NVIDIA H100 PCIe", "exit 1\nResetGPU gpu 0000:12:00: 8 of 12 NVLinks are active; gpu 0000:13:00: 8 of 12 NVLinks are active", nil},
		"A100 PCIe without a bridge, but by flag not": {"*.links 12\n4.links 0\nname NVIDIA A100 80GB PCIe", "exit 1\nResetGPU gpu 0000:14:00: all NVLinks are inactive", []string{"-links", "12"}},
		"a model that is not known, all down":         {"*.links 18\n4.links 0\nname NVIDIA X", "exit 1\nResetGPU gpu 0000:14:00: all NVLinks are inactive", nil},
		"a link sleeps":                               {"4.links 17\n4.link17.state 2", "exit 0\n" + healthy, nil},
		"a link is down, by both questions":           {"4.links 17\n4.link17.state 0", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17", nil},
		"a link without traffic":                      {"4.links 17\n4.link17.state 3", "exit 1\nMonitor gpu 0000:14:00: NVLink 17 is active, but not usable for traffic", []string{"-min-repair", "Monitor"}},
		"a state to come":                             {"4.links 17\n4.link17.state 4", "exit 2\nunknown: gpu 0000:14:00: NVLink 17 has state 4, which is not known", nil},
		"fewer than its peer":                         {"4.links 6\n*.links 12\nname NVIDIA H100 PCIe", "exit 1\nResetGPU gpu 0000:14:00: 6 of 12 NVLinks are active", nil},
		"A100 with 12 of 18":                          {"*.links 12\nname NVIDIA A100-SXM4-80GB", "exit 0\n" + healthy, nil},
		"by flag":                                     {"*.links 12\nname other", "exit 0\n" + healthy, []string{"-links", "12"}},
		"by flag, one short":                          {"4.links 11\n*.links 12", "exit 1\nResetGPU gpu 0000:14:00: 11 of 12 NVLinks are active", []string{"-links", "12"}},
		"links turned off":                            {"*.links -999", "exit 0\n" + healthy, nil},
		"one turned off":                              {"4.link3.error 3", "exit 0\n" + healthy, nil},
		"one turned off, another down":                {"4.link3.error 3\n4.links 17", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17", nil},
		"a link down beside those the model lacks": {"4.links 11\n*.links 12\n*.link12.error 3\n*.link13.error 3\n*.link14.error 3\n*.link15.error 3\n*.link16.error 3\n" +
			"*.link17.error 3\nname NVIDIA A100-SXM4-80GB", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 11", nil},
		"turned off, but by flag not":         {"4.links -999", "exit 1\nResetGPU gpu 0000:14:00: all NVLinks are inactive", []string{"-links", "18"}},
		"one turned off, but by flag not":     {"4.link3.error 3", "exit 1\nResetGPU gpu 0000:14:00: 17 of 18 NVLinks are active", []string{"-links", "18"}},
		"links down by flag, MIG mode unread": {"4.links 0\n4.error.nvmlDeviceGetMigMode 999", "exit 2\nunknown: gpu 0000:14:00: MIG mode: Unknown Error", []string{"-links", "18"}},
		"none, by flag":                       {"*.links 0", "exit 0\n" + healthy, []string{"-links", "0"}},
		"none by flag, no fabric":             {"*.links 0\n4.fabric.status 999", "exit 1\nInspect gpu 0000:14:00: registration with its fabric failed with NVML error 999", []string{"-links", "0"}},
		"by model, by flag":                   {"4.links 17", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17", []string{"-links", "-1"}},
		"not in NVML":                         {"4.hidden 1", "exit 2\nunknown: gpu 0000:14:00: on the PCI bus but not in NVML", nil},
		"no handle, another down": {"4.error 999\n6.links 17", "exit 1\nResetGPU gpu 0000:16:00: inactive NVLink 17; " +
			"gpu 0000:14:00: not read: Unable to determine the device handle for GPU: Unknown Error", nil},
		"one hangs, another down": {"4.hang nvmlDeviceGetNvLinkState\n6.links 17",
			"exit 1\nResetGPU gpu 0000:16:00: inactive NVLink 17; gpu 0000:14:00: not read: the calls about it do not return", nil},
		"not in NVML, another down": {"4.hidden 1\n6.links 17",
			"exit 1\nResetGPU gpu 0000:16:00: inactive NVLink 17; gpu 0000:14:00: not read: on the PCI bus but not in NVML", nil},
		"a link down, another unread": {"4.links 17\n4.link3.error 999",
			"exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17; gpu 0000:14:00: not read: NVLink state: Unknown Error", nil},
		"a link unread": {"4.link3.error 999", "exit 2\nunknown: gpu 0000:14:00: NVLink state: Unknown Error", nil},
		"a link down, the fabric unread": {"4.links 17\n4.error.nvmlDeviceGetGpuFabricInfoV 999",
			"exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17; gpu 0000:14:00: not read: fabric: Unknown Error", nil},
		// It may be a GPU in MIG mode, and a GPU of another model.
		"links down, MIG mode unread": {"4.links 0\n4.error.nvmlDeviceGetMigMode 999", "exit 2\nunknown: gpu 0000:14:00: MIG mode: Unknown Error", nil},
		"links down, names unread": {"4.links 6\n4.error.nvmlDeviceGetName 999\n6.error.nvmlDeviceGetName 999",
			"exit 2\nunknown: gpu 0000:14:00, gpu 0000:16:00: name: Unknown Error", nil},
		"links down while the fabric registers": {"4.links 0\n4.fabric.state 2",
			"exit 1\nInspect gpu 0000:14:00: not registered with its fabric", nil},
		"links down while the fabric registers, within grace": {"4.links 0\n4.fabric.state 2",
			"exit 2\nunknown: gpu 0000:14:00: all NVLinks are inactive, gpu 0000:14:00: not registered with its fabric", []string{"-grace", "8760h"}},
		"a link down within grace": {"4.links 17", "exit 2\nunknown: gpu 0000:14:00: inactive NVLink 17", []string{"-grace", "8760h"}},
		"MIG":                      {"4.links 0\n4.mig 1", "exit 0\n" + healthy, nil},
		"fabric in progress":       {"4.fabric.state 2", "exit 1\nInspect gpu 0000:14:00: not registered with its fabric", nil},
		"fabric, within grace": {"4.fabric.state 2", "exit 2\nunknown: gpu 0000:14:00: not registered with its fabric",
			[]string{"-grace", "8760h"}},
		"fabric failed":        {"4.fabric.status 999", "exit 1\nInspect gpu 0000:14:00: registration with its fabric failed with NVML error 999", nil},
		"fabric unhealthy":     {"4.fabric.health 2", "exit 1\nInspect gpu 0000:14:00: the driver calls its fabric unhealthy", nil},
		"fabric limited":       {"4.fabric.health 3", "exit 0\n" + healthy, nil},
		"no fabric":            {"*.fabric.state 0", "exit 0\n" + healthy, nil},
		"fabric not supported": {"*.fabric.state -999", "exit 0\n" + healthy, nil},
		"a lost GPU hides no other": {"6.error.nvmlDeviceGetNvLinkState 15\n4.links 17",
			"exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17; gpu 0000:16:00: not read: GPU is lost", nil},
		"lost":          {"6.error 15", "exit 2\nunknown: gpu 0000:16:00: GPU is lost", nil},
		"needs a reset": {"6.error 16", "exit 2\nunknown: gpu 0000:16:00: requires a reset", nil},
		"a query fails": {"6.error.nvmlDeviceGetNvLinkState 999", "exit 2\nunknown: gpu 0000:16:00: NVLink state: Unknown Error", nil},
	}
	n := nvmltest.New(t)
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n.Say(test.say)
			if got := n.Run(append(test.args, "-state-dir", n.Path(name))...); got != test.want+"\n" {
				t.Errorf("got\n%swant\n%s", got, test.want)
			}
		})
	}
}

// The links of a GPU that was passed on without its peers lead to nothing. One of several does not come up by itself.
func TestAGuestWithOneGPU(t *testing.T) {
	n := nvmltest.New(t)
	for gpu := 2; gpu < 8; gpu++ {
		n.Unplug(gpu)
	}
	n.Say("gpus 2", "*.links 0", "name NVIDIA H100 80GB HBM3")
	n.Want("exit 1\nResetGPU gpu 0000:10:00: all NVLinks are inactive; gpu 0000:11:00: all NVLinks are inactive")
	n.Unplug(1)
	for _, model := range []string{"NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-40GB", "NVIDIA B200", "NVIDIA GH200 480GB"} {
		n.Say("gpus 1", "*.links 0", "name "+model)
		n.Want("exit 0\n" + healthy)
		n.Want("exit 1\nResetGPU gpu 0000:10:00: all NVLinks are inactive", "-links", "18")
	}
	n.Say("gpus 1", "*.links 17", "name NVIDIA H100 80GB HBM3")
	n.Want("exit 1\nResetGPU gpu 0000:10:00: inactive NVLink 17")
}

// The masks that a healthy fabric has come first: 0xaa is what nvidia-smi prints as False for all four questions.
func TestTheHealthMaskOfTheFabric(t *testing.T) {
	n := nvmltest.New(t)
	for mask, want := range map[int]string{
		0xaa: "", 0: "", 0x1aa: "", 0x0a: "", 0xff: "",
		0xa9: "less bandwidth", 0xa6: "routes that recover", 0x9a: "unhealthy routes", 0x6a: "access timeouts", 0x2aa: "a wrong configuration",
		0x655: "less bandwidth, routes that recover, unhealthy routes, access timeouts, a wrong configuration",
	} {
		n.Say(fmt.Sprintf("4.fabric.mask %d", mask))
		n.Want("exit 0\n" + healthy)
		if want != "" {
			want = "exit 1\nMonitor gpu 0000:14:00: its fabric has " + want
		} else {
			want = "exit 0\n" + healthy
		}
		n.Want(want, "-min-repair", "Monitor")
	}
	// A fabric that is not registered has no health yet.
	n.Say("4.fabric.mask 169", "4.fabric.state 2")
	n.Want("exit 1\nInspect gpu 0000:14:00: not registered with its fabric", "-min-repair", "Monitor")
}

func TestGrowingErrorsAreWorthKnowing(t *testing.T) {
	n := nvmltest.New(t)
	const grow = "exit 1\nMonitor gpu 0000:14:00: NVLink errors grow"
	for architecture, name := range map[string]string{"9": "replays of Hopper", "10": "effective errors of Blackwell"} {
		args := []string{"-min-repair", "Monitor", "-every", "1ms", "-state-dir", n.Path(name)}
		n.Say("*.architecture "+architecture, "4.link.errors 5")
		n.Want("exit 0\n"+healthy, args...)
		n.Want("exit 0\n"+healthy, args...)
		n.Say("*.architecture "+architecture, "4.link.errors 6")
		n.Want(grow, args...)
		n.Want(grow, append(args, "-every", "1h")...) // the look of the run that follows the answer
		n.Want("exit 0\n"+healthy, args...)
	}
}

func TestADriverBefore450(t *testing.T) {
	n := nvmltest.New(t)
	n.Before450()
	n.Want("exit 0\n"+healthy, "-min-repair", "Monitor", "-every", "1ms")
	n.Want("exit 0\n" + healthy) // does not ask for the counters, and does not forget them
	// Their links count replays.
	n.Say("4.link.errors 6")
	n.Want("exit 1\nMonitor gpu 0000:14:00: NVLink errors grow", "-min-repair", "Monitor", "-every", "1ms")
	n.Say("4.links 17")
	n.Want("exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17")
}
