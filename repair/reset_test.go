package main_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/maintenance"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/internal/systemd/systemdtest"
)

// The GPUs of the node, as messages and as nvidia-smi name them.
const (
	gpu0, gpu1   = "0000:4e:00", "0000:5f:00"
	long0, long1 = "00000000:4E:00.0", "00000000:5F:00.0"
)

// node is a node with a real systemd and its own process tree, two GPUs of NVIDIA, a stand-in for nvidia-smi, and the pod resources
// socket of a kubelet.
type node struct {
	*systemdtest.Node
	t      *testing.T
	binary string
	// dir has the devices and what the stand-in obeys.
	dir string
	kubelet
}

// kubelet answers which pods have which devices.
type kubelet struct {
	pods atomic.Pointer[podresources.ListPodResourcesResponse]
	podresources.UnimplementedPodResourcesListerServer
}

func (k *kubelet) List(context.Context, *podresources.ListPodResourcesRequest) (*podresources.ListPodResourcesResponse, error) {
	return k.pods.Load(), nil
}

// give has pods hold what the kubelet's device plugins and DRA drivers manage.
func (k *kubelet) give(pods ...*podresources.PodResources) {
	k.pods.Store(&podresources.ListPodResourcesResponse{PodResources: pods})
}

// The services of the node. Those of trainer.service look like the processes of a pod.
const (
	dcgm, persistenced, other, trainer = "nvidia-dcgm.service", "nvidia-persistenced.service", "other.service", "trainer.service"
	// fabric is the driver's program in a pod.
	fabric = "fabric.service"
	// lasting has a process that its end does not end.
	lasting = "lasting.service"

	podUID   = "12345678-1234-1234-1234-123456789012"
	podSlice = "kubepods-besteffort-pod12345678_1234_1234_1234_123456789012.slice"
)

// newNode starts a node on which dcgm and persistenced run and hold devices. More services may be started.
func newNode(t *testing.T) *node {
	t.Parallel()
	n := &node{t: t, binary: npdtest.Build(t), dir: t.TempDir()}
	n.give()
	for _, device := range []string{"nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"} {
		n.file("dev/"+device, "")
	}
	holds := func(device string) string {
		return "[Service]\nExecStart=/bin/sh -c 'rm " + n.path("fail-"+device) + " 2>/dev/null && exit 1; exec sleep infinity 3<>" + n.path("dev/"+device) + "'\n"
	}
	n.Node = systemdtest.New(t, map[string]string{
		dcgm:         holds("nvidia0") + "ExecStop=/bin/sh -c '! test -e " + n.path("stop-kill") + " || kill -9 $(cat " + n.path("ppid") + ")'\n",
		persistenced: holds("nvidiactl"), other: holds("nvidia1"), trainer: holds("nvidia-uvm") + "Slice=" + podSlice + "\n",
		fabric: "[Service]\nExecStart=/bin/sh -c 'cp /bin/sleep " + n.path("nv-fabricmanager") + "; exec 3<>" + n.path("dev/nvidia0") +
			"; " + n.path("nv-fabricmanager") + " infinity & until grep -q nv-fabric /proc/$$!/comm; do :; done; echo yes >" + n.path("fabric-runs") +
			"; exec 3>&-; wait'\nSlice=" + podSlice + "\n",
		// It becomes sleep itself after the other, because waitFor sees only the main process.
		lasting: "[Service]\nKillMode=process\nExecStart=/bin/sh -c 'sleep infinity 3<>" + n.path("dev/nvidia1") +
			" & until [ \"$(cat /proc/$$!/comm)\" = sleep ]; do :; done; exec sleep infinity'\n",
	}, dcgm, persistenced)
	for _, g := range []string{gpu0, gpu1} {
		n.file("sys/bus/pci/devices/"+g+".0/vendor", "0x10de\n")
		n.file("sys/bus/pci/devices/"+g+".0/class", "0x030200\n")
	}
	n.file("pm-"+long0, "Enabled\n")
	n.file("pm-"+long1, "Enabled\n")
	n.file("pods/ml_train-0_"+podUID+"/log", "")
	n.serve(t, n.path("kubelet.sock"))
	n.waitFor(dcgm, "active")
	n.waitFor(persistenced, "active")
	return n
}

