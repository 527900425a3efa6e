// Package systemdtest runs a real systemd for a test, as process 1 of namespaces of its own.
package systemdtest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// Node is a running systemd.
type Node struct {
	T *testing.T
	// Dir is a folder of the test; the units are in its folder units.
	Dir string
	// PID is systemd's outside of its namespaces.
	PID string
}

// New starts systemd with units: name to content, "" for masked. Those in wanted are enabled.
func New(t *testing.T, units map[string]string, wanted ...string) *Node {
	t.Helper()
	n := &Node{T: t, Dir: t.TempDir()}
	for name, content := range units {
		path := filepath.Join(n.Dir, "units", name)
		if content == "" {
			n.link("/dev/null", path)
			continue
		}
		n.Write("units/"+name, "[Unit]\nDefaultDependencies=no\nStartLimitIntervalSec=0\n"+content+"\n[Install]\nWantedBy=node.target\n")
	}
	n.Write("units/node.target", "[Unit]\nDefaultDependencies=no\n")
	for _, name := range wanted {
		n.link("../"+name, filepath.Join(n.Dir, "units/node.target.wants", name))
	}
	n.boot()
	return n
}

// Write writes a file below Dir.
func (n *Node) Write(name, content string) {
	n.T.Helper()
	path := filepath.Join(n.Dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.T.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		n.T.Fatal(err)
	}
}

func (n *Node) link(target, path string) {
	n.T.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		n.T.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		n.T.Fatal(err)
	}
}

// hierarchies returns the mounted hierarchies of control groups in which systemd makes groups: the only one, or on version 1 its own, that of
// version 2 and one for each controller.
func hierarchies() []string {
	const mount = "/sys/fs/cgroup"
	var found []string
	for _, root := range []string{mount, mount + "/systemd", mount + "/unified", mount + "/memory", mount + "/pids", mount + "/devices", mount + "/blkio",
		mount + "/cpu", mount + "/cpuacct", mount + "/cpu,cpuacct"} {
		// Links are other names of cpu,cpuacct.
		if resolved, err := filepath.EvalSymlinks(root); err != nil || resolved != root {
			continue
		}
		if _, err := os.Stat(root + "/cgroup.procs"); err == nil {
			found = append(found, root)
		}
		if len(found) == 1 && root == mount {
			break
		}
	}
	return found
}

// boot starts systemd in separate control groups, so that it does not change this machine's, nor those of a test beside it: both would make
// and remove groups of the same names, and a service whose group the other has just removed does not start.
func (n *Node) boot() {
	n.T.Helper()
	group := fmt.Sprintf("pitcrew-test-%d-%d", os.Getpid(), time.Now().UnixNano())
	var groups []string
	script, binds := "", ""
	for _, root := range hierarchies() {
		g := filepath.Join(root, group)
		groups = append(groups, g)
		script += fmt.Sprintf("mkdir %s && echo 0 >%s/cgroup.procs || exit\n", g, g)
		// The namespace changes the paths that processes read, not what is mounted.
		binds += fmt.Sprintf("mount --bind %s %s || exit\n", g, root)
	}
	script += `exec unshare --mount --pid --fork --kill-child --cgroup --ipc --uts --mount-proc sh -c '
		mount --make-rprivate / && mount -t tmpfs run /run && mount --bind ` + n.Dir + `/units /etc/systemd/system || exit
		` + binds + `
		echo ready
		exec env -i PATH=$PATH container=other SYSTEMD_LOG_TARGET=console SYSTEMD_UNIT_PATH=/etc/systemd/system /lib/systemd/systemd --system --unit=node.target'`
	n.Write("log", "")
	log, err := os.OpenFile(filepath.Join(n.Dir, "log"), os.O_WRONLY, 0)
	if err != nil {
		n.T.Fatal(err)
	}
	cmd := exec.Command("sh", "-c", script) //nolint:noctx // the cleanup below ends it
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		n.T.Fatal(err)
	}
	n.T.Cleanup(func() {
		// It may have ended already, and how it ends is of no interest.
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
		for _, g := range groups {
			n.remove(g)
		}
	})
	// unshare's only child is systemd.
	children := fmt.Sprintf("/proc/%d/task/%d/children", cmd.Process.Pid, cmd.Process.Pid)
	n.Wait("systemd's socket", func() bool {
		pid, err := os.ReadFile(children)
		n.PID = strings.TrimSpace(string(pid))
		if err != nil {
			return false
		}
		_, err = os.Stat("/proc/" + n.PID + "/root/run/systemd/private")
		return err == nil
	})
}

// remove removes a control group and those below it, once the kernel has removed their processes.
func (n *Node) remove(group string) {
	n.T.Helper()
	n.Wait("the end of "+group, func() bool {
		var dirs []string
		// What cannot be removed now is tried again.
		_ = filepath.WalkDir(group, func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, path)
			}
			return nil
		})
		slices.Reverse(dirs)
		for _, dir := range dirs {
			_ = syscall.Rmdir(dir)
		}
		_, err := os.Stat(group)
		return os.IsNotExist(err)
	})
}

// Wait waits until done, for at most three minutes.
func (n *Node) Wait(what string, done func() bool) {
	n.T.Helper()
	poll := time.NewTicker(20 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(3 * time.Minute); !done(); <-poll.C {
		if time.Now().After(deadline) {
			log, err := os.ReadFile(filepath.Join(n.Dir, "log"))
			// What systemd knows of its units says why.
			status, _ := exec.CommandContext(n.T.Context(), "timeout", append([]string{"10", "nsenter"}, n.Enter("systemctl", "--all", "--no-pager", "--lines=0", "status")...)...).CombinedOutput()
			n.T.Fatalf("waited 3 min for %s: %s %v\n%s", what, log, err, status)
		}
	}
}

// Enter returns the arguments of nsenter that run a program in systemd's namespaces: it does not answer a process outside of its PID
// namespace.
func (n *Node) Enter(program string, args ...string) []string {
	return append([]string{"--mount", "--pid", "--cgroup", "--target", n.PID, "--", program}, args...)
}
