package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/procfs"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// Kubelet is the kubelet's root directory.
	Kubelet string  `json:"kubelet"`
	Mounts  []mount `json:"mounts"`
	// Left is how many filesystems were not asked, because there are too many.
	Left    int     `json:"left,omitempty"`
	Asleep  []sleep `json:"asleep"`
	Unread  string  `json:"unread,omitempty"`
	Unkept  string  `json:"unkept,omitempty"`
	Unknown int     `json:"unknown,omitempty"`
}

// mount is one filesystem of a server, at the first of its mount points.
type mount struct {
	Point  string `json:"point"`
	Type   string `json:"type"`
	Source string `json:"source"`
	answer
}

type reader struct {
	plugin                *npd.Plugin
	procfs, root, kubelet string
	types, services       []string
	store                 npd.Store[[]sleep]
}

// mostMounts bounds the processes that one look starts.
const mostMounts = 64

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := r.store.Open(r.procfs, r.plugin.StateDir, "hung")
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, Kubelet: filepath.Clean(r.kubelet)}
	if s.Mounts, s.Unknown, err = r.mounts(); err != nil {
		return snapshot{}, err
	}
	if s.Left = len(s.Mounts) - mostMounts; s.Left > 0 {
		s.Mounts = s.Mounts[:mostMounts]
	}
	s.Left = max(s.Left, 0)
	if err := os.MkdirAll(r.plugin.StateDir, 0o755); err != nil {
		return snapshot{}, err
	}
	root := cmp.Or(r.root, filepath.Join(r.procfs, "1/root"))
	var questions []question
	for _, m := range s.Mounts {
		questions = append(questions, start(r.plugin.StateDir, filepath.Join(root, m.Point), m.Type+" "+m.Source, b.Uptime))
	}
	s.Asleep, s.Unread, s.Unkept = r.asleep(b.Uptime)
	ctx, cancel := context.WithTimeout(ctx, r.plugin.Timeout/2)
	defer cancel()
	for i, q := range questions {
		s.Mounts[i].answer = q.answer(ctx)
	}
	return s, nil
}

// mounts returns the filesystems of servers in the mount table of process 1, each source once: proc_pid_mountinfo(5). unknown is the number
// of lines that were not understood.
func (r *reader) mounts() (mounts []mount, unknown int, err error) {
	file := filepath.Join(r.procfs, "1/mountinfo")
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, err
	}
	mounts = []mount{}
	last := map[string]int{} // by mount point: a later mount hides the others
	for line := range strings.Lines(string(data)) {
		shown, err := procfs.ParseMount(line)
		if err != nil {
			unknown++
			continue
		}
		if shown.OfContainer() {
			return nil, 0, fmt.Errorf("%s is a container's: use the host's PID namespace, or mount its proc and say where with -procfs", file)
		}
		m := mount{Point: shown.Point, Type: shown.Type, Source: shown.Source}
		last[m.Point] = len(mounts)
		mounts = append(mounts, m)
	}
	if len(mounts) == 0 {
		return nil, 0, fmt.Errorf("no mount in %s", file)
	}
	var asked []mount
	for i, m := range mounts {
		again := func(other mount) bool { return other.Type == m.Type && other.Source == m.Source }
		if slices.Contains(r.types, m.Type) && last[m.Point] == i && !slices.ContainsFunc(asked, again) {
			asked = append(asked, m)
		}
	}
	return asked, unknown, nil
}

// sleep is a thread of a service that sleeps in the kernel, without a break since the uptime Since.
type sleep struct {
	Service string        `json:"service"`
	Thread  string        `json:"thread"`
	Since   time.Duration `json:"since"`
	// Switches are the lines of the thread's context switches: a thread that has run since has more.
	Switches string `json:"switches"`
	// In is the kernel's function that it sleeps in, "" where that is not shown.
	In string `json:"in,omitempty"`
}

// mostAsleep bounds the state.
const mostAsleep = 64

// asleep returns the threads of the services in state D, and since when. unkept says why that was not kept between runs.
func (r *reader) asleep(uptime time.Duration) (now []sleep, unread, unkept string) {
	now = []sleep{}
	comms, err := filepath.Glob(filepath.Join(r.procfs, "[0-9]*/comm"))
	if err != nil || len(comms) == 0 {
		return now, "no processes in " + r.procfs, ""
	}
	for _, comm := range comms {
		service := procfs.Attribute(comm)
		// A tenant's process may have any name.
		if !slices.Contains(r.services, service) || procfs.InPod(filepath.Dir(comm)) {
			continue
		}
		tasks, _ := filepath.Glob(filepath.Join(filepath.Dir(comm), "task/[0-9]*"))
		for _, task := range tasks {
			if s, ok := inKernel(task); ok && len(now) < mostAsleep {
				s.Service, s.Since = service, uptime
				now = append(now, s)
			}
		}
	}
	same := func(b, s sleep) bool { return b.Thread == s.Thread && b.Switches == s.Switches }
	if err := npd.Lasting(&r.store, r.plugin, now, same, func(s *sleep) *time.Duration { return &s.Since }); err != nil {
		unkept = err.Error()
	}
	return now, "", unkept
}

// inKernel reads whether a thread is in state D. A thread may end at any moment.
func inKernel(task string) (sleep, bool) {
	stat := procfs.ParseStat(procfs.Attribute(filepath.Join(task, "stat")))
	if stat.State != "D" {
		return sleep{}, false
	}
	s := sleep{Thread: filepath.Base(task) + " of " + stat.Start, In: procfs.Wchan(task)}
	for line := range strings.Lines(procfs.Attribute(filepath.Join(task, "status"))) {
		if strings.Contains(line, "_ctxt_switches:") {
			s.Switches += strings.Join(strings.Fields(line), " ") + " "
		}
	}
	return s, s.Switches != ""
}
