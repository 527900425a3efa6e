package main

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/npd/npdtest"
)

func TestGolden(t *testing.T) { npdtest.Golden(t) }

const fine = "exit 0\nservices are as expected\n"

// node is a real systemd, process 1 of its own namespaces, and the plugin.
type node struct {
	t           *testing.T
	binary, dir string
	// pid is systemd's outside of its namespaces.
	pid string
}

// newNode starts systemd with the units of a folder: name to content, "" for masked. Those in wanted are enabled.
func newNode(t *testing.T, units map[string]string, wanted ...string) *node {
	n := &node{t: t, binary: npdtest.Build(t), dir: t.TempDir()}
	for name, content := range units {
		path := filepath.Join(n.dir, "units", name)
		if content == "" {
			n.link("/dev/null", path)
			continue
		}
		n.write("units/"+name, "[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n"+content+"\n[Install]\nWantedBy=node.target\n")
	}
	n.write("units/node.target", "[Unit]\nDefaultDependencies=no\n")
	for _, name := range wanted {
		n.link("../"+name, filepath.Join(n.dir, "units/node.target.wants", name))
	}
	n.write("sys/bus/pci/devices/0000:00:00.0/vendor", "0x8086")
	n.boot()
	return n
}

func (n *node) write(name, content string) {
	n.t.Helper()
	path := filepath.Join(n.dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		n.t.Fatal(err)
	}
}

func (n *node) link(target, path string) {
	n.t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		n.t.Fatal(err)
	}
}

// boot starts systemd in separate control groups, so that it does not change this machine's.
func (n *node) boot() {
	n.t.Helper()
	group := fmt.Sprintf("pitcrew-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	var groups []string
	for _, root := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(root + "/cgroup.procs"); err == nil {
			groups = append(groups, filepath.Join(root, group))
		}
	}
	script := ""
	for _, g := range groups {
		script += fmt.Sprintf("mkdir %s && echo 0 >%s/cgroup.procs || exit\n", g, g)
	}
	script += `exec unshare --mount --pid --fork --kill-child --cgroup --ipc --uts --mount-proc sh -c '
		mount --make-rprivate / && mount -t tmpfs run /run && mount --bind ` + n.dir + `/units /etc/systemd/system || exit
		echo ready
		exec env -i PATH=$PATH container=other SYSTEMD_UNIT_PATH=/etc/systemd/system /lib/systemd/systemd --system --unit=node.target'`
	n.write("log", "")
	log, err := os.OpenFile(filepath.Join(n.dir, "log"), os.O_WRONLY, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", script)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	n.t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		log.Close()
		for _, g := range groups {
			n.remove(g)
		}
	})
	// unshare's only child is systemd.
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	n.wait("systemd's socket", func() bool {
		pid, err := os.ReadFile(children)
		n.pid = strings.TrimSpace(string(pid))
		if err != nil {
			return false
		}
		_, err = os.Stat("/proc/" + n.pid + "/root/run/systemd/private")
		return err == nil
	})
}

// remove removes a control group and those below it, once the kernel has removed their processes.
func (n *node) remove(group string) {
	n.t.Helper()
	n.wait("the end of "+group, func() bool {
		var dirs []string
		filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, dir := range dirs {
			syscall.Rmdir(dir)
		}
		_, err := os.Stat(group)
		return os.IsNotExist(err)
	})
}

func (n *node) wait(what string, done func() bool) {
	n.t.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(30 * time.Second); !done(); <-poll.C {
		if time.Now().After(deadline) {
			log, err := os.ReadFile(filepath.Join(n.dir, "log"))
			n.t.Fatalf("waited 30 s for %s: %s %v", what, log, err)
		}
	}
}

func (n *node) run(args ...string) string {
	n.t.Helper()
	// systemd does not answer a process outside of its PID namespace.
	return npdtest.Run(n.t, "nsenter", append([]string{"--mount", "--pid", "--target", n.pid, "--", n.binary, "-grace", "0s",
		"-sysfs", filepath.Join(n.dir, "sys"), "-state-dir", filepath.Join(n.dir, "state")}, args...)...)
}

func (n *node) until(want string, args ...string) {
	n.t.Helper()
	got := ""
	defer func() {
		if n.t.Failed() {
			n.t.Logf("got %s", got)
		}
	}()
	n.wait(want, func() bool {
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
	}, "good.service", "fails.service", "loops.service", "slow.service")
	tests := map[string]string{
		"good.service":              fine,
		"good.service,slow.service": fine,
		"node.target":               fine,
		"fails.service":             "exit 1\nInspect unit fails.service: failed\n",
		"loops.service":             "exit 1\nInspect unit loops.service: restarted 3 times or more within 10m0s\n",
		"off.service":               "exit 1\nInspect unit off.service: not running\n",
		"masked.service":            "exit 1\nInspect unit masked.service: masked\n",
		"absent.service":            "exit 1\nInspect unit absent.service: not-found\n",
		"good.service,off.service,absent.service": "exit 1\nInspect unit absent.service: not-found; unit off.service: not running\n",
	}
	for units, want := range tests {
		t.Run(units, func(t *testing.T) {
			n.t = t
			n.until(want, "-units", units)
		})
	}
	n.t = t
	n.until("exit 2\nunknown: unit off.service: not running, but the node has only just booted\n", "-units", "off.service", "-grace", "1000000h")
	n.until("exit 1\nMonitor unit slow.service: activating\n", "-units", "slow.service", "-min-repair", "Monitor")
}

func TestTheUnitsOfAGPUNode(t *testing.T) {
	n := newNode(t, map[string]string{
		"kubelet.service": runs, "containerd.service": runs, "chrony.service": runs + "\n[Install]\nAlias=chronyd.service",
		"nvidia-imex.service": runs, "nvidia-fabricmanager.service": runs,
	}, "kubelet.service", "containerd.service")
	// Units that are not enabled or not installed are not reported as missing.
	n.until(fine)
	n.write("sys/bus/pci/devices/0000:07:00.0/vendor", "0x10de")
	n.write("sys/bus/pci/devices/0000:07:00.0/device", "0x22a3")
	n.write("sys/bus/pci/devices/0000:07:00.0/class", "0x068000")
	n.until("exit 1\nInspect unit nvidia-fabricmanager.service: not running\n")
	n.write("sys/bus/pci/devices/0000:07:00.0/class", "0x030200")
	n.until(fine)
}

func TestAServiceThatDies(t *testing.T) {
	n := newNode(t, map[string]string{"containerd.service": runs, "kubelet.service": runs}, "containerd.service", "kubelet.service")
	n.until(fine)
	// systemd calls a service active before it runs its program.
	var pids []int
	n.wait("both programs", func() bool {
		pids = n.sleeping()
		return len(pids) == 2
	})
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	n.until("exit 1\nInspect unit containerd.service: failed; unit kubelet.service: failed\n")
}

// sleeping returns systemd's children that run sleep.
func (n *node) sleeping() (pids []int) {
	n.t.Helper()
	children, err := os.ReadFile("/proc/" + n.pid + "/task/" + n.pid + "/children")
	if err != nil {
		n.t.Fatal(err)
	}
	for child := range strings.FieldsSeq(string(children)) {
		// A child may be gone by now.
		comm, err := os.ReadFile("/proc/" + child + "/comm")
		if err != nil || strings.TrimSpace(string(comm)) != "sleep" {
			continue
		}
		pid, err := strconv.Atoi(child)
		if err != nil {
			n.t.Fatal(err)
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
