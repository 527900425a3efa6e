package machine

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/uuid"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
)

// bootIDFile is where the kubelet and all our programs read which boot this is. A file of this run is mounted over it, on the
// node and, by a hook of the container runtime, in every container: each container has a /proc of its own.
const bootIDFile = "/proc/sys/kernel/random/boot_id"

// ownBoots makes the boot id a file of this run.
func (m *Machine) ownBoots(t *testing.T) {
	t.Helper()
	m.NewBoot(t)
	if err := unix.Mount(m.bootID(), bootIDFile, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
}

func (m *Machine) bootID() string { return filepath.Join(m.Dir, "boot-id") }

// NewBoot puts the machine into another boot, whose id it returns. The kubelet reads the id once, when it starts.
func (m *Machine) NewBoot(t testing.TB) string {
	t.Helper()
	boot := string(uuid.NewUUID())
	if err := os.WriteFile(m.bootID(), []byte(boot+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return boot
}

// runtimeSpec writes what every container begins with: the runtime's defaults and a hook, which runs in the container's mounts, in its
// root. It shows the container our boot id, and then runs the commands of [Machine.InContainers].
func (m *Machine) runtimeSpec(t *testing.T) string {
	t.Helper()
	var spec map[string]any
	if err := json.Unmarshal([]byte(m.Ctr(t, "oci", "spec")), &spec); err != nil {
		t.Fatal(err)
	}
	m.InContainers(t, "")
	script := fmt.Sprintf("mount --bind %s .%s && . %s", m.bootID(), bootIDFile, filepath.Join(m.Dir, "hook"))
	spec["hooks"] = map[string]any{"createContainer": []any{map[string]any{
		"path": "/bin/sh", "args": []string{"sh", "-euc", script}, "env": []string{"PATH=" + os.Getenv("PATH")},
	}}}
	text, err := json.Marshal(spec)
	if err != nil {
		t.Fatal(err)
	}
	return m.Write(t, "runtime.json", string(text))
}

// InContainers sets commands for a shell that run in the root of every container that is created from now on, before its program. They
// see the files of this machine, and the container's below the working directory.
func (m *Machine) InContainers(t *testing.T, commands string) {
	t.Helper()
	m.Write(t, "hook", commands)
}

// PowerOff ends the kubelet, the container runtime and all containers at once, with no chance to report anything.
func (m *Machine) PowerOff(t testing.TB) {
	t.Helper()
	for _, p := range []*Program{m.Agent, m.runtime} {
		_ = syscall.Kill(p.PID, syscall.SIGKILL) // it may have ended
		<-p.Ended
	}
	var killed []int
	clustertest.Until(t, Patience, "the end of all containers", func() error {
		running, err := containers()
		if err != nil {
			return err
		}
		for _, pid := range running {
			_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
		}
		// They become children of this process, the first in its namespace, when their shim has ended. The first process in a namespace of
		// pods ends when the others are reaped.
		killed = slices.DeleteFunc(append(killed, running...), func(pid int) bool {
			_, _ = syscall.Wait4(pid, nil, syscall.WNOHANG, nil) // it may not be our child yet
			return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
		})
		if len(running)+len(killed) > 0 {
			return fmt.Errorf("processes are left: %q", describe(append(running, killed...)))
		}
		return nil
	})
}

// describe says for each process what the kernel knows of it: its name, state and parent, and what it waits for.
func describe(pids []int) []string {
	var all []string
	for _, pid := range pids {
		stat, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)) // it may have ended
		wchan, _ := os.ReadFile(fmt.Sprintf("/proc/%d/wchan", pid))
		fields := strings.Fields(string(stat))
		all = append(all, fmt.Sprintf("%s in %q", strings.Join(fields[:min(4, len(fields))], " "), wchan))
	}
	return all
}

// containers lists the processes of containers. The shims of the container runtime come first: none of them is left to see the end of
// its container.
func containers() (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			return nil, err
		}
		name, state, _ := strings.Cut(string(text), ") ")
		groups, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cgroup")) // as above
		switch {
		case strings.HasPrefix(state, "Z 1 ") && hasOwnNamespace(pid): // its shim was killed before it has seen the end
			pids = append(pids, pid)
		case strings.HasPrefix(state, "Z"):
		case strings.Contains(name, "(containerd-shim"):
			pids = slices.Insert(pids, 0, pid)
		case strings.Contains(string(groups), ":/"+podsGroup+"/"):
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// hasOwnNamespace reports whether a process is in a namespace of processes below ours.
func hasOwnNamespace(pid int) bool {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid)) // it may have ended
	_, ids, _ := strings.Cut(string(status), "\nNSpid:")
	ids, _, _ = strings.Cut(ids, "\n")
	return len(strings.Fields(ids)) > 1
}

// volatile are the folders of a node that are empty after a boot, as far as they belong to Kubernetes or to us.
var volatile = []string{"/run/pitcrew", "/run/containerd", "/run/cni", "/run/netns", "/run/runc"}

// PowerOn starts the machine in a new boot, and returns its id. What a boot forgets is gone: mounts and control
// groups of pods, files in /run, and, for our plugins, the records of the kernel log.
func (m *Machine) PowerOn(t *testing.T) string {
	t.Helper()
	// The runtime's helpers for a container that was deleted just then may unmount something meanwhile.
	clustertest.Until(t, Patience, "nothing is left of the last boot", m.emptyVolatile)
	boot := m.NewBoot(t)
	m.startContainerd(t)
	m.forget(t)
	m.StartKubelet(t)
	return boot
}

func (m *Machine) emptyVolatile() error {
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	var points []string
	for line := range strings.Lines(string(mounts)) {
		points = append(points, strings.Fields(line)[1])
	}
	slices.Reverse(points) // the last ones may lie on others
	var errs []error
	for _, folder := range append(slices.Clone(volatile), m.KubeletDir()) {
		for _, point := range points {
			if strings.HasPrefix(point, folder+"/") {
				if err := unix.Unmount(point, unix.MNT_DETACH); err != nil {
					errs = append(errs, fmt.Errorf("unmount %s: %w", point, err))
				}
			}
		}
	}
	for _, folder := range volatile {
		errs = append(errs, os.RemoveAll(folder))
	}
	errs = append(errs, removeGroups(podsGroup))
	return errors.Join(errs...)
}

// UntilBoot waits until the node is Ready in that boot.
func (m *Machine) UntilBoot(t *testing.T, boot string) {
	t.Helper()
	m.untilReady(t, func(node *corev1.Node) bool { return node.Status.NodeInfo.BootID == boot })
}