// serve serves the kubelet's socket at a path.
func (k *kubelet) serve(t *testing.T, path string) {
	t.Helper()
	// A Unix socket's path is short.
	dir, err := os.MkdirTemp("", "kubelet")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	podresources.RegisterPodResourcesListerServer(server, k)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() {
		server.Stop()
		os.RemoveAll(dir)
	})
	if err := os.Symlink(listener.Addr().String(), path); err != nil {
		t.Fatal(err)
	}
}

func (n *node) path(name string) string { return filepath.Join(n.dir, name) }

func (n *node) file(name, content string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(n.path(name)), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(n.path(name), []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) remove(name string) {
	n.t.Helper()
	if err := os.Remove(n.path(name)); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) read(name string) string {
	n.t.Helper()
	data, err := os.ReadFile(n.path(name))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		n.t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// systemctl runs it on the node.
func (n *node) systemctl(args ...string) string {
	n.t.Helper()
	// A service that does not run is no error here.
	out, _ := exec.CommandContext(n.t.Context(), "nsenter", n.Enter("systemctl", args...)...).CombinedOutput()
	return strings.TrimSpace(string(out))
}

func (n *node) waitFor(unit, state string) {
	n.t.Helper()
	n.Wait(unit+" "+state, func() bool { return n.systemctl("is-active", unit) == state })
	if state != "active" {
		return
	}
	// systemd calls a service active before it runs its program.
	n.Wait("the program of "+unit, func() bool {
		pid := n.systemctl("show", "--property=MainPID", "--value", unit)
		out, err := exec.CommandContext(n.t.Context(), "nsenter", n.Enter("cat", "/proc/"+pid+"/comm")...).Output()
		return err == nil && strings.TrimSpace(string(out)) == "sleep"
	})
}

// command returns a run of the program on the node.
func (n *node) command(args ...string) *exec.Cmd {
	n.t.Helper()
	smi, err := filepath.Abs("testdata/nvidia-smi")
	if err != nil {
		n.t.Fatal(err)
	}
	all := []string{args[0], "-devices", n.path("dev/nvidia"), "-pod-resources", n.path("kubelet.sock"), "-pod-logs", n.path("pods"),
		"-termination-log", n.path("log")}
	switch args[0] {
	case "reset-gpu":
		all = append(all, "-tool", smi, "-state-dir", n.path("state"), "-sysfs", n.path("sys"), "-wait", "0s")
	case "check":
		all = append(all, "-state-dir", n.path("state"), "-sysfs", n.path("sys"), "-wait", "0s")
	case "reboot":
		all = append(all, "-wait-idle", "0s")
	}
	n.file("log", "")
	cmd := exec.CommandContext(n.t.Context(), "nsenter", n.Enter(n.binary, append(all, args[1:]...)...)...)
	cmd.Env = append(os.Environ(), "STANDIN="+n.dir, "PATH="+filepath.Dir(smi)+":"+os.Getenv("PATH"))
	return cmd
}

// run runs the program to its end.
func (n *node) run(args ...string) repairresult.Result {
	n.t.Helper()
	return finish(n.t, n.command(args...), n.path("log"))
}

// finish waits for a run and compares its exit code, its last line on stdout and its termination message.
func finish(t *testing.T, cmd *exec.Cmd, log string) repairresult.Result {
	t.Helper()
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return parse(t, string(out), cmd.ProcessState.ExitCode(), log, stderr.String())
}

func parse(t *testing.T, out string, code int, log, stderr string) repairresult.Result {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(out), "\n")
	r, err := repairresult.Parse(lines[len(lines)-1])
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr)
	}
	message, err := os.ReadFile(log)
	if err != nil || strings.TrimSpace(string(message)) != lines[len(lines)-1] {
		t.Errorf("the termination message is %q, %v, stdout %q", message, err, out)
	}
	id, err := boot.ID("/proc")
	if err != nil || r.BootID != id || code != r.Result.ExitCode() {
		t.Errorf("%v, exit %d, boot %s of %+v\n%s", err, code, id, r, stderr)
	}
	t.Logf("%+v\n%s", r, stderr)
	r.BootID = ""
	return r
}

