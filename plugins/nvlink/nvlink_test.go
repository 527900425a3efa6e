package main

import (
	"testing"

	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
)

const healthy = "all NVLinks are up"

func TestAbsent(t *testing.T) {
	nvmltest.Absent(nvmltest.New(t), healthy, "exit 2\nunknown: driver: the NVIDIA driver is not loaded")
}

func TestFindings(t *testing.T) {
	tests := map[string]struct {
		say, want string
		args      []string
	}{
		"one link down":       {"4.links 17", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17", nil},
		"three links down":    {"4.links 15", "exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 15, 16, 17", nil},
		"all links down":      {"4.links 0", "exit 1\nResetGPU gpu 0000:14:00: all NVLinks are inactive", nil},
		"no links at all":     {"*.links -999\nname NVIDIA L40S", "exit 0\n" + healthy, nil},
		"no bridge":           {"*.links 0\nname NVIDIA H100 PCIe", "exit 0\n" + healthy, nil},
		"fewer than its peer": {"4.links 6\n*.links 12\nname NVIDIA H100 PCIe", "exit 1\nResetGPU gpu 0000:14:00: 6 of 12 NVLinks are active", nil},
		"A100 with 12 of 18":  {"*.links 12\nname NVIDIA A100-SXM4-80GB", "exit 0\n" + healthy, nil},
		"by flag":             {"*.links 12\nname other", "exit 0\n" + healthy, []string{"-links", "12"}},
		"by flag, one short":  {"4.links 11\n*.links 12", "exit 1\nResetGPU gpu 0000:14:00: 11 of 12 NVLinks are active", []string{"-links", "12"}},
		"MIG":                 {"4.links 0\n4.mig 1", "exit 0\n" + healthy, nil},
		"fabric in progress":  {"4.fabric.state 2", "exit 1\nInspect gpu 0000:14:00: not registered with its fabric", nil},
		"fabric, within grace": {"4.fabric.state 2", "exit 2\nunknown: gpu 0000:14:00: not registered with its fabric",
			[]string{"-grace", "1000000h"}},
		"fabric failed":        {"4.fabric.status 999", "exit 1\nInspect gpu 0000:14:00: registration with its fabric failed with NVML error 999", nil},
		"fabric unhealthy":     {"4.fabric.health 2", "exit 1\nInspect gpu 0000:14:00: the driver calls its fabric unhealthy", nil},
		"fabric limited":       {"4.fabric.health 3", "exit 0\n" + healthy, nil},
		"no fabric":            {"*.fabric.state 0", "exit 0\n" + healthy, nil},
		"fabric not supported": {"*.fabric.state -999", "exit 0\n" + healthy, nil},
		"a lost GPU hides no other": {"6.error.nvmlDeviceGetNvLinkState 15\n4.links 17",
			"exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17; gpu 0000:16:00: not read: lost by the driver", nil},
		"lost":          {"6.error 15", "exit 2\nunknown: gpu 0000:16:00: lost by the driver", nil},
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

func TestGrowingErrorsAreWorthKnowing(t *testing.T) {
	n := nvmltest.New(t)
	const grow = "exit 1\nMonitor gpu 0000:14:00: NVLink errors grow"
	for architecture, name := range map[string]string{"9": "replays of Hopper", "10": "effective errors of Blackwell"} {
		args := []string{"-min-repair", "Monitor", "-state-dir", n.Path(name)}
		n.Say("*.architecture "+architecture, "4.link.errors 5")
		n.Want("exit 0\n"+healthy, args...)
		n.Want("exit 0\n"+healthy, args...)
		n.Say("*.architecture "+architecture, "4.link.errors 6")
		n.Want(grow, args...)
		n.Want("exit 0\n"+healthy, args...)
	}
}

func TestADriverBefore450(t *testing.T) {
	n := nvmltest.New(t)
	n.Before450()
	n.Want("exit 0\n" + healthy)
	// Their links count replays.
	n.Say("4.link.errors 6")
	n.Want("exit 1\nMonitor gpu 0000:14:00: NVLink errors grow", "-min-repair", "Monitor")
	n.Say("4.links 17")
	n.Want("exit 1\nResetGPU gpu 0000:14:00: inactive NVLink 17")
}
