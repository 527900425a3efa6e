package main

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
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/podresources"
	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
)

// process is a process that keeps a device file open.
type process struct {
	repairresult.Holder
	// unit is the systemd service that it belongs to, "" for none.
	unit string
}

// watcher looks for what holds the accelerators of the node.
type watcher struct {
	// devices are the beginnings of the paths of device files.
	devices []string
	// tolerate are names of programs whose processes may hold them.
	tolerate []string
	// resource is how the names of the vendor's extended resources begin.
	resource string
	// podResources is the kubelet's socket, podLogs the folder whose entries name pods with their UIDs.
	podResources, podLogs string
	// wait is how long it is waited until nobody holds a device.
	wait time.Duration
}

// idle returns nil when no process and no pod holds a device, and a refusal that names them if that does not happen in time. The
// processes of the services in units do not count.
func (w *watcher) idle(ctx context.Context, units []string) error {
	if err := onNode(); err != nil {
		return err
	}
	poll := time.NewTicker(500 * time.Millisecond)
	defer poll.Stop()
	for deadline := time.Now().Add(w.wait); ; {
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
	first, err := os.ReadFile(filepath.Join(procfs, "1/comm"))
	if err != nil {
		return refuse("the processes of the node cannot be read: %v", err)
	}
	// The first process of a PID namespace of a pod is the container's own or, if its containers share one, the pause container's.
	if os.Getpid() == 1 || strings.TrimSpace(string(first)) == "pause" {
		return refuse("the pod needs hostPID: true: which processes of the node hold a device is not known")
	}
	return nil
}

func (w *watcher) look(ctx context.Context, units []string) error {
	processes, err := w.processes()
	if err != nil {
		return refuse("which processes hold a device is not known: %v", err)
	}
	var holders []repairresult.Holder
	for _, p := range processes {
		if !slices.Contains(units, p.unit) || p.unit == "" {
			holders = append(holders, p.Holder)
		}
	}
	pods, err := podresources.Holders(ctx, w.podResources, w.resource)
	if err != nil {
		return refuse("which pods hold a device is not known: %v", err)
	}
	for _, pod := range pods {
		if !slices.ContainsFunc(holders, func(h repairresult.Holder) bool { return h.Pod == pod }) {
			holders = append(holders, repairresult.Holder{Pod: pod})
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
	return &refusal{message: "accelerators are held by " + strings.Join(names, ", "), holders: holders}
}

// processes lists the processes that keep a device open, other than this one.
func (w *watcher) processes() ([]process, error) {
	all, err := os.ReadDir(procfs)
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
		dir := filepath.Join(procfs, entry.Name())
		p := process{Holder: repairresult.Holder{PID: pid, Command: commandOf(dir)}}
		if tolerated(p.Command, w.tolerate) {
			continue
		}
		holds, err := w.holds(dir)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", p.Holder, err)
		}
		if !holds {
			continue
		}
		// Without it the process has ended.
		cgroup, _ := os.ReadFile(filepath.Join(dir, "cgroup"))
		uid := podUID(string(cgroup))
		if uid != "" {
			if pods == nil {
				pods = podNames(w.podLogs)
			}
			if p.Pod = pods[uid]; p.Pod == "" {
				p.Pod = "uid " + uid
			}
		} else {
			p.unit = unitOf(string(cgroup))
		}
		found = append(found, p)
	}
	return found, nil
}

// holds reports whether the process of a folder of the proc filesystem keeps a device open. One that has ended does not. A process whose
// first thread has ended, while another hangs in the kernel, shows its files only in the folder of that thread.
func (w *watcher) holds(dir string) (bool, error) {
	held, files, err := w.holdsIn(dir)
	if held || files > 0 || err != nil {
		return held, err
	}
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	for _, thread := range threads {
		if held, _, err := w.holdsIn(filepath.Join(dir, "task", thread.Name())); held || err != nil {
			return held, err
		}
	}
	return false, unlessGone(err)
}

// holdsIn is holds by the files of one folder, and their number.
func (w *watcher) holdsIn(dir string) (held bool, number int, err error) {
	files, err := os.ReadDir(filepath.Join(dir, "fd"))
	for _, file := range files {
		target, err := os.Readlink(filepath.Join(dir, "fd", file.Name()))
		if unlessGone(err) != nil {
			return false, len(files), err
		}
		if slices.ContainsFunc(w.devices, func(prefix string) bool { return strings.HasPrefix(target, prefix) }) {
			return true, len(files), nil
		}
	}
	return false, len(files), unlessGone(err)
}

// commandOf is the name of a process, at most 15 bytes.
func commandOf(dir string) string {
	name, _ := os.ReadFile(filepath.Join(dir, "comm"))
	return strings.TrimSpace(string(name))
}

// tolerated reports whether a process has one of the names, which may be longer than the kernel keeps.
func tolerated(name string, names []string) bool {
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

// unitOf finds the systemd service in the path of a control group.
func unitOf(cgroup string) string {
	for line := range strings.Lines(cgroup) {
		for part := range strings.SplitSeq(strings.TrimSpace(line), "/") {
			if strings.HasSuffix(part, ".service") {
				return part
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
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, errNoProcess) {
		return nil
	}
	return err
}
