package main_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/godbus/dbus/v5"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// host is a node's system bus, a real dbus-daemon, with a stand-in for logind.
type host struct {
	t           *testing.T
	binary, dir string
	bootID      string
	logind
}

// logind is the stand-in; D-Bus calls its exported methods.
type logind struct {
	inhibitors atomic.Pointer[[]inhibitor]
	refuses    atomic.Pointer[dbus.Error]
	reboots    atomic.Int32
	asked      chan bool
}

// inhibitor is an element of ListInhibitors, a(ssssuu).
type inhibitor struct {
	What, Who, Why, Mode string
	UID, PID             uint32
}

// Reboot is org.freedesktop.login1.Manager.Reboot.
func (l *logind) Reboot(interactive bool) *dbus.Error {
	if interactive {
		return dbus.NewError("org.freedesktop.DBus.Error.InvalidArgs", []any{"nobody can answer"})
	}
	if refused := l.refuses.Load(); refused != nil {
		return refused
	}
	l.reboots.Add(1)
	l.asked <- true
	return nil
}

// ListInhibitors is org.freedesktop.login1.Manager.ListInhibitors.
func (l *logind) ListInhibitors() ([]inhibitor, *dbus.Error) {
	if all := l.inhibitors.Load(); all != nil {
		return *all, nil
	}
	return nil, nil
}

func newHost(t *testing.T) *host {
	h := &host{t: t, binary: npdtest.Build(t), logind: logind{asked: make(chan bool, 10)}}
	var err error
	if h.bootID, err = boot.ID("/proc"); err != nil {
		t.Fatal(err)
	}
	// A Unix socket's path is short.
	if h.dir, err = os.MkdirTemp("", "bus"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(h.dir) })
	config := `<busconfig><type>system</type><listen>unix:path=` + h.path("socket") + `</listen><auth>EXTERNAL</auth>
		<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`
	if err := os.WriteFile(h.path("bus.conf"), []byte(config), 0o644); err != nil {
		t.Fatal(err)
	}
	// It says its address when it listens.
	daemon := exec.CommandContext(t.Context(), "dbus-daemon", "--config-file", h.path("bus.conf"), "--nofork", "--print-address")
	out, err := daemon.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	daemon.Stderr = os.Stderr
	if err := daemon.Start(); err != nil {
		t.Fatalf("%v (Debian has it in dbus-daemon)", err)
	}
	t.Cleanup(func() {
		daemon.Process.Kill()
		daemon.Wait()
	})
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return h
}

func (h *host) path(name string) string { return filepath.Join(h.dir, name) }

// start puts logind on the bus.
func (h *host) start() {
	h.t.Helper()
	conn, err := dbus.Connect("unix:path=" + h.path("socket"))
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	if err := conn.Export(&h.logind, "/org/freedesktop/login1", "org.freedesktop.login1.Manager"); err != nil {
		h.t.Fatal(err)
	}
	if reply, err := conn.RequestName("org.freedesktop.login1", 0); err != nil || reply != dbus.RequestNameReplyPrimaryOwner {
		h.t.Fatal(reply, err)
	}
}

func (h *host) command(args ...string) *exec.Cmd {
	h.t.Helper()
	if err := os.WriteFile(h.path("log"), nil, 0o644); err != nil {
		h.t.Fatal(err)
	}
	// Not all processes of this machine may be read.
	all := []string{"reboot", "-bus", h.path("socket"), "-termination-log", h.path("log"), "-allow-holders"}
	return exec.CommandContext(h.t.Context(), h.binary, append(all, args...)...)
}

func (h *host) run(args ...string) repairresult.Result {
	h.t.Helper()
	return finish(h.t, h.command(args...), h.path("log"))
}

func TestReboot(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	// Those that only delay it, or block something else, do not count.
	h.inhibitors.Store(&[]inhibitor{{"shutdown", "kubelet", "pods", "delay", 0, 1}, {"sleep:idle", "someone", "something", "block", 0, 2}})
	h.start()
	cmd := h.command("-boot-id", h.bootID)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-h.asked
	// The result is known before logind is asked: there may be no time after it.
	message, err := os.ReadFile(h.path("log"))
	if err != nil {
		t.Fatal(err)
	}
	if r, err := repairresult.Parse(string(message)); err != nil || r.Result != repairresult.Done {
		t.Errorf("%+v, %v", r, err)
	}
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(out)
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	want(t, parse(t, string(text), 0, h.path("log"), ""), repairresult.Done, "logind reboots the node")
	if n := h.reboots.Load(); n != 1 {
		t.Errorf("%d reboots", n)
	}
}

func TestInAnotherBootThereIsNothingToDo(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	h.start()
	want(t, h.run("-boot-id", "00000000-0000-0000-0000-000000000000"), repairresult.Done, "already in a new boot")
	// What is no boot id is not another boot.
	for _, id := range []string{"", "$(BOOT_ID)", h.bootID[1:], h.bootID + "0"} {
		want(t, h.run("-boot-id", id), repairresult.Refused, "is no boot id")
	}
	want(t, h.run("-boot-id", h.bootID, "now"), repairresult.Refused, `unexpected argument "now"`)
	if n := h.reboots.Load(); n != 0 {
		t.Errorf("%d reboots", n)
	}
}

