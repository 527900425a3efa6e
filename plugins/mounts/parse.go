package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// mount is one line of /proc/PID/mountinfo, proc_pid_mountinfo(5).
type mount struct {
	Point string `json:"point"`
	// Device is major:minor, Type the filesystem's, Source what was mounted.
	Device string `json:"device"`
	Type   string `json:"type"`
	Source string `json:"source"`
	// ReadOnly is the option of this mount, SuperReadOnly that of the filesystem. A mount made
	// read-only has both; the kernel, which gives up writing to a broken disk (errors=remount-ro), sets only the latter.
	ReadOnly      bool `json:"readOnly"`
	SuperReadOnly bool `json:"superReadOnly"`
	// Word is the option by which a filesystem that is still "rw" says that it gave up writing: emergency_ro or shutdown (ext4 of kernel
	// 6.15, fs/ext4/super.c).
	Word string `json:"word,omitempty"`
	// Errors: ext4 had an error since the boot, and does not write after one. Unsure says why that is not known.
	Errors bool   `json:"errors,omitempty"`
	Unsure string `json:"unsure,omitempty"`
	// RemountRO: an error makes the filesystem read-only.
	RemountRO bool `json:"remountRO,omitempty"`
	// Layers says where an overlay keeps what is written to it.
	Layers string `json:"layers,omitempty"`
}

// ofContainer reports whether this is the root of a container, as containerd, Docker and CRI-O make them.
func (m mount) ofContainer() bool {
	return m.Point == "/" && m.Type == "overlay" && runtimeDir.MatchString(m.Layers)
}

var runtimeDir = regexp.MustCompile(`containerd|docker|containers/storage`)

// parseMount reads one line.
func parseMount(line string) (mount, error) {
	fields := strings.Fields(line)
	dash := slices.Index(fields, "-")
	if dash < 6 || len(fields) < dash+4 {
		return mount{}, fmt.Errorf("malformed mountinfo line %.200q", line)
	}
	super := strings.Split(fields[dash+3], ",")
	m := mount{
		Point: unescape(fields[4]), Device: fields[2], Type: fields[dash+1], Source: unescape(fields[dash+2]),
		ReadOnly:      slices.Contains(strings.Split(fields[5], ","), "ro"),
		SuperReadOnly: slices.Contains(super, "ro"),
		RemountRO:     slices.Contains(super, "errors=remount-ro"),
	}
	for _, option := range super {
		if option == "emergency_ro" || option == "shutdown" {
			m.Word = option
		}
		if layers, found := strings.CutPrefix(option, "upperdir="); found {
			m.Layers = unescape(layers)
		}
	}
	return m, nil
}

// unescape undoes the kernel's octal escapes of space, tab, newline and backslash.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
