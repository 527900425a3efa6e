package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
	"github.com/pitcrew-dev/pitcrew/internal/podresources"
	"github.com/pitcrew-dev/pitcrew/internal/procfs"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// Faults are those of this look, with the uptime since which they last.
	Faults []fault      `json:"faults"`
	Unread []npd.Unread `json:"unread,omitempty"`
	Unkept string       `json:"unkept,omitempty"`
	// Tasks is the number of containers, Holders that of the pods that hold GPUs.
	Tasks   int `json:"tasks"`
	Holders int `json:"holders"`
}

// fault is what is wrong with one container.
type fault struct {
	Kind    kind          `json:"kind"`
	Subject string        `json:"subject"`
	Text    string        `json:"text"`
	Since   time.Duration `json:"since"`
}

type kind string

const (
	lostGPU   kind = "lost-gpu"
	leaked    kind = "leaked-shim"
	uncleaned kind = "uncleaned-task"
	unending  kind = "unending-process"
)

// mostFaults bounds what is remembered.
const mostFaults = 64

type reader struct {
	plugin                          *npd.Plugin
	procfs, cgroups, tasks, kubelet string
	store                           npd.Store[[]fault]
}

// task is one bundle of containerd: a container, or the sandbox of a pod.
type task struct {
	ID string
	// Pod is namespace/name, Container the name in the pod, "" for the sandbox.
	Pod, Container string
	// PID is that of the first process, 0 while there is none.
	PID int
	// Cgroup is the path below that of a hierarchy.
	Cgroup string
}

func (t task) subject() string { return "pod " + t.Pod }

func (t task) name() string {
	if t.Container == "" {
		return "its sandbox"
	}
	return "container " + t.Container
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := r.store.Open(r.procfs, r.plugin.StateDir, "containers")
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, Faults: []fault{}}
	tasks, err := r.readTasks(&s)
	if err != nil {
		return snapshot{}, err
	}
	s.Tasks = len(tasks)
	r.uncleaned(&s, tasks)
	if err := r.processes(&s, tasks); err != nil {
		return snapshot{}, err
	}
	if r.kubelet != "" {
		r.gpus(ctx, &s, tasks)
	}
	same := func(b, f fault) bool { return b.Kind == f.Kind && b.Subject == f.Subject && b.Text == f.Text }
	if err := npd.Lasting(&r.store, r.plugin, s.Faults, same, func(f *fault) *time.Duration { return &f.Since }); err != nil {
		s.Unkept = err.Error()
	}
	return s, nil
}

func (s *snapshot) add(k kind, subject, text string) {
	f := fault{k, subject, text, s.Boot.Uptime}
	if len(s.Faults) < mostFaults && !slices.Contains(s.Faults, f) {
		s.Faults = append(s.Faults, f)
	}
}

// readTasks reads containerd's bundles, each with the configuration of the OCI runtime and the number of the first process.
func (r *reader) readTasks(s *snapshot) (tasks []task, err error) {
	entries, err := os.ReadDir(r.tasks)
	if err != nil {
		return nil, fmt.Errorf("no containerd with pods here: %w", err)
	}
	for _, entry := range entries {
		t, err := readTask(filepath.Join(r.tasks, entry.Name()))
		switch {
		case os.IsNotExist(err): // it is being made or removed
		case err != nil:
			s.Unread = append(s.Unread, npd.Unread{Subject: "container " + short(entry.Name()), Why: err.Error()})
		default:
			tasks = append(tasks, t)
		}
	}
	return tasks, nil
}

// readTask reads the annotations of containerd's CRI plugin (pkg/cri/annotations) and nothing else: the configuration has secrets, too.
func readTask(dir string) (task, error) {
	file, err := os.Open(filepath.Join(dir, "config.json"))
	if err != nil {
		return task{}, err
	}
	defer file.Close()
	var config struct {
		Annotations map[string]string `json:"annotations"`
		Linux       struct {
			CgroupsPath string `json:"cgroupsPath"`
		} `json:"linux"`
	}
	const most = 4 << 20
	if err := json.NewDecoder(io.LimitReader(file, most)).Decode(&config); err != nil {
		return task{}, fmt.Errorf("%s: %w", file.Name(), err)
	}
	cri := func(name string) string { return config.Annotations["io.kubernetes.cri."+name] }
	t := task{ID: filepath.Base(dir), Container: cri("container-name"), Cgroup: cgroupOf(config.Linux.CgroupsPath)}
	if t.Pod = cri("sandbox-namespace") + "/" + cri("sandbox-name"); t.Pod == "/" {
		return task{}, fmt.Errorf("%s does not name its pod", file.Name())
	}
	data, err := os.ReadFile(filepath.Join(dir, "init.pid"))
	if os.IsNotExist(err) {
		return t, nil // not started yet
	}
	if err == nil {
		t.PID, err = strconv.Atoi(strings.TrimSpace(string(data)))
	}
	return t, err
}

