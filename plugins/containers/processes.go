package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// bundle is where a shim works; the kernel marks a folder that was removed. The first group is the namespace of containerd.
var bundle = regexp.MustCompile(`io\.containerd\.runtime\.v2\.task/([^/]+)/([^/ ]+)( \(deleted\))?$`)

// idInCgroup finds the container of a cgroup.
var idInCgroup = regexp.MustCompile(`[0-9a-f]{64}`)

// processes looks for shims that containerd has forgotten, and for processes that were killed and do not end. It reads nothing that waits
// for a process's memory, as its command line does: that of a process that sleeps in the kernel may never come.
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
		stat := attribute(filepath.Join(dir, "stat")) // it may end at any moment
		state, threads := stateOf(stat)
		// The kernel keeps 15 characters of a name.
		if strings.Contains(stat, "(containerd-shim") {
			r.shim(s, dir)
		}
		if state == "D" || state == "Z" && threads > 1 {
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
	if err != nil || m == nil || m[1] != filepath.Base(r.tasks) || m[3] == "" || inPod(dir) {
		return
	}
	s.add(leaked, "shim of "+short(m[2]), "containerd has removed its sandbox, and it still runs")
}

func inPod(dir string) bool {
	return strings.Contains(attribute(filepath.Join(dir, "cgroup")), "kubepods")
}

// killed reports a process of a container with a thread that sleeps in the kernel although SIGKILL is pending.
func (r *reader) killed(s *snapshot, dir string, tasks []task) {
	threads, _ := filepath.Glob(filepath.Join(dir, "task/[0-9]*"))
	i := slices.IndexFunc(threads, unkillable)
	if i < 0 {
		return
	}
	id := idInCgroup.FindString(attribute(filepath.Join(dir, "cgroup")))
	if id == "" {
		return
	}
	subject, name := "container "+short(id), "it"
	if j := slices.IndexFunc(tasks, func(t task) bool { return t.ID == id }); j >= 0 {
		subject, name = tasks[j].subject(), tasks[j].name()
	}
	in := ""
	if wchan := attribute(filepath.Join(threads[i], "wchan")); function.MatchString(wchan) {
		in = " in " + wchan
	}
	s.add(unending, subject, fmt.Sprintf("%s was killed, and a process of it sleeps in the kernel%s", name, in))
}

// function is what proc_pid_wchan(5) shows to those who may see it; others get 0.
var function = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]{0,60}$`)

func unkillable(thread string) bool {
	if state, _ := stateOf(attribute(filepath.Join(thread, "stat"))); state != "D" {
		return false
	}
	const kill = 1 << (9 - 1)
	for line := range strings.Lines(attribute(filepath.Join(thread, "status"))) {
		name, mask, _ := strings.Cut(line, ":")
		if name != "SigPnd" && name != "ShdPnd" {
			continue
		}
		if pending, err := strconv.ParseUint(strings.TrimSpace(mask), 16, 64); err == nil && pending&kill != 0 {
			return true
		}
	}
	return false
}
