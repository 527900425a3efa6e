package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// gaveUp reports whether the kernel no longer writes to the filesystem, although no one made it read-only.
func (m mount) gaveUp() bool { return m.SuperReadOnly || m.Word != "" || m.Errors }

// how returns the text of a filesystem that gave up.
func (m mount) how() string {
	switch {
	case m.SuperReadOnly:
		return "made read-only by the kernel"
	case m.Word != "":
		return "made read-only by the kernel: " + m.Word
	default:
		return "has had ext4 errors since the boot, and errors=remount-ro: the kernel no longer writes"
	}
}

// hasWords reports whether the kernel of this release shows in the mount table that ext4 gave up writing. Before 6.15, a filesystem with
// errors=remount-ro kept its "rw" since a change of 6.12, which older stable releases have, too (CVE-2024-50191).
func hasWords(release string) bool {
	var major, minor int
	n, err := fmt.Sscanf(release, "%d.%d", &major, &minor)
	return err == nil && n == 2 && (major > 6 || major == 6 && minor >= 15)
}

// askExt4 asks whether an ext4 filesystem had an error since the boot, where the mount table of this kernel cannot tell. The table has no
// errors=remount-ro where that is the superblock's default; /proc/fs/ext4 has. Other filesystems write on after an error, but not after
// their journal was aborted.
func (r *reader) askExt4(m *mount) {
	const notShown = "the mount table of this kernel does not show whether ext4 gave up writing"
	name := filepath.Base(m.Source)
	if _, minor, _ := strings.Cut(m.Device, ":"); strings.HasPrefix(m.Source, "/dev/mapper/") {
		name = "dm-" + minor
	}
	if link, err := os.Readlink(filepath.Join(r.sysfs, "dev/block", m.Device)); err == nil {
		name = filepath.Base(link)
	}
	options, _ := os.ReadFile(filepath.Join(r.procfs, "fs/ext4", name, "options"))
	remountRO := m.RemountRO || slices.Contains(strings.Fields(string(options)), "errors=remount-ro")
	last, err := readNumber(filepath.Join(r.sysfs, "fs/ext4", name, "last_error_time"))
	if err == nil && last == 0 {
		return
	}
	var booted uint64
	if err == nil {
		booted, err = bootTime(filepath.Join(r.procfs, "stat"))
	}
	switch {
	case err != nil && remountRO:
		m.Unsure = notShown + ", and " + err.Error()
	case err != nil || last < booted:
	case remountRO:
		m.Errors = true
	default:
		m.Unsure = "has had ext4 errors since the boot, and " + notShown
	}
}

func readNumber(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
}

// bootTime returns when the kernel booted, in seconds since 1970, proc_stat(5).
func bootTime(path string) (uint64, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if text, found := strings.CutPrefix(line, "btime "); found {
			return strconv.ParseUint(strings.TrimSpace(text), 10, 64)
		}
	}
	return 0, fmt.Errorf("no btime in %s", path)
}