func TestARebootThatDoesNotHappen(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	want(t, h.run("-boot-id", h.bootID), repairresult.Failed, "ask logind what blocks a reboot: The name org.freedesktop.login1 was not provided")
	want(t, h.run("-boot-id", h.bootID, "-bus", h.path("none")), repairresult.Refused, "no system bus here: stat "+h.path("none"))
	h.start()
	for _, mode := range []string{"block", "block-weak"} {
		h.inhibitors.Store(&[]inhibitor{{"idle:shutdown", "apt", "packages are being installed", mode, 0, 7}})
		want(t, h.run("-boot-id", h.bootID), repairresult.Refused, "apt (pid 7) blocks the reboot: packages are being installed")
	}
	h.inhibitors.Store(nil)
	h.refuses.Store(dbus.NewError("org.freedesktop.DBus.Error.AccessDenied", []any{"Interactive authentication required."}))
	want(t, h.run("-boot-id", h.bootID), repairresult.Failed, "logind does not reboot the node: Interactive authentication required.")
	if n := h.reboots.Load(); n != 0 {
		t.Errorf("%d reboots", n)
	}
	h.refuses.Store(nil)
	want(t, h.run("-boot-id", h.bootID, "-wait", "100ms"), repairresult.Failed, "logind has agreed to reboot the node, which still runs after 100ms")
}

// What a reset asks before it begins, a reboot asks, too: Slurm runs jobs without pods, and a pod may have come since the remediator looked.
func TestARebootIsRefusedWhileGPUsAreHeld(t *testing.T) {
	mount := npdtest.Freeze(t)
	n, h := newNode(t), newHost(t)
	h.start()
	reboot := func(args ...string) repairresult.Result {
		return n.run(append([]string{"reboot", "-bus", h.path("socket"), "-boot-id", h.bootID, "-wait", "100ms"}, args...)...)
	}
	const rebooted = "logind has agreed to reboot the node"
	// The services that a reset stops may run on.
	want(t, reboot(), repairresult.Failed, rebooted)
	n.systemctl("start", other)
	n.waitFor(other, "active")
	want(t, reboot(), repairresult.Refused, "accelerators are held by sleep, pid ", "sleep, pid 1")
	want(t, reboot("-allow-holders"), repairresult.Failed, rebooted)
	n.systemctl("stop", other)
	n.systemctl("start", trainer)
	n.waitFor(trainer, "active")
	want(t, reboot("-tolerate", "sleep"), repairresult.Refused, "held by pod ml/train-0 (sleep, pid ", "pod ml/train-0 (sleep, pid 1)")
	// Without -devices the vendors' count, and of pods only those that a monitor does not open.
	want(t, reboot("-devices", n.path("dev/nvidia1")), repairresult.Failed, rebooted)
	n.systemctl("stop", trainer)
	n.give(&podresources.PodResources{Namespace: "ml", Name: "ds-0", Containers: []*podresources.ContainerResources{
		{Devices: []*podresources.ContainerDevices{{ResourceName: "huawei.com/Ascend910"}}},
	}})
	want(t, reboot(), repairresult.Refused, "held by pod ml/ds-0", "pod ml/ds-0")
	want(t, reboot("-pod-resources", n.path("none")), repairresult.Refused, "which pods hold a device is not known: dial unix")
	n.give()
	// A process that was killed and hangs in the kernel ends with the reboot alone.
	hung := exec.CommandContext(t.Context(), "nsenter", n.Enter("sh", "-c",
		"exec 3<>"+n.path("dev/nvidia1")+"; exec touch "+filepath.Join(mount.Dir, "file"))...)
	if err := hung.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { mount.Thaw(); _ = hung.Wait() })
	n.Wait("a process that hangs", func() bool { return len(reboot().Holders) == 1 })
	pid := reboot().Holders[0].PID
	if out, err := exec.CommandContext(t.Context(), "nsenter", n.Enter("kill", "-KILL", strconv.Itoa(pid))...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	want(t, n.run("reset-gpu", "-gpu", gpu0), repairresult.Refused, "held by touch, pid ", "touch, pid 1")
	want(t, reboot(), repairresult.Failed, rebooted)
	// In a PID namespace of its own.
	cmd := n.command("reboot", "-bus", h.path("socket"), "-boot-id", h.bootID)
	cmd.Args = slices.Insert(cmd.Args, slices.Index(cmd.Args, n.binary), "unshare", "--pid", "--fork", "--mount-proc")
	want(t, finish(t, cmd, n.path("log")), repairresult.Refused, "the pod needs hostPID: true")
	want(t, n.run("reboot", "-boot-id", h.bootID, "-devices="), repairresult.Refused, "-devices is empty")
}

func TestABusThatDoesNotAnswer(t *testing.T) {
	t.Parallel()
	h := newHost(t)
	listener, err := net.Listen("unix", h.path("silent"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	want(t, h.run("-boot-id", h.bootID, "-bus", h.path("silent"), "-timeout", "1s"), repairresult.Failed, "the system bus at "+h.path("silent"))
}

func TestHelpVersionAndUnknownCommands(t *testing.T) {
	t.Parallel()
	binary := npdtest.Build(t)
	for args, want := range map[string]string{
		"-h": "repair works on a node", "-version": "repair ", "check -h": "-level", "reset-gpu -h": "-gpu addresses", "reboot -h": "-boot-id id",
	} {
		out, err := exec.CommandContext(t.Context(), binary, strings.Fields(args)...).Output()
		if err != nil || !strings.Contains(string(out), want) {
			t.Errorf("%s: %v, %s", args, err, out)
		}
	}
	for _, args := range []string{"", "fix", "reboot -x"} {
		out, err := exec.CommandContext(t.Context(), binary, strings.Fields(args)...).Output()
		r, parseErr := repairresult.Parse(strings.TrimSpace(string(out)))
		if exit := (*exec.ExitError)(nil); !errors.As(err, &exit) || exit.ExitCode() != 2 || parseErr != nil || r.Result != repairresult.Refused {
			t.Errorf("%q: %v, %v, %s", args, err, parseErr, out)
		}
	}
}
