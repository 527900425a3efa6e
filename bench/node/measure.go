package main

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// variant is one set of programs that watches the node. Each of its programs runs in a cgroup of its own below group.
type variant struct {
	name, dir, group string
	args, env        []string
	// plugins are the programs that NPD starts, each a file in dir.
	plugins []string
	// inits is the file that the stand-in opens at every nvmlInit.
	inits string

	process *exec.Cmd
	// ended is closed when process has ended, with err.
	ended  chan struct{}
	opens  *opens
	before map[string]time.Duration
	pss    []int64

	length time.Duration
	// cpu and starts are those of the whole measurement, by program.
	cpu    map[string]time.Duration
	starts map[string]int
}

func (v *variant) makeGroup(program string) error {
	return os.MkdirAll(filepath.Join(v.group, program), 0o755)
}

func (v *variant) procs(program string) string {
	return filepath.Join(v.group, program, "cgroup.procs")
}

func (v *variant) start() error {
	log, err := os.Create(filepath.Join(v.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	// The execution of a program opens its file, whoever starts it.
	watched := []string{v.inits}
	for _, plugin := range v.plugins {
		watched = append(watched, filepath.Join(v.dir, plugin))
	}
	if v.opens, err = watch(watched); err != nil {
		return err
	}
	v.process = exec.Command(v.args[0], v.args[1:]...) //nolint:noctx // ended by close, with all that it started
	v.process.Env = append(os.Environ(), v.env...)
	v.process.Stdout, v.process.Stderr = log, log
	if err := v.process.Start(); err != nil {
		return err
	}
	v.ended = make(chan struct{})
	go func() {
		_ = v.process.Wait() // its state says how it ended
		close(v.ended)
	}()
	return nil
}

// running returns an error if the program has ended, with the end of what it printed: what ended costs nothing.
func (v *variant) running() error {
	select {
	case <-v.ended:
	default:
		return nil
	}
	log, _ := os.ReadFile(filepath.Join(v.dir, "log"))
	lines := strings.Split(strings.TrimSpace(string(log)), "\n")
	return fmt.Errorf("it has ended (%s), its last line is %q", v.process.ProcessState, lines[len(lines)-1])
}

// begin starts the measurement.
func (v *variant) begin() (err error) {
	if err := v.running(); err != nil {
		return err
	}
	v.opens.take()
	v.before, err = v.usage()
	return err
}

// sample notes the memory now.
func (v *variant) sample() error {
	if err := v.running(); err != nil {
		return err
	}
	groups, err := os.ReadDir(v.group)
	if err != nil {
		return err
	}
	var sum int64
	for _, g := range groups {
		if !g.IsDir() {
			continue
		}
		pids, err := os.ReadFile(v.procs(g.Name()))
		if err != nil {
			return err
		}
		for pid := range strings.FieldsSeq(string(pids)) {
			sum += pss(pid)
		}
	}
	v.pss = append(v.pss, sum)
	return nil
}

// pss is the proportional set size of a process in bytes, proc_pid_smaps_rollup(5); 0 when it has ended.
func pss(pid string) int64 {
	data, err := os.ReadFile(filepath.Join("/proc", pid, "smaps_rollup"))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if text, found := strings.CutPrefix(line, "Pss:"); found {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(text), " kB"), 10, 64)
			if err != nil {
				return 0
			}
			return kib << 10
		}
	}
	return 0
}

// end ends the measurement.
func (v *variant) end(length time.Duration) error {
	if err := v.running(); err != nil {
		return err
	}
	after, err := v.usage()
	if err != nil {
		return err
	}
	v.length, v.cpu, v.starts = length, map[string]time.Duration{}, map[string]int{}
	for program, total := range after {
		v.cpu[program] = total - v.before[program]
	}
	for path, n := range v.opens.take() {
		v.starts[filepath.Base(path)] = n
	}
	return nil
}

