package machine

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster"
	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/components"
)

// inside is the environment variable with the folder of this run. It is set if this process runs in the namespaces.
const inside = "PITCREW_E2E_NODE"

// Main runs the tests of a package in separate namespaces, so that a kubelet and a container runtime cannot affect this machine: their
// network, mounts and processes are not this machine's, and end with the tests in any case. Components that a package needs beside those of
// a node are built first: in the namespaces nothing can be downloaded.
func Main(m *testing.M, more ...components.Component) {
	if os.Getenv(inside) == "" {
		code, err := outside(more)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
		os.Exit(code) //nolint:forbidigo // it is the main of the test binary
	}
	if err := enter(os.Getenv(inside)); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1) //nolint:forbidigo // as above
	}
	clustertest.Main(m, cluster.Options{NodeGrace: Grace})
}

// HostNetwork is the descriptor of this machine's network namespace, in the namespaces.
const HostNetwork = 3

// outside builds what the tests need, runs the tests in the namespaces and cleans up after them.
func outside(more []components.Component) (code int, err error) {
	if os.Geteuid() != 0 {
		return 1, errors.New("a real kubelet needs root")
	}
	// What a run has left that was killed.
	if err := removeGroups(podsGroup, SystemdGroup); err != nil {
		return 1, fmt.Errorf("is there another run? %w", err)
	}
	root, err := components.Root()
	if err != nil {
		return 1, err
	}
	dir, err := os.MkdirTemp("", "pitcrew-node-")
	if err != nil {
		return 1, err
	}
	defer func() { err = errors.Join(err, removeGroups(podsGroup, SystemdGroup), os.RemoveAll(dir)) }()
	if err := build(root, dir, more); err != nil {
		return 1, err
	}
	network, err := os.Open("/proc/self/ns/net")
	if err != nil {
		return 1, err
	}
	defer network.Close()
	runtime.LockOSThread() // the child is killed when the thread that started it ends
	defer runtime.UnlockOSThread()
	tests := exec.CommandContext(context.Background(), "/proc/self/exe", os.Args[1:]...)
	tests.Env = append(os.Environ(), inside+"="+dir)
	tests.Stdout, tests.Stderr = os.Stdout, os.Stderr
	tests.ExtraFiles = []*os.File{network}
	tests.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWIPC,
		Pdeathsig:  syscall.SIGKILL,
	}
	err = tests.Run()
	if exit := (&exec.ExitError{}); errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}

const (
	// SystemdGroup is the control group of our systemd.
	SystemdGroup = "pitcrew-e2e-node"
	podsGroup    = "k8s.io"
)

// removeGroups removes control groups of processes that have ended. Not all kinds of control groups have namespaces.
func removeGroups(names ...string) error {
	var errs []error
	for _, name := range names {
		for _, pattern := range []string{"/sys/fs/cgroup/" + name, "/sys/fs/cgroup/*/" + name} {
			groups, err := filepath.Glob(pattern)
			errs = append(errs, err)
			for _, group := range groups {
				errs = append(errs, removeGroup(group))
			}
		}
	}
	return errors.Join(errs...)
}

// removeGroup removes a control group and those in it. Their files cannot be removed, and need not be.
func removeGroup(group string) error {
	entries, err := os.ReadDir(group)
	if err != nil {
		return err
	}
	var errs []error
	for _, entry := range entries {
		if entry.IsDir() {
			errs = append(errs, removeGroup(filepath.Join(group, entry.Name())))
		}
	}
	return errors.Join(append(errs, unix.Rmdir(group))...)
}

// settings are files that a kubelet changes for the whole machine. Here it changes copies.
var settings = []string{
	"vm/overcommit_memory", "vm/panic_on_oom", "kernel/panic", "kernel/panic_on_oops", "kernel/keys/root_maxkeys", "kernel/keys/root_maxbytes",
}

// enter makes the namespaces of this process those of a node.
func enter(dir string) error {
	// Mounts of pods must propagate to containers, but not to this machine.
	for _, propagation := range []uintptr{unix.MS_PRIVATE, unix.MS_SHARED} {
		if err := unix.Mount("", "/", "", unix.MS_REC|propagation, ""); err != nil {
			return fmt.Errorf("mounts of our own: %w", err)
		}
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	// A kubelet has the sockets of device plugins, and what it remembers of them, in the last one,
	// whatever its own folder is.
	for _, path := range []string{"/run", "/var/log", "/var/lib/kubelet"} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", path, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", path, err)
		}
	}
	for _, setting := range settings {
		path, own := filepath.Join("/proc/sys", setting), filepath.Join(dir, strings.ReplaceAll(setting, "/", "."))
		value, err := os.ReadFile(path)
		if err == nil {
			err = os.WriteFile(own, value, 0o644)
		}
		if err == nil {
			err = unix.Mount(own, path, "", unix.MS_BIND, "")
		}
		if err != nil {
			return fmt.Errorf("keep %s: %w", path, err)
		}
	}
	for _, args := range []string{
		"link set lo up",
		// Without a kube-proxy the API server's address for pods is the node's own, see relay.
		"addr add " + serviceIP + "/32 dev lo",
		"link add node0 type veth peer name node1",
		"addr add " + NodeIP + "/24 dev node0",
		"link set node0 up",
		"link set node1 up",
	} {
		if out, err := exec.CommandContext(context.Background(), "ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			return fmt.Errorf("ip %s: %w: %s", args, err, out)
		}
	}
	return nil
}