// want compares a result; the message must contain the text, and holders are compared by what they are called.
func want(t *testing.T, got repairresult.Result, kind repairresult.Kind, message string, holders ...string) {
	t.Helper()
	var names []string
	for _, h := range got.Holders {
		h.PID = min(h.PID, 1)
		names = append(names, h.String())
	}
	slices.Sort(names)
	if got.Result != kind || !strings.Contains(got.Message, message) || !cmp.Equal(names, holders) {
		t.Errorf("got %s, %q, holders %q, want %s, %q, %q", got.Result, got.Message, names, kind, message, holders)
	}
}

// untouched checks that the services run, persistence is on and nothing is left in the state directory but the lock.
func (n *node) untouched() {
	n.t.Helper()
	n.waitFor(dcgm, "active")
	n.waitFor(persistenced, "active")
	if pm0, pm1 := n.read("pm-"+long0), n.read("pm-"+long1); pm0 != "Enabled" || pm1 != "Enabled" {
		n.t.Errorf("persistence mode %s, %s", pm0, pm1)
	}
	left, err := os.ReadDir(n.path("state"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, file := range left {
		if file.Name() != "repair.lock" {
			n.t.Errorf("left behind: %s", file.Name())
		}
	}
}

// calls returns the arguments that nvidia-smi was called with, and forgets them.
func (n *node) calls() []string {
	n.t.Helper()
	calls := strings.Split(n.read("calls"), "\n")
	n.file("calls", "")
	return calls
}

func TestReset(t *testing.T) {
	n := newNode(t)
	pipe := n.pipe("reset-wait")
	done := make(chan repairresult.Result)
	go func() { done <- n.run("reset-gpu", "-gpu", "00000000:4E:00.0") }()
	release := pipe()
	// In the middle of the reset.
	if active, err := maintenance.Active("/proc", n.path("state")); err != nil || !active {
		t.Errorf("no maintenance: %v", err)
	}
	for _, unit := range []string{dcgm, persistenced} {
		if got := n.systemctl("is-active", unit); got != "inactive" {
			t.Errorf("%s is %s", unit, got)
		}
	}
	// A second run at the same time.
	second := n.run2("reset-gpu", "-gpu", gpu0)
	want(t, second, repairresult.Refused, "another run of this program works on the node")
	release()
	got := <-done
	want(t, got, repairresult.Done, "reset 0000:4e:00")
	if !slices.Equal(got.GPUs, []string{gpu0}) || !slices.Equal(got.Stopped, []string{dcgm, persistenced}) {
		t.Errorf("got %+v", got)
	}
	n.untouched()
	query := "--query-gpu=persistence_mode --format=csv,noheader -i " + long0
	wantCalls := []string{
		query, "-pm 0 -i " + long0, "--gpu-reset -i " + long0, "--query-gpu=pci.bus_id --format=csv,noheader -i " + long0, query, "-pm 1 -i " + long0,
	}
	if diff := cmp.Diff(wantCalls, n.calls()); diff != "" {
		t.Error(diff)
	}
}

// run2 is run beside another one.
func (n *node) run2(args ...string) repairresult.Result {
	n.t.Helper()
	cmd := n.command(args...)
	cmd.Args = append(cmd.Args, "-termination-log", n.path("log2"))
	n.file("log2", "")
	return finish(n.t, cmd, n.path("log2"))
}

// pipe makes the pipe that a step of the stand-in reads from. The first function waits until it does, the second lets it go on.
func (n *node) pipe(name string) func() (release func()) {
	n.t.Helper()
	if err := syscall.Mkfifo(n.path(name), 0o600); err != nil {
		n.t.Fatal(err)
	}
	return func() func() {
		f, err := os.OpenFile(n.path(name), os.O_WRONLY, 0)
		if err != nil {
			n.t.Fatal(err)
		}
		n.remove(name)
		return func() { f.Close() }
	}
}

func TestAllGPUsOnlyIfAsked(t *testing.T) {
	n := newNode(t)
	want(t, n.run("reset-gpu", "-gpu="), repairresult.Refused, "only -all resets all")
	want(t, n.run("reset-gpu"), repairresult.Refused, "only -all resets all")
	got := n.run("reset-gpu", "-gpu=", "-all")
	want(t, got, repairresult.Done, "reset 0000:4e:00, 0000:5f:00")
	if calls := n.calls(); !slices.Contains(calls, "--gpu-reset -i "+long0+","+long1) {
		t.Errorf("calls %q", calls)
	}
	n.untouched()
}

// systemd may fail to start a service that has just stopped: its control group is still being removed.
func TestAServiceThatFailsAtOnceIsStartedAgain(t *testing.T) {
	n := newNode(t)
	n.file("fail-nvidia0", "")
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Done, "reset 0000:4e:00")
	if _, err := os.Stat(n.path("fail-nvidia0")); err == nil {
		t.Error("the service has not failed")
	}
	n.untouched()
}

func TestRefusesWhileGPUsAreHeld(t *testing.T) {
	n := newNode(t)
	// By the process of a pod, which the kubelet does not know of any more.
	n.systemctl("start", trainer)
	n.waitFor(trainer, "active")
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "accelerators are held by pod ml/train-0 (sleep, pid ", "pod ml/train-0 (sleep, pid 1)")
	if err := os.RemoveAll(n.path("pods")); err != nil {
		t.Fatal(err)
	}
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "held by pod uid "+podUID, "pod uid "+podUID+" (sleep, pid 1)")
	n.file("pods/ml_train-0_"+podUID+"/log", "")
	// Also by one that the kubelet knows, and by another that has no process yet.
	devices := []*podresources.ContainerResources{{Devices: []*podresources.ContainerDevices{{ResourceName: "nvidia.com/gpu"}}}}
	last := &podresources.PodResources{Namespace: "ml", Name: "train-1", Containers: devices}
	n.give(&podresources.PodResources{Namespace: "ml", Name: "train-0", Containers: devices}, last)
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "), pod ml/train-1", "pod ml/train-0 (sleep, pid 1)", "pod ml/train-1")
	n.systemctl("stop", trainer)
	n.give(last)
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "accelerators are held by pod ml/train-1", "pod ml/train-1")
	// By a service that is none of those that are stopped.
	n.give()
	n.systemctl("start", other)
	n.waitFor(other, "active")
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "accelerators are held by sleep, pid ", "sleep, pid 1")
	if calls := n.calls(); !slices.Equal(calls, []string{""}) {
		t.Errorf("nvidia-smi was called: %q", calls)
	}
	n.untouched()
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-clients", dcgm+","+persistenced+","+other), repairresult.Done, "reset")
	n.waitFor(other, "active")
	n.untouched()
	// By a process that is left of a service that was stopped.
	n.systemctl("start", lasting)
	n.waitFor(lasting, "active")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-clients", dcgm+","+persistenced+","+other+","+lasting), repairresult.Refused, "held by sleep, pid ", "sleep, pid 1")
	n.waitFor(lasting, "active")
	n.untouched()
	// By programs that may.
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-clients=", "-tolerate", "sleep"), repairresult.Done, "reset")
	n.untouched()
}

