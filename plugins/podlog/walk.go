package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"
)

// namespaces is the list of those whose pods' logs are read; "*" stands for all.
type namespaces []string

// checkNamespace refuses what would be more than one element of a path.
func checkNamespace(name string) error {
	if name == "" || strings.ContainsAny(name, "_/") {
		return fmt.Errorf("%q is no namespace", name)
	}
	return nil
}

func (n namespaces) has(name string) bool { return slices.Contains(n, name) || slices.Contains(n, "*") }

// logFile is one file of a container's log.
type logFile struct {
	// path is relative to the root of the pod logs.
	path string
	// workload is the pod's name without what changes with each restart.
	namespace, pod, workload, container string
	id                                  string
	size                                int64
	// rotated reports that nothing is written to it any more.
	rotated bool
}

// unread returns why the log could not be read, without the path, in which every pod has a name of its own.
func (l logFile) unread(err error) unread {
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		err = at.Err
	}
	return unread{subject(l.namespace, l.workload), err.Error()}
}

// episode is the episode of one line of the log.
func (l logFile) episode(m match, at time.Time) episode {
	return episode{
		Namespace: l.namespace, Workload: l.workload, Pattern: m.pattern, Xid: m.xid, Relayed: m.relayed,
		First: at, Last: at, Count: 1,
		Pod: l.pod, Container: l.container, Match: string(m.text[:min(len(m.text), maxMatch)]),
	}
}

// maxFiles bounds the state. A kubelet keeps a handful of logs for each of its at most some hundred pods.
const maxFiles = 8192

// logName is how the kubelet calls a container's logs: the number of the restart, and behind it the time of the rotation
// (kubernetes pkg/kubelet/logs/container_log_manager.go). It keeps the latest rotated log as it is until the next
// rotation, and checks for one every 10 s; the older ones, *.gz, were read before they were compressed.
var logName = regexp.MustCompile(`^[0-9]+\.log(\.[0-9]{8}-[0-9]{6})?$`)

// walker lists logs of pods and what it could not look into. Nothing outside of the root is opened: a link that leads out
// of it (such as those of cri-dockerd to /var/lib/docker) is refused by [os.Root] and reported.
type walker struct {
	root   *os.Root
	booted time.Time
	logs   []logFile
	failed []unread
}

// walk lists the logs of the namespaces' pods that were written to since the boot, laid out as
// <namespace>_<pod>_<uid>/<container>/<restart>.log.
func walk(root *os.Root, watched namespaces, booted time.Time) (logs []logFile, failed []unread, err error) {
	pods, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, nil, err
	}
	w := walker{root: root, booted: booted}
	for _, p := range pods {
		namespace, rest, _ := strings.Cut(p.Name(), "_")
		pod, _, found := strings.Cut(rest, "_")
		if found && watched.has(namespace) {
			w.pod(logFile{path: p.Name(), namespace: namespace, pod: pod, workload: workloadOf(pod)})
		}
	}
	if len(w.logs) > maxFiles {
		w.logs = w.logs[:maxFiles]
		w.failed = append(w.failed, unread{allLogs, fmt.Sprintf("more than %d of them", maxFiles)})
	}
	return w.logs, w.failed, nil
}

// pod adds the logs of a pod; l is what they have in common.
func (w *walker) pod(l logFile) {
	containers, err := fs.ReadDir(w.root.FS(), l.path)
	if err != nil {
		w.fail(l, err)
		return
	}
	for _, c := range containers {
		l := l
		l.container, l.path = c.Name(), path.Join(l.path, c.Name())
		files, err := fs.ReadDir(w.root.FS(), l.path)
		if err != nil {
			w.fail(l, err)
			continue
		}
		for _, f := range files {
			if name := logName.FindStringSubmatch(f.Name()); name != nil {
				l := l
				l.path, l.rotated = path.Join(l.path, f.Name()), name[1] != ""
				w.file(l)
			}
		}
	}
}

func (w *walker) file(l logFile) {
	info, err := w.root.Stat(l.path)
	if err != nil {
		w.fail(l, err)
		return
	}
	l.id, l.size = fileID(info), info.Size()
	if info.Mode().IsRegular() && !info.ModTime().Before(w.booted) {
		w.logs = append(w.logs, l)
	}
}

func (w *walker) fail(l logFile, err error) {
	// A pod may go at any time.
	if !errors.Is(err, fs.ErrNotExist) {
		w.failed = append(w.failed, l.unread(err))
	}
}

// fileID identifies a file by device and inode.
func fileID(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%x:%x", stat.Dev, stat.Ino)
}