// cgroupOf returns the folder of a cgroupsPath of the OCI runtime: runc's "slice:prefix:name" for systemd, in which each dash of the slice
// is a level (systemd.slice(5)), or the folder itself.
func cgroupOf(path string) string {
	parts := strings.Split(path, ":")
	if len(parts) != 3 {
		return path
	}
	slice, folder := strings.TrimSuffix(parts[0], ".slice"), ""
	for i, c := range slice + "-" {
		if c == '-' && i > 0 {
			folder = filepath.Join(folder, slice[:i]+".slice")
		}
	}
	return filepath.Join(folder, parts[1]+"-"+parts[2]+".scope")
}

// short is how crictl shows an id.
func short(id string) string { return id[:min(len(id), 13)] }

// uncleaned reports the containers that have ended and that containerd still has.
func (r *reader) uncleaned(s *snapshot, tasks []task) {
	var ended []task
	started := 0
	for _, t := range tasks {
		if t.PID == 0 {
			continue
		}
		if started++; r.ended(t) {
			ended = append(ended, t)
		}
	}
	if started > 0 && len(ended) == started {
		why := "none of them is in " + r.procfs + ", which may be that of another PID namespace"
		s.Unread = append(s.Unread, npd.Unread{Subject: "containers", Why: why})
		return
	}
	for _, t := range ended {
		s.add(uncleaned, t.subject(), t.name()+" has ended, but its shim has not cleaned up")
	}
}

// ended reports whether the first process of a task is gone, or a zombie that no one waits for.
func (r *reader) ended(t task) bool {
	dir := filepath.Join(r.procfs, strconv.Itoa(t.PID))
	data, err := os.ReadFile(filepath.Join(dir, "stat"))
	if err != nil {
		return os.IsNotExist(err)
	}
	stat := procfs.ParseStat(string(data))
	return stat.State == "Z" && stat.Threads <= 1
}

// gpuFile is the name of a GPU's device file.
var gpuFile = regexp.MustCompile(`^nvidia[0-9]{1,4}$`)

// gpus looks for containers of pods that hold GPUs, have the device files, and may not open them.
func (r *reader) gpus(ctx context.Context, s *snapshot, tasks []task) {
	pods, err := podresources.Holders(ctx, r.kubelet, "nvidia.com/")
	if err != nil {
		s.Unread = append(s.Unread, npd.Unread{Subject: "pods with GPUs", Why: err.Error()})
		return
	}
	s.Holders = len(pods)
	for _, t := range tasks {
		dir := filepath.Join(r.procfs, strconv.Itoa(t.PID))
		// The number may be another process's by now.
		if t.PID == 0 || !slices.Contains(pods, t.Pod) || !strings.Contains(procfs.Attribute(filepath.Join(dir, "cgroup")), t.ID) {
			continue
		}
		files, _ := filepath.Glob(filepath.Join(dir, "root/dev/nvidia[0-9]*"))
		if len(files) == 0 {
			continue // a container of that pod without GPUs
		}
		rules, err := r.rules(t.Cgroup)
		var refused []string
		if err == nil {
			refused, err = refusedGPUs(files, rules)
		}
		if err != nil {
			s.Unread = append(s.Unread, npd.Unread{Subject: t.subject(), Why: t.name() + ": " + err.Error()})
		}
		if len(refused) > 0 {
			s.add(lostGPU, t.subject(), fmt.Sprintf("%s may no longer open %s: denied by the device rules of its cgroup, "+
				"as after a reload of systemd", t.name(), named(refused)))
		}
	}
}

// refusedGPUs returns the device files, as their container names them, that the rules deny, those before an error of the rules included.
// What has another name than a GPU has, or is no character device, is left out: a container may make files in its /dev.
func refusedGPUs(files []string, rules verdict) (refused []string, err error) {
	slices.SortFunc(files, func(a, b string) int { return cmp.Or(cmp.Compare(len(a), len(b)), cmp.Compare(a, b)) })
	for _, file := range files {
		var st unix.Stat_t
		if !gpuFile.MatchString(filepath.Base(file)) || unix.Lstat(file, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		allowed, err := rules(unix.Major(st.Rdev), unix.Minor(st.Rdev))
		if err != nil {
			return refused, err
		}
		if !allowed {
			refused = append(refused, "/dev/"+filepath.Base(file))
		}
	}
	return refused, nil
}

// named returns the first of some files, and how many others there are: a reload denies all GPUs of a container.
func named(files []string) string {
	if len(files) == 1 {
		return files[0]
	}
	return fmt.Sprintf("%s and %d more", files[0], len(files)-1)
}