// A process of a pod may not hold a GPU, whatever it is called, unless the pod is the driver's.
func TestTheNameOfAProcessOfAPodSaysNothing(t *testing.T) {
	n := newNode(t)
	n.systemctl("start", trainer)
	n.waitFor(trainer, "active")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-tolerate", "sleep"), repairresult.Refused, "held by pod ml/train-0", "pod ml/train-0 (sleep, pid 1)")
	n.systemctl("stop", trainer)
	n.waitFor(trainer, "inactive")
	n.systemctl("start", fabric)
	n.Wait("the program of "+fabric, func() bool { return n.read("fabric-runs") != "" })
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "held by pod ml/train-0", "pod ml/train-0 (nv-fabricmanage, pid 1)")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-driver-namespaces", "ml"), repairresult.Done, "reset")
	n.untouched()
}

func TestADryRunChangesNothing(t *testing.T) {
	n := newNode(t)
	smi, err := filepath.Abs("testdata/nvidia-smi")
	if err != nil {
		t.Fatal(err)
	}
	want(t, n.run("reset-gpu", "-all", "-dry-run"), repairresult.Refused, `dry run, nothing was changed: no process holds a device; a reset would stop `+
		`what runs of ["dcgm-exporter.service" "nvidia-dcgm-exporter.service" "`+dcgm+`" "nv-hostengine.service" "`+persistenced+`"], `+
		`turn persistence mode off where it is on, which is ["0000:4e:00" "0000:5f:00"], reset 0000:4e:00, 0000:5f:00 with `+smi+`, and undo the rest`)
	n.systemctl("start", other)
	n.waitFor(other, "active")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-dry-run"), repairresult.Refused,
		"dry run, nothing was changed: accelerators are held by sleep, pid ", "sleep, pid 1")
	if left, err := os.ReadDir(n.path("state")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v, %v", left, err)
	}
	for _, call := range n.calls() {
		if !strings.HasPrefix(call, "--query-gpu=persistence_mode ") {
			t.Errorf("nvidia-smi was called with %s", call)
		}
	}
	n.systemctl("stop", other)
	for _, unit := range []string{dcgm, persistenced} {
		n.waitFor(unit, "active")
	}
}

