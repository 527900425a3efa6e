// Package holders looks for what keeps the accelerators of a node open: processes of the host and of pods by their open files, and pods
// by what the kubelet has given them. A reset, a check and a reboot ask it before they begin.
package holders

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/podresources"
	"github.com/pitcrew-dev/pitcrew/internal/procfs"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// proc is the proc filesystem. With hostPID it is the node's.
const proc = "/proc"

// process is a process that keeps a device file open.
type process struct {
	repairresult.Holder
	// unit is the systemd service that it belongs to, "" for none.
	unit string
}

// Watcher looks for what holds the accelerators of the node.
type Watcher struct {
	// Devices are the beginnings of the paths of device files. PodDevices are those that count for the processes of pods.
	Devices, PodDevices []string
	// Driver names programs of the driver that may hold devices: as these Services of systemd, and in the pods of DriverNamespaces.
	Driver, Services, DriverNamespaces []string
	// Tolerate names programs that may as any service of systemd. A process of a pod or of a login may have any name.
	Tolerate []string
	// Killed reports that a process does not count that was killed and hangs in the kernel.
	Killed bool
	// Resources are how the names of the vendors' extended resources begin.
	Resources []string
	// PodResources is the kubelet's socket, PodLogs the folder whose entries name pods with their UIDs.
	PodResources, PodLogs string
	// Wait is how long it is waited until no one holds a device.
	Wait time.Duration
}

// Idle returns nil when no process and no pod holds a device, and a refusal that names them if that does not happen in time. The
// processes of the services in units do not count.
func (w *Watcher) Idle(ctx context.Context, units []string) error {
	if err := onNode(); err != nil {
		return err
	}
	poll := time.NewTicker(500 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(w.Wait); ; {
		err := w.look(ctx, units)
		if err == nil || time.Now().After(deadline) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-poll.C:
		}
	}
}

// onNode refuses to look at the processes of this container alone.
func onNode() error {
	first, err := os.ReadFile(filepath.Join(proc, "1/comm"))
	if err != nil {
		return repairresult.Refuse("the processes of the node cannot be read: %v", err)
	}
	// The first process of a PID namespace of a pod is the container's own or, if its containers share one, the pause container's.
	if os.Getpid() == 1 || strings.TrimSpace(string(first)) == "pause" {
		return repairresult.Refuse("the pod needs hostPID: true: which processes of the node hold a device is not known")
	}
	return nil
}

func (w *Watcher) look(ctx context.Context, units []string) error {
	processes, err := w.processes()
	if err != nil {
		return repairresult.Refuse("which processes hold a device is not known: %v", err)
	}
	var holders []repairresult.Holder
	for _, p := range processes {
		if p.unit == "" || !slices.Contains(units, p.unit) {
			holders = append(holders, p.Holder)
		}
	}
	for _, resource := range w.Resources {
		pods, err := podresources.Holders(ctx, w.PodResources, resource)
		if err != nil {
			return repairresult.Refuse("which pods hold a device is not known: %v", err)
		}
		for _, pod := range pods {
			if !slices.ContainsFunc(holders, func(h repairresult.Holder) bool { return h.Pod == pod }) {
				holders = append(holders, repairresult.Holder{Pod: pod})
			}
		}
	}
	if len(holders) == 0 {
		return nil
	}
	const most = 3
	var names []string
	for _, h := range holders[:min(most, len(holders))] {
		names = append(names, h.String())
	}
	if more := len(holders) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return &repairresult.Refusal{Message: "accelerators are held by " + strings.Join(names, ", "), Holders: holders}
}

// processes lists the processes that keep a device open and may not, other than this one.
func (w *Watcher) processes() ([]process, error) {
	all, err := os.ReadDir(proc)
	if err != nil {
		return nil, err
	}
	var found []process
	var pods map[string]string
	for _, entry := range all {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		dir := filepath.Join(proc, entry.Name())
		p := process{Holder: repairresult.Holder{PID: pid, Command: procfs.Attribute(filepath.Join(dir, "comm"))}}
		cgroup := procfs.Attribute(filepath.Join(dir, "cgroup"))
		uid, devices := podUID(cgroup), w.Devices
		if uid != "" {
			devices = w.PodDevices
		} else {
			p.unit = unitOf(cgroup)
		}
		holds, err := holds(dir, devices)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Holder, err)
		}
		if !holds || w.Killed && killed(dir) {
			continue
		}
		if uid != "" {
			if pods == nil {
				pods = podNames(w.PodLogs)
			}
			if p.Pod = pods[uid]; p.Pod == "" {
				p.Pod = "uid " + uid
			}
		}
		if !w.tolerates(p) {
			found = append(found, p)
		}
	}
	return found, nil
}

