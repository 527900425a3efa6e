package main_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/nvml/nvmltest"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// plugin makes a stand-in for the plugin dcgm, which notes its arguments and whether there is a maintenance.
func (n *node) plugin(line string, exit int) string {
	n.t.Helper()
	n.file("dcgm", fmt.Sprintf("#!/bin/sh\necho \"$@\" >%s\ncp %s %s\necho %q\nexit %d\n", n.path("dcgm-args"), n.path("state/maintenance"), n.path("seen"), line, exit))
	if err := os.Chmod(n.path("dcgm"), 0o755); err != nil {
		n.t.Fatal(err)
	}
	return n.path("dcgm")
}

func TestCheck(t *testing.T) {
	n := newNode(t)
	// Services that watch GPUs do not compute on them.
	check := func(more ...string) repairresult.Result {
		n.t.Helper()
		return n.run(append([]string{"check", "-devices", n.path("dev/nvidia-uvm"), "-level", "3", "-dcgm", n.path("dcgm")}, more...)...)
	}
	tests := map[string]struct {
		line string
		exit int
		kind repairresult.Kind
		want string
	}{
		"healthy":     {"the last diag found no fault", 0, repairresult.Healthy, "diagnostics of level 3: the last diag found no fault"},
		"problem":     {"Replace dcgm gpu 1: diag test memory failed", 1, repairresult.Problem, "Replace dcgm gpu 1: diag test memory failed"},
		"busy":        {"unknown: no diag: gpu 0000:15:00 is busy", 2, repairresult.Refused, "unknown: no diag: gpu 0000:15:00 is busy"},
		"no NVML":     {"unknown: no diag: NVML: couldn't communicate with the NVIDIA driver", 2, repairresult.Failed, "the diagnostic gave no result: no diag: NVML"},
		"no DCGM":     {"unknown: DCGM: libdcgm.so.4 not found", 2, repairresult.Failed, "the diagnostic gave no result: DCGM: libdcgm.so.4 not found"},
		"other exit":  {"?", 126, repairresult.Failed, "dcgm exited 126: ?"},
		"silent sick": {"", 1, repairresult.Failed, "dcgm exited 1:"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n.t, n.T = t, t
			n.plugin(test.line, test.exit)
			want(t, check("--", "-hostengine", "h:1"), test.kind, test.want)
			if args := n.read("dcgm-args"); !strings.Contains(args, "-run -level 3 -timeout 40m0s -state-dir "+n.path("state")) || !strings.HasSuffix(args, " -hostengine h:1") {
				t.Errorf("dcgm %s", args)
			}
			if !strings.Contains(n.read("seen"), "repair check") {
				t.Error("the plugin saw no maintenance")
			}
			n.untouched()
		})
	}
	n.t, n.T = t, t
	n.systemctl("start", trainer)
	n.waitFor(trainer, "active")
	n.remove("dcgm-args")
	want(t, check(), repairresult.Refused, "accelerators are held by pod ml/train-0", "pod ml/train-0 (sleep, pid 1)")
	n.systemctl("stop", trainer)
	n.give(&podresources.PodResources{Namespace: "ml", Name: "p", Containers: []*podresources.ContainerResources{{DynamicResources: []*podresources.DynamicResource{{}}}}})
	want(t, check(), repairresult.Refused, "accelerators are held by pod ml/p", "pod ml/p")
	if n.read("dcgm-args") != "" {
		t.Error("the plugin ran")
	}
	n.plugin("the last diag found no fault", 0)
	want(t, check("-allow-holders"), repairresult.Healthy, "no fault")
	if args := strings.Fields(n.read("dcgm-args")); !slices.Contains(args, "-force=true") {
		t.Errorf("dcgm %s", args)
	}
	n.give()
	check("-hostengine=10.0.0.1:5555", "-dcgm-root=/r", "-dcgm-libraries=/l", "-nvvs=/n", "-driver-root=/d")
	if args := n.read("dcgm-args"); !strings.HasSuffix(args, " -hostengine 10.0.0.1:5555 -dcgm-root /r -dcgm-libraries /l -nvvs /n -driver-root /d") {
		t.Errorf("dcgm %s", args)
	}
	want(t, check("-dcgm", n.path("none")), repairresult.Failed, "no such file or directory")
	want(t, check("-level", "5"), repairresult.Refused, `invalid value "5" for flag -level: not from 1 to 4`)
	want(t, check("true"), repairresult.Refused, `unexpected argument "true": only -command takes a command`)
	n.file("dcgm", "#!/bin/sh\nexec sleep infinity\n")
	want(t, check("-timeout", "1s"), repairresult.Failed, "dcgm -run gave no answer within 1s")
	want(t, check("-timeout", "0s"), repairresult.Refused, `invalid value "0s" for flag -timeout: not from 1s to 24h0m0s`)
	n.untouched()
}