func TestWaitsForHoldersToEnd(t *testing.T) {
	n := newNode(t)
	n.systemctl("start", trainer)
	n.waitFor(trainer, "active")
	done := make(chan repairresult.Result)
	go func() { done <- n.run("reset-gpu", "-gpu", gpu0, "-wait", "1m") }()
	n.Wait("the mark of the maintenance", func() bool { return n.read("state/maintenance") != "" })
	n.systemctl("stop", trainer)
	want(t, <-done, repairresult.Done, "reset")
}

func TestWhatIsNotKnownIsRefused(t *testing.T) {
	n := newNode(t)
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-pod-resources", n.path("none")), repairresult.Refused, "which pods hold a device is not known: dial unix")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-tool", "/nowhere/nvidia-smi"), repairresult.Refused, "there is no /nowhere/nvidia-smi below /host/run/nvidia/driver and /host, and none")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-tool", "", "-root", n.dir), repairresult.Refused, "there is no nvidia-smi below "+n.dir)
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-sysfs", n.path("none")), repairresult.Refused, "the PCI bus: ")
	want(t, n.run("reset-gpu", "-gpu", "4e:00"), repairresult.Refused, `"4e:00" is not a PCI address such as 0000:4e:00`)
	want(t, n.run("reset-gpu", "-gpu", gpu0, "more"), repairresult.Refused, `unexpected argument "more"`)
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-vendor", "amd"), repairresult.Refused, `-vendor "amd" is none of`)
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-devices="), repairresult.Refused, "-devices is empty")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-devices", "0"), repairresult.Refused, `"0" is not an absolute path`)
	n.untouched()
	// In a PID namespace of its own.
	cmd := n.command("reset-gpu", "-gpu", gpu0)
	cmd.Args = slices.Insert(cmd.Args, slices.Index(cmd.Args, n.binary), "unshare", "--pid", "--fork", "--mount-proc")
	want(t, finish(t, cmd, n.path("log")), repairresult.Refused, "the pod needs hostPID: true")
	// A GPU that is gone does not come back by a reset; a heavier action may help.
	want(t, n.run("reset-gpu", "-gpu", "0000:aa:00"), repairresult.Failed, "GPU 0000:aa:00 is not on the PCI bus")
	n.untouched()
}

