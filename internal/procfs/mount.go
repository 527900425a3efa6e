package procfs

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Mount is one line of /proc/PID/mountinfo, proc_pid_mountinfo(5).
type Mount struct {
	// Device is major:minor, Type the filesystem's, Source what was mounted.
	Point, Device, Type, Source string
	// Options are those of this mount, Super those of the filesystem.
	Options, Super []string
}

// ParseMount reads one line.
func ParseMount(line string) (Mount, error) {
	fields := strings.Fields(line)
	dash := slices.Index(fields, "-")
	if dash < 6 || len(fields) < dash+4 {
		return Mount{}, fmt.Errorf("malformed mountinfo line %.200q", line)
	}
	return Mount{
		Point: unescape(fields[4]), Device: fields[2], Type: fields[dash+1], Source: unescape(fields[dash+2]),
		Options: strings.Split(fields[5], ","), Super: strings.Split(fields[dash+3], ","),
	}, nil
}

// Layers returns where an overlay keeps what is written to it; "" for other filesystems.
func (m Mount) Layers() string {
	layers := ""
	for _, option := range m.Super {
		if text, found := strings.CutPrefix(option, "upperdir="); found {
			layers = unescape(text)
		}
	}
	return layers
}

// OfContainer reports whether this is the root of a container, as containerd, Docker and CRI-O make them.
func (m Mount) OfContainer() bool {
	return m.Point == "/" && m.Type == "overlay" && runtimeDir.MatchString(m.Layers())
}

var runtimeDir = regexp.MustCompile(`containerd|docker|containers/storage`)

// unescape undoes the kernel's octal escapes of space, tab, newline and backslash.
var unescape = strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace
