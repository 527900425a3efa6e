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

func (n *namespaces) String() string { return strings.Join(*n, ",") }

// Set parses a list separated by commas.
func (n *namespaces) Set(list string) error {
	*n = nil
	for name := range strings.SplitSeq(list, ",") {
		if name = strings.TrimSpace(name); name == "" || strings.ContainsAny(name, "_/") {
			return fmt.Errorf("%q is no namespace", name)
		}
		*n = append(*n, name)
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
	// rotated says that nothing is written to it any more.
	rotated bool
}

// episode is what one line of the log says.
func (l logFile) episode(m match, at time.Time) episode {
	return episode{
		Namespace: l.namespace, Workload: l.workload, Pattern: m.pattern, Xid: m.xid, Relayed: m.relayed,
		First: at, Last: at, Count: 1,
		Pod: l.pod, Container: l.container, Match: string(m.text[:min(len(m.text), maxMatch)]),
	}
}

// logName is how the kubelet calls a container's logs: the number of the restart, and behind it the time of the rotation
// (kubernetes pkg/kubelet/logs/container_log_manager.go). It keeps the latest rotated log as it is until the next
// rotation, and checks for one every 10 s; the older ones, *.gz, were read before they were compressed.
var logName = regexp.MustCompile(`^[0-9]+\.log(\.[0-9]{8}-[0-9]{6})?$`)

// walk lists the logs of the namespaces' pods that were written to since the boot, laid out as
// <namespace>_<pod>_<uid>/<container>/<restart>.log. Nothing outside of dir is opened: a link that leads out of it (such
// as those of cri-dockerd to /var/lib/docker) is refused by [os.Root] and reported.
func walk(dir string, wanted namespaces, booted time.Time) (logs []logFile, failed []unread, err error) {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, nil, err
	}
	defer root.Close()
	pods, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil, nil, err
	}
	ids := map[string]bool{}
	for _, p := range pods {
		namespace, rest, _ := strings.Cut(p.Name(), "_")
		pod, _, found := strings.Cut(rest, "_")
		if !found || !wanted.has(namespace) {
			continue
		}
		fail := func(err error) {
			// A pod may go at any time.
			if !errors.Is(err, fs.ErrNotExist) {
				failed = append(failed, unread{subject(namespace, workloadOf(pod)), reason(err)})
			}
		}
		containers, err := fs.ReadDir(root.FS(), p.Name())
		if err != nil {
			fail(err)
			continue
		}
		for _, c := range containers {
			dir := path.Join(p.Name(), c.Name())
			files, err := fs.ReadDir(root.FS(), dir)
			if err != nil {
				fail(err)
				continue
			}
			for _, f := range files {
				name := logName.FindStringSubmatch(f.Name())
				if name == nil {
					continue
				}
				l := logFile{
					path: path.Join(dir, f.Name()), namespace: namespace, pod: pod, workload: workloadOf(pod), container: c.Name(),
					rotated: name[1] != "",
				}
				info, err := root.Stat(l.path)
				if err != nil {
					fail(err)
					continue
				}
				l.id, l.size = fileID(info), info.Size()
				if !info.Mode().IsRegular() || info.ModTime().Before(booted) || ids[l.id] {
					continue
				}
				if len(logs) == maxFiles {
					return logs, append(failed, unread{allLogs, fmt.Sprintf("more than %d of them", maxFiles)}), nil
				}
				ids[l.id] = true
				logs = append(logs, l)
			}
		}
	}
	return logs, failed, nil
}

// fileID identifies a file by device and inode.
func fileID(info fs.FileInfo) string {
	stat := info.Sys().(*syscall.Stat_t)
	return fmt.Sprintf("%x:%x", stat.Dev, stat.Ino)
}

// reason is an error without the path, in which every pod has a name of its own.
func reason(err error) string {
	if at := (*fs.PathError)(nil); errors.As(err, &at) {
		return at.Err.Error()
	}
	return err.Error()
}