func TestTheToolDoesNotReset(t *testing.T) {
	n := newNode(t)
	tests := map[string]struct {
		print, exit string
		kind        repairresult.Kind
		want        string
	}{
		"not supported": {"The following GPUs could not be reset:\n  GPU 00000000:4E:00.0: Not Supported\n", "3", repairresult.Failed, "Not Supported (not available on this device)"},
		"lost":          {"Unable to determine the device handle for GPU0000:4E:00.0: GPU is lost.", "15", repairresult.Failed, "exited 15: Unable to determine the device handle for GPU0000:4E:00.0: GPU is lost. (the GPU is lost from the bus"},
		"no driver":     {"NVIDIA-SMI has failed", "9", repairresult.Failed, "the driver is not loaded"},
		"unknown code":  {"?", "77", repairresult.Failed, "nvidia-smi --gpu-reset exited 77: ?"},
		"in use":        {"The following GPUs could not be reset:\n  GPU 00000000:4E:00.0: In use by another client\n", "255", repairresult.Refused, "In use by another client"},
		"endless":       {strings.Repeat("x\x00\x1b", 1<<20), "1", repairresult.Failed, "nvidia-smi --gpu-reset exited 1: "},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			n.t, n.T = t, t
			n.file("reset-print", test.print)
			n.file("reset-exit", test.exit)
			want(t, n.run("reset-gpu", "-gpu", gpu0), test.kind, test.want)
			n.remove("reset-print")
			n.untouched()
		})
	}
	n.t, n.T = t, t
	n.file("silent", "")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-verify", "1s"), repairresult.Failed, "nvidia-smi has reset the GPU 0000:4e:00, which does not answer: nvidia-smi --query-gpu=pci.bus_id exited 255: Unable to determine")
	n.remove("silent")
	n.file("verify-print", "No devices were found")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-verify", "1s"), repairresult.Failed, `which does not answer: nvidia-smi --query-gpu answered "No devices were found"`)
	n.untouched()
}

func TestAPersistenceModeThatIsNotKnownIsLeftAlone(t *testing.T) {
	n := newNode(t)
	n.file("pm-"+long0, "Disabled\n")
	n.file("query-print", "[Unknown Error]\n")
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Done, "reset")
	if calls := n.calls(); slices.Contains(calls, "-pm 0 -i "+long0) || slices.Contains(calls, "-pm 1 -i "+long0) {
		t.Errorf("calls %q", calls)
	}
}

func TestAToolThatHangs(t *testing.T) {
	// Before the node, which has the mounts of this moment.
	mount := npdtest.Freeze(t)
	n := newNode(t)
	n.file("reset-hang", "")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-reset-timeout", "1s"), repairresult.Failed, "nvidia-smi --gpu-reset gave no answer within 1s")
	n.remove("reset-hang")
	n.untouched()
	// In the kernel: it cannot be killed.
	n.file("reset-freeze", filepath.Join(mount.Dir, "file"))
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-reset-timeout", "1s"), repairresult.Failed, "nvidia-smi --gpu-reset hangs in the driver and cannot be killed")
	n.untouched()
	mount.Thaw()
	n.remove("reset-freeze")
}

func TestGPUsThatCanOnlyBeResetTogether(t *testing.T) {
	n := newNode(t)
	n.file("together", long0+","+long1)
	got := n.run("reset-gpu", "-gpu", gpu1)
	want(t, got, repairresult.Done, "reset 0000:4e:00, 0000:5f:00")
	if !slices.Equal(got.GPUs, []string{gpu0, gpu1}) {
		t.Errorf("got %+v", got)
	}
	n.untouched()
	// Not even all: there is no end to it.
	n.file("together", "more")
	want(t, n.run("reset-gpu", "-gpu", gpu1), repairresult.Failed, "cannot be reset without others")
	n.untouched()
}

