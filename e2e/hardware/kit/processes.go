package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// process is a process with the device files that it holds.
type process struct {
	pid, command, exe string
	devices           []string
}

func (p process) String() string {
	text := fmt.Sprintf("%s (pid %s)", p.command, p.pid)
	if len(p.devices) > 0 {
		text += " holds " + strings.Join(p.devices, ", ")
	}
	return text
}

// programsIn lists the processes whose programs lie in a folder.
func programsIn(folder, devices string) []process {
	return processes(devices, func(p process) bool { return p.exe != "" && filepath.Dir(p.exe) == folder })
}

// holdersOf lists the processes that hold a device.
func holdersOf(devices string) []process {
	return processes(devices, func(p process) bool { return len(p.devices) > 0 })
}

// processes reads nothing that waits for a process: the command line of one that hangs in a driver may not be readable.
func processes(devices string, wanted func(process) bool) (found []process) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range all {
		p := process{pid: filepath.Base(dir)}
		var thread string
		p.exe, thread = living(dir)
		files, _ := os.ReadDir(filepath.Join(thread, "fd"))
		for _, file := range files {
			target, err := os.Readlink(filepath.Join(thread, "fd", file.Name()))
			if err == nil && strings.HasPrefix(target, devices) && !slices.Contains(p.devices, target) {
				p.devices = append(p.devices, target)
			}
		}
		if !wanted(p) {
			continue
		}
		name, _ := os.ReadFile(filepath.Join(dir, "comm"))
		p.command = strings.TrimSpace(string(name))
		found = append(found, p)
	}
	return found
}

// living returns the program of a process, "" if it has ended, and the folder of a thread that has not: the first one of a process that
// was killed may have ended, while another hangs in a driver and holds what the process had open.
func living(dir string) (exe, thread string) {
	if exe, err := os.Readlink(filepath.Join(dir, "exe")); err == nil {
		return exe, dir
	}
	threads, _ := filepath.Glob(filepath.Join(dir, "task", "[0-9]*"))
	for _, thread := range threads {
		if exe, err := os.Readlink(filepath.Join(thread, "exe")); err == nil {
			return exe, thread
		}
	}
	return "", dir
}