func TestCommandOfTheAdmin(t *testing.T) {
	n := newNode(t)
	command := func(script string, more ...string) repairresult.Result {
		n.t.Helper()
		return n.run(append(append([]string{"check", "-devices", n.path("dev/nvidia-uvm")}, more...), "-command", "--", "sh", "-c", script)...)
	}
	want(t, command("echo first; echo 371.2 GB/s; echo"), repairresult.Healthy, "sh exited 0: 371.2 GB/s")
	want(t, command("yes too long | head -c 10000000; echo; echo; echo slow; exit 1"), repairresult.Problem, "sh exited 1: slow")
	want(t, command("exit 2"), repairresult.Failed, "sh exited 2")
	want(t, command("kill -9 $$"), repairresult.Failed, "sh -c: signal: killed")
	want(t, command("sleep infinity", "-timeout", "1s"), repairresult.Failed, "sh -c gave no answer within 1s")
	want(t, n.run("check", "-command"), repairresult.Refused, "-command needs a command after --")
	n.systemctl("start", trainer)
	n.waitFor(trainer, "active")
	want(t, command("true"), repairresult.Refused, "accelerators are held by pod ml/train-0", "pod ml/train-0 (sleep, pid 1)")
	want(t, command("true", "-allow-holders"), repairresult.Healthy, "sh exited 0")
	// A node without accelerators has nothing that could be held.
	n.file("none/bus/pci/devices/0000:00:00.0/vendor", "0x8086\n")
	want(t, command("true", "-sysfs", n.path("none")), repairresult.Healthy, "sh exited 0")
	// One whose accelerators are not known may have any.
	want(t, command("true", "-sysfs", n.path("no-sysfs")), repairresult.Refused, "the PCI bus: ")
	want(t, n.run("check", "-sysfs", n.path("none")), repairresult.Refused, "no GPU of NVIDIA or MetaX")
	n.systemctl("stop", trainer)
	// SIGTERM reaches the command, and the run ends.
	pipe := n.pipe("waits")
	script := "trap 'echo ended >" + n.path("ended") + "; exit 0' TERM; echo $PPID >" + n.path("ppid") + "; cat " + n.path("waits") + "; while :; do sleep 0.1; done"
	done := make(chan repairresult.Result)
	go func() { done <- command(script) }()
	pipe()()
	n.signal("TERM")
	want(t, <-done, repairresult.Failed, "sh -c was stopped: terminated signal received")
	if n.read("ended") != "ended" {
		t.Error("the command got no SIGTERM")
	}
	n.untouched()
}

// The stand-in above answers as the plugin does.
func TestCheckWithThePluginItself(t *testing.T) {
	gpus := nvmltest.NewFor(t, "../plugins/dcgm")
	n := &node{t: t, dir: t.TempDir(), binary: npdtest.Build(t)}
	n.serve(t, n.path("kubelet.sock"))
	plugin, _ := gpus.Command()
	check := func(sample string, exit int) repairresult.Result {
		t.Helper()
		out, err := filepath.Abs(filepath.Join("../plugins/dcgm/testdata", sample))
		if err != nil {
			t.Fatal(err)
		}
		n.file("dcgmi", fmt.Sprintf("#!/bin/sh\ncat %s\nexit %d\n", out, exit))
		if err := os.Chmod(n.path("dcgmi"), 0o755); err != nil {
			t.Fatal(err)
		}
		n.file("log", "")
		// With processes of its own: not all of this machine's may be read.
		return finish(t, exec.CommandContext(t.Context(), "unshare", "--pid", "--fork", "--mount-proc", "sh", "-c", `"$@"; exit $?`, "sh", n.binary, "check",
			"-sysfs", gpus.Path("sys"), "-state-dir", gpus.State(), "-pod-resources", n.path("kubelet.sock"), "-termination-log", n.path("log"), "-wait", "0s",
			"-dcgm", plugin, "--", "-driver-root", gpus.DriverRoot(), "-grace", "0", "-idle-for", "0", "-dcgmi", n.path("dcgmi")), n.path("log"))
	}
	want(t, check("dcgmi-4.x-r2-pass.json", 0), repairresult.Healthy, "diagnostics of level 2: the last diag found no fault")
	want(t, check("dcgmi-4.x-r2-fail.json", 226), repairresult.Problem, "Replace dcgm gpu 1: diag test memory failed, row remapping failed")
	// What the plugin in Node Problem Detector says from then on.
	gpus.Want("exit 1\nReplace dcgm gpu 1: diag test memory failed, row remapping failed: GPU 1 had row remap failures: 100/ of banks, see manual; " +
		"dcgm gpu 2: diag test memory failed, DCGM error 999: GPU 2 needs a reset.; " +
		"dcgm cpu 0: diag test memory failed, DCGM error 998: Of a severity to come.; dcgm gpu 3: diag test memory failed")
	want(t, check("SOURCES.txt", 203), repairresult.Failed, "the diagnostic gave no result: dcgmi exited 203")
	gpus.Say("5.processes 1")
	want(t, check("dcgmi-4.x-r2-pass.json", 0), repairresult.Refused, "unknown: no diag: gpu 0000:15:00 is busy")
}