func TestAServiceThatDoesNotStartAgain(t *testing.T) {
	n := newNode(t)
	pipe := n.pipe("reset-wait")
	done := make(chan repairresult.Result)
	go func() { done <- n.run("reset-gpu", "-gpu", gpu0) }()
	release := pipe()
	unit := filepath.Join(n.Dir, "units", dcgm)
	good, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(unit, []byte("[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nExecStart=/bin/false\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	n.systemctl("daemon-reload")
	release()
	want(t, <-done, repairresult.Done, "reset 0000:4e:00; not put back: start nvidia-dcgm.service: systemd's job ended: failed")
	if err := os.WriteFile(unit, good, 0o644); err != nil {
		t.Fatal(err)
	}
	n.systemctl("daemon-reload")
	// Any next run does it.
	want(t, n.run("check", "-tolerate", "sleep", "-command", "--", "true"), repairresult.Healthy, "true exited 0")
	n.untouched()
}

func TestKilledAtEachStep(t *testing.T) {
	n := newNode(t)
	for _, step := range []string{"query", "stop", "pm-off", "reset", "verify", "pm-on"} {
		t.Run(step, func(t *testing.T) {
			n.t, n.T = t, t
			n.file(step+"-kill", "")
			cmd := n.command("reset-gpu", "-gpu", gpu0)
			out, err := cmd.Output()
			if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || cmd.ProcessState.ExitCode() == 0 || len(out) > 0 {
				t.Fatalf("it was not killed: %v, %s", err, out)
			}
			if err := os.Remove(n.path(step + "-kill")); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Fatal(err)
			}
			// The mark is there, and ends by itself.
			var mark maintenance.Mark
			if err := json.Unmarshal([]byte(n.read("state/maintenance")), &mark); err != nil || mark.By != "repair reset-gpu" || mark.Until == 0 {
				t.Errorf("the mark is %+v, %v", mark, err)
			}
			// The next run puts everything back, also one that refuses.
			n.give(&podresources.PodResources{Namespace: "ml", Name: "p", Containers: []*podresources.ContainerResources{{DynamicResources: []*podresources.DynamicResource{{}}}}})
			want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "pod ml/p", "pod ml/p")
			n.give()
			n.untouched()
		})
	}
}

func TestSIGTERM(t *testing.T) {
	n := newNode(t)
	for _, step := range []string{"query", "reset"} {
		pipe := n.pipe(step + "-wait")
		cmd := n.command("reset-gpu", "-gpu", gpu0)
		done := make(chan repairresult.Result)
		go func() { done <- finish(t, cmd, n.path("log")) }()
		release := pipe()
		n.signal("TERM")
		// A reset that has begun goes on, and the run ends after it.
		release()
		got := <-done
		want(t, got, repairresult.Failed, "stopped, terminated signal received: "+map[string]string{"reset": "nvidia-smi has reset the GPU 0000:4e:00"}[step])
		n.untouched()
		if reset := slices.Contains(n.calls(), "--gpu-reset -i "+long0); reset != (step == "reset") {
			t.Errorf("stopped at step %s, and there was a reset: %v", step, reset)
		}
	}
}

// signal sends a signal to the run that called the stand-in last.
func (n *node) signal(name string) {
	n.t.Helper()
	if out, err := exec.CommandContext(n.t.Context(), "nsenter", n.Enter("kill", "-"+name, n.read("ppid"))...).CombinedOutput(); err != nil {
		n.t.Fatalf("%v: %s", err, out)
	}
}

