package main

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits is the room that is asked for, in percent; 0 asks for none.
type limits struct {
	plugin       *npd.Plugin
	Free, Inodes float64
}

// diskTypes are filesystems that the kernel makes read-only when their disk fails. Others are read-only by nature.
var diskTypes = []string{"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "bcachefs", "nilfs2", "ocfs2"}

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "mounts are as expected"}
	for _, p := range s.Paths {
		m := cover(s.Mounts, p.Path)
		switch {
		case m == nil:
			result.NotRead("mount "+p.Path, "no mount covers it")
		case p.Point && m.Point != p.Path:
			result.Absent(s.Boot.Uptime < l.plugin.Grace, conditions.Inspect, "mount "+p.Path, "not mounted")
		case m.ReadOnly:
			result.Found(conditions.Inspect, "mount "+p.Path, "read-only")
		case m.gaveUp():
			result.Found(conditions.Inspect, "mount "+p.Path, m.how())
		case m.Unsure != "":
			result.NotRead("mount "+p.Path, m.Unsure)
		}
		l.room(p, &result)
	}
	for _, m := range gaveUp(s.Mounts, s.Paths) {
		repair := conditions.Inspect
		if strings.HasPrefix(m.Point, s.Kubelet+"/pods/") || strings.HasPrefix(m.Point, s.Kubelet+"/plugins/") {
			// A volume's disk is not the node's.
			repair = conditions.Monitor
		}
		result.Found(repair, "mount "+m.Point, m.how())
	}
	if n := len(s.Malformed); n > 0 {
		result.Found(conditions.Monitor, "mount table", "not all lines were understood: "+s.Malformed[0])
	}
	return result
}

func (l *limits) room(p path, result *npd.Result) {
	asked := l.Free > 0 || l.Inodes > 0
	switch {
	case p.Broken:
		result.Found(conditions.Inspect, "mount "+p.Path, p.Err)
	case p.Hangs:
		result.NotRead("mount "+p.Path, p.Err)
	case asked && p.Room == nil:
		why := p.Err
		if why == "" {
			why = "its room is not known without -root"
		}
		result.NotRead("mount "+p.Path, why)
	case asked && p.Room.Free < l.Free:
		result.Found(conditions.Inspect, "mount "+p.Path, fmt.Sprintf("less than %g percent of space free", l.Free))
	case asked && p.Room.Inodes < l.Inodes:
		result.Found(conditions.Inspect, "mount "+p.Path, fmt.Sprintf("less than %g percent of inodes free", l.Inodes))
	}
}

// cover returns the mount that a path lies on: the deepest, of those the last, which hides the others.
func cover(mounts []mount, path string) *mount {
	var best *mount
	for i, m := range mounts {
		if path != m.Point && m.Point != "/" && !strings.HasPrefix(path, m.Point+"/") {
			continue
		}
		if best == nil || len(m.Point) >= len(best.Point) {
			best = &mounts[i]
		}
	}
	return best
}

// gaveUp returns the disks that the kernel made read-only, each once, without those of the paths judged above.
func gaveUp(mounts []mount, paths []path) (disks []mount) {
	seen := map[string]bool{}
	for _, p := range paths {
		if m := cover(mounts, filepath.Clean(p.Path)); m != nil {
			seen[m.Device] = true
		}
	}
	for _, m := range mounts {
		if m.gaveUp() && !m.ReadOnly && slices.Contains(diskTypes, m.Type) && !seen[m.Device] {
			seen[m.Device] = true
			disks = append(disks, m)
		}
	}
	return disks
}
