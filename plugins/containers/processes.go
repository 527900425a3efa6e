package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/procfs"
)

// bundle is where a shim works; the kernel marks a folder that was removed. The first group is the namespace of containerd.
var bundle = regexp.MustCompile(`io\.containerd\.runtime\.v2\.task/([^/]+)/([^/ ]+)( \(deleted\))?$`)

// idInCgroup finds the container of a cgroup.
var idInCgroup = regexp.MustCompile(`[0-9a-f]{64}`)

// processes looks for shims that containerd has forgotten, and for processes that were killed and do not end. None of this
// waits for the memory of a process.
func (r *reader) processes(s *snapshot, tasks []task) error {
	entries, err := os.ReadDir(r.procfs)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if _, err := strconv.Atoi(entry.Name()); err != nil {
			continue
		}
		dir := filepath.Join(r.procfs, entry.Name())
		text := procfs.Attribute(filepath.Join(dir, "stat"))
		// The kernel keeps 15 characters of a name.
		if strings.Contains(text, "(containerd-shim") {
			r.shim(s, dir)
		}
		if stat := procfs.ParseStat(text); stat.State == "D" || stat.State == "Z" && stat.Threads > 1 {
			r.killed(s, dir, tasks)
		}
	}
	return nil
}

// shim reports one whose bundle was removed. containerd removes that after the shim has ended.
func (r *reader) shim(s *snapshot, dir string) {
	cwd, err := os.Readlink(filepath.Join(dir, "cwd"))
	m := bundle.FindStringSubmatch(cwd)
	// A pod's process may have any name.
	if err != nil || m == nil || m[1] != filepath.Base(r.tasks) || m[3] == "" || procfs.InPod(dir) {
		return
	}
	s.add(leaked, "shim of "+short(m[2]), "containerd has removed its sandbox, and it still runs")
}

// killed reports a process of a container with a thread that sleeps in the kernel although SIGKILL is pending.
func (r *reader) killed(s *snapshot, dir string, tasks []task) {
	threads, _ := filepath.Glob(filepath.Join(dir, "task/[0-9]*"))
	i := slices.IndexFunc(threads, unkillable)
	if i < 0 {
		return
	}
	id := idInCgroup.FindString(procfs.Attribute(filepath.Join(dir, "cgroup")))
	if id == "" {
		return
	}
	subject, name := "container "+short(id), "it"
	if j := slices.IndexFunc(tasks, func(t task) bool { return t.ID == id }); j >= 0 {
		subject, name = tasks[j].subject(), tasks[j].name()
	}
	in := ""
	if wchan := procfs.Wchan(threads[i]); wchan != "" {
		in = " in " + wchan
	}
	s.add(unending, subject, fmt.Sprintf("%s was killed, and a process of it sleeps in the kernel%s", name, in))
}

func unkillable(thread string) bool {
	return procfs.ParseStat(procfs.Attribute(filepath.Join(thread, "stat"))).State == "D" &&
		procfs.PendingKill(procfs.Attribute(filepath.Join(thread, "status")))
}