func TestOtherVendors(t *testing.T) {
	n := newNode(t)
	tool := func(name string) string {
		path, err := filepath.Abs(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		return path
	}
	plug := func(sysfs, address, vendor, class string) {
		n.file(sysfs+"/bus/pci/devices/"+address+"/vendor", vendor+"\n")
		n.file(sysfs+"/bus/pci/devices/"+address+"/device", "0x1\n")
		n.file(sysfs+"/bus/pci/devices/"+address+"/class", class+"\n")
	}
	plug("metax", "0000:08:00.0", "0x9999", "0x038000")
	plug("metax", "0000:0e:00.0", "0x9999", "0x038000")
	args := []string{"reset-gpu", "-gpu", "0000:0e:00", "-sysfs", n.path("metax"), "-tool", tool("mx-smi"), "-verify", "1s", "-tolerate", "sleep"}
	want(t, n.run(args...), repairresult.Done, "reset 0000:0e:00")
	if diff := cmp.Diff([]string{"-L", "-r -i 1", "-L"}, n.calls()); diff != "" {
		t.Error(diff)
	}
	n.file("available", "Not Available(MetaX Sysfs File Unaccessible)")
	want(t, n.run(args...), repairresult.Failed, `which does not answer: mx-smi says that the GPU 0000:0e:00 is "Not Available`)
	n.file("print", "GPU#0  MXC500  bus  Not Available(MetaX Sysfs File Unaccessible)")
	want(t, n.run(args...), repairresult.Failed, "mx-smi -L does not list the GPU 0000:0e:00: GPU#0 MXC500 bus Not Available")

	plug("ascend", "0000:c1:00.0", "0x19e5", "0x120000")
	plug("ascend", "0000:01:00.0", "0x19e5", "0x120000")
	n.calls()
	args = []string{"reset-gpu", "-gpu", "0000:01:00", "-sysfs", n.path("ascend"), "-tool", tool("npu-smi"), "-settle", "0s", "-verify", "1s", "-tolerate", "sleep"}
	want(t, n.run(args...), repairresult.Done, "reset 0000:01:00")
	if calls := n.calls(); !slices.Contains(calls, "set -t reset -i 1 -c 0 -m 1") || !slices.Contains(calls, "info -t health -i 1 -c 0") {
		t.Errorf("calls %q", calls)
	}
	n.file("refuses", "")
	want(t, n.run(args...), repairresult.Failed, "NPU 0000:01:00: npu-smi set -t reset: Are you sure you want to continue resetting?(Y/N) This device does not support setting reset.")

	plug("both", "0000:c1:00.0", "0x19e5", "0x120000")
	plug("both", "0000:08:00.0", "0x9999", "0x038000")
	want(t, n.run("reset-gpu", "-all", "-sysfs", n.path("both")), repairresult.Refused, "accelerators of metax and ascend are on the PCI bus: -vendor says which")
	plug("none", "0000:c1:00.0", "0x8086", "0x120000")
	want(t, n.run("reset-gpu", "-all", "-sysfs", n.path("none")), repairresult.Refused, "no GPU of NVIDIA or MetaX")
}

func TestTheToolRunsInTheRootWhereItIs(t *testing.T) {
	n := newNode(t)
	root := n.path("root")
	n.file("root/usr/bin/nvidia-smi", "")
	n.remove("root/usr/bin/nvidia-smi")
	// As Debian has it: a link that leads outside, if it were followed from here.
	if err := os.Symlink("/etc/alternatives/nvidia-smi", n.path("root/usr/bin/nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	build := exec.CommandContext(t.Context(), "gcc", "-static", "-o", n.path("root/smi"), "-x", "c", "-")
	build.Stdin = strings.NewReader(`#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
int main(int argc, char **argv) {
	struct stat s;
	if (stat("/smi", &s)) return 77; /* another root */
	if (!strcmp(argv[1], "--query-gpu=pci.bus_id")) puts(argv[argc - 1]);
	else if (!strcmp(argv[1], "--query-gpu=persistence_mode")) puts("Disabled");
	return 0;
}`)
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	n.file("root/etc/alternatives/x", "")
	if err := os.Symlink("/smi", n.path("root/etc/alternatives/nvidia-smi")); err != nil {
		t.Fatal(err)
	}
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-tool=", "-root", root), repairresult.Done, "reset 0000:4e:00")
}

func TestNoSystemd(t *testing.T) {
	n := newNode(t)
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-systemd", n.path("none"), "-tolerate", "sleep"), repairresult.Done, "reset")
	want(t, n.run("reset-gpu", "-gpu", gpu0, "-systemd", n.path("none")), repairresult.Refused, "accelerators are held by ", "sleep, pid 1", "sleep, pid 1")
	n.untouched()
}