// usage is the CPU time of each program so far, with all processes that it had.
func (v *variant) usage() (map[string]time.Duration, error) {
	files, err := filepath.Glob(filepath.Join(v.group, "*/cpu.stat"))
	if err != nil {
		return nil, err
	}
	usage := map[string]time.Duration{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		var micro int64
		if _, err := fmt.Sscanf(string(data), "usage_usec %d", &micro); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		usage[filepath.Base(filepath.Dir(file))] = time.Duration(micro) * time.Microsecond
	}
	return usage, nil
}

// npdResult is the line that NPD logs at -v=2 about a run of a plugin that did not exit with 0.
var npdResult = regexp.MustCompile(`ExitStatus:(\d+) Message:(.*)} for rule`)

// unhealthy returns the answers that NPD got other than "healthy", each once.
func (v *variant) unhealthy() (answers []string) {
	log, err := os.ReadFile(filepath.Join(v.dir, "log"))
	if err != nil {
		return []string{err.Error()}
	}
	for line := range strings.Lines(string(log)) {
		if match := npdResult.FindStringSubmatch(line); match != nil {
			answers = append(answers, "exit "+match[1]+": "+match[2])
		}
	}
	slices.Sort(answers)
	return slices.Compact(answers)
}

// close ends all processes of the variant and removes its cgroups.
func (v *variant) close() (err error) {
	groups, _ := filepath.Glob(filepath.Join(v.group, "*"))
	for _, group := range groups {
		if info, statErr := os.Stat(group); statErr != nil || !info.IsDir() {
			continue
		}
		err = errors.Join(err, os.WriteFile(filepath.Join(group, "cgroup.kill"), []byte("1"), 0))
	}
	if v.ended != nil {
		<-v.ended // it was killed
	}
	if v.opens != nil {
		err = errors.Join(err, v.opens.close())
	}
	for _, dir := range append(groups, v.group, filepath.Dir(v.group)) {
		// The processes that were killed leave their group a moment later.
		for range 100 {
			removeErr := os.Remove(dir)
			if !errors.Is(removeErr, syscall.EBUSY) {
				break
			}
			<-time.After(10 * time.Millisecond)
		}
	}
	return err
}

// cgroups returns where the hierarchy of version 2 is mounted, cgroups(7).
func cgroups() (string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer mounts.Close()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return fields[1], nil
		}
	}
	return "", fmt.Errorf("find the mount of cgroup2: %w", fs.ErrNotExist)
}

// opens counts how often files are opened, by path.
type opens struct {
	file  *os.File
	paths map[int32]string
	taken chan chan map[string]int
}

func watch(paths []string) (*opens, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("inotify: %w", err)
	}
	o := &opens{file: os.NewFile(uintptr(fd), "inotify"), paths: map[int32]string{}, taken: make(chan chan map[string]int)}
	for _, path := range paths {
		wd, err := unix.InotifyAddWatch(fd, path, unix.IN_OPEN)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("watch %s: %w", path, err), o.file.Close())
		}
		o.paths[int32(wd)] = path
	}
	events := make(chan string)
	go o.read(events)
	go o.count(events)
	return o, nil
}

// read gives the path of each event of inotify(7).
func (o *opens) read(events chan<- string) {
	defer close(events)
	buf := make([]byte, 64<<10)
	for {
		n, err := o.file.Read(buf)
		if err != nil {
			return
		}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			event := buf[at:]
			events <- o.paths[int32(binary.NativeEndian.Uint32(event))]
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(event[12:]))
		}
	}
}

func (o *opens) count(events <-chan string) {
	counts := map[string]int{}
	for {
		select {
		case path, ok := <-events:
			if !ok {
				return
			}
			counts[path]++
		case to := <-o.taken:
			to <- counts
			counts = map[string]int{}
		}
	}
}

// take returns the counts since the last call.
func (o *opens) take() map[string]int {
	to := make(chan map[string]int)
	o.taken <- to
	return <-to
}

func (o *opens) close() error { return o.file.Close() }