// tolerates reports whether a process may hold devices. Its name alone says nothing: everybody chooses the names of their processes.
func (w *Watcher) tolerates(p process) bool {
	if p.Pod != "" {
		namespace, _, named := strings.Cut(p.Pod, "/")
		return named && slices.Contains(w.DriverNamespaces, namespace) && hasName(p.Command, w.Driver)
	}
	return slices.Contains(w.Services, p.unit) && hasName(p.Command, w.Driver) ||
		p.unit != "" && !runsForUsers(p.unit) && hasName(p.Command, w.Tolerate)
}

// runsForUsers reports whether processes of users are in a service: those of a user's own manager, and Slurm's jobs with cgroup v1.
func runsForUsers(unit string) bool {
	return strings.HasPrefix(unit, "user@") || unit == "slurmd.service"
}

// killed reports whether SIGKILL is on its way to a process: it hangs in the kernel, and what it did is lost whatever happens.
func killed(dir string) bool {
	threads, _ := filepath.Glob(filepath.Join(dir, "task/*/status")) // a good pattern
	return slices.ContainsFunc(append(threads, filepath.Join(dir, "status")), func(path string) bool {
		return procfs.PendingKill(procfs.Attribute(path))
	})
}

// holds reports whether the process of a folder of the proc filesystem keeps a device open. One that has ended does not. A process whose
// first thread has ended, while another hangs in the kernel, shows its files only in the folder of that thread.
func holds(dir string, devices []string) (bool, error) {
	held, files, err := holdsIn(dir, devices)
	if held || files > 0 || err != nil {
		return held, err
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	for _, thread := range threads {
		if held, _, err := holdsIn(filepath.Join(dir, "task", thread.Name()), devices); held || err != nil {
			return held, err
		}
	}
	return false, unlessGone(err)
}

// holdsIn is holds by the files of one folder, and their number.
func holdsIn(dir string, devices []string) (held bool, number int, err error) {
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	for _, file := range files {
		target, err := os.Readlink(filepath.Join(dir, "fd", file.Name()))
		if unlessGone(err) != nil {
			return false, len(files), err
		}
		if slices.ContainsFunc(devices, func(prefix string) bool { return strings.HasPrefix(target, prefix) }) {
			return true, len(files), nil
		}
	}
	return false, len(files), unlessGone(err)
}

// hasName reports whether a process has one of the names, which may be longer than the kernel keeps.
func hasName(name string, names []string) bool {
	return slices.ContainsFunc(names, func(n string) bool { return name == n[:min(15, len(n))] })
}

// inPod finds the UID in the path of a control group of a pod: .../pod<uid>/... or, of systemd, ...-pod<uid with _>.slice. That of a
// static pod is a hash.
var inPod = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12}|[0-9a-f]{32})\b`)

func podUID(cgroup string) string {
	m := inPod.FindStringSubmatch(cgroup)
	if m == nil {
		return ""
	}
	return strings.ReplaceAll(m[1], "_", "-")
}

// unitOf finds the systemd service of the host in the path of a control group: system.slice/name.service. Below anything but slices it is
// that of another manager, such as a user's or a container's. Seen from a container the path may begin with "..", cgroup_namespaces(7).
func unitOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		// hierarchy:controllers:path
		fields := strings.SplitN(strings.TrimSpace(line), ":", 3)
		for part := range strings.SplitSeq(fields[len(fields)-1], "/") {
			if strings.HasSuffix(part, ".service") {
				return part
			}
			if part != "" && part != ".." && !strings.HasSuffix(part, ".slice") {
				break
			}
		}
	}
	return ""
}

// podNames reads the names of this node's pods by UID from the folder of their logs: <namespace>_<name>_<uid>.
func podNames(folder string) map[string]string {
	names := map[string]string{}
	// Without it, pods are named by their UIDs.
	entries, _ := os.ReadDir(folder)
	for _, e := range entries {
		if parts := strings.Split(e.Name(), "_"); len(parts) == 3 {
			names[parts[2]] = parts[0] + "/" + parts[1]
		}
	}
	return names
}

// unlessGone returns an error, unless it says that a process, or its file, is not there any more.
func unlessGone(err error) error {
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
		return nil
	}
	return err
}
