package main

import (
	"slices"

	"github.com/pitcrew-dev/pitcrew/internal/procfs"
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
	// Layers is where an overlay keeps what is written to it.
	Layers string `json:"layers,omitempty"`
	// ofContainer: it is the root of a container.
	ofContainer bool
}

// parseMount reads one line.
func parseMount(line string) (mount, error) {
	shown, err := procfs.ParseMount(line)
	if err != nil {
		return mount{}, err
	}
	m := mount{
		Point: shown.Point, Device: shown.Device, Type: shown.Type, Source: shown.Source,
		ReadOnly:      slices.Contains(shown.Options, "ro"),
		SuperReadOnly: slices.Contains(shown.Super, "ro"),
		RemountRO:     slices.Contains(shown.Super, "errors=remount-ro"),
		Layers:        shown.Layers(), ofContainer: shown.OfContainer(),
	}
	for _, option := range shown.Super {
		if option == "emergency_ro" || option == "shutdown" {
			m.Word = option
		}
	}
	return m, nil
}
