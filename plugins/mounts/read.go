package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/bounded"
)

// snapshot is all that the judge needs.
type snapshot struct {
	Boot boot.Boot `json:"boot"`
	// Kubelet is the kubelet's root directory: what is below its pods and plugins is the workload's.
	Kubelet string  `json:"kubelet"`
	Paths   []path  `json:"paths"`
	Mounts  []mount `json:"mounts"`
	// Malformed are lines that were not understood.
	Malformed []string `json:"malformed"`
}

// path is one that must be writable.
type path struct {
	Path string `json:"path"`
	// Point: it must be a mount point.
	Point bool   `json:"point"`
	Room  *room  `json:"room,omitempty"`
	Err   string `json:"err,omitempty"`
	// Broken: the filesystem itself answers with an I/O error.
	Broken bool `json:"broken,omitempty"`
	// Hangs: it does not answer at all, as a network filesystem does whose server is gone.
	Hangs bool `json:"hangs,omitempty"`
}

// room is what is free for those who are not root, in percent.
type room struct {
	Free   float64 `json:"free"`
	Inodes float64 `json:"inodes"`
}

type reader struct {
	procfs, sysfs, root, kubelet string
	writable, mounted            []string

	// calls are those to the filesystems, by their paths.
	calls bounded.Calls
}

func (r *reader) read(ctx context.Context) (snapshot, error) {
	b, err := boot.Read(r.procfs)
	if err != nil {
		return snapshot{}, err
	}
	// Not /proc/self: a pod has mounts of its own.
	file := filepath.Join(r.procfs, "1/mountinfo")
	data, err := os.ReadFile(file)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{Boot: b, Kubelet: r.kubelet, Mounts: []mount{}, Malformed: []string{}}
	// Without a release every kernel may be one that shows nothing.
	release, _ := os.ReadFile(filepath.Join(r.procfs, "sys/kernel/osrelease"))
	words := hasWords(string(release))
	for line := range strings.Lines(string(data)) {
		m, err := parseMount(line)
		if err != nil {
			s.Malformed = append(s.Malformed, err.Error())
			continue
		}
		if m.Type == "ext4" && !m.ReadOnly && !m.gaveUp() && !words {
			r.askExt4(&m)
		}
		s.Mounts = append(s.Mounts, m)
	}
	if len(s.Mounts) == 0 {
		return snapshot{}, fmt.Errorf("no mount in %s", file)
	}
	if slices.ContainsFunc(s.Mounts, func(m mount) bool { return m.ofContainer }) {
		return snapshot{}, fmt.Errorf("%s is a container's: use the host's PID namespace, or mount its proc and say where with -procfs", file)
	}
	s.Paths = r.paths()
	for i, p := range s.Paths {
		switch m := cover(s.Mounts, p.Path); {
		case r.root != "":
			s.Paths[i] = r.ask(ctx, r.root, p)
		case m != nil && m.Type == "xfs":
			// Only it can tell, and it answers at once. Where this root cannot be entered, nothing is known.
			s.Paths[i] = r.ask(ctx, filepath.Join(r.procfs, "1/root"), p)
		}
	}
	return s, nil
}

func (r *reader) paths() (all []path) {
	if r.kubelet != "" {
		all = append(all, path{Path: filepath.Clean(r.kubelet)})
	}
	for _, p := range r.writable {
		all = append(all, path{Path: filepath.Clean(p)})
	}
	for _, p := range r.mounted {
		all = append(all, path{Path: filepath.Clean(p), Point: true})
	}
	return all
}

// ask asks the filesystem itself. XFS, which has shut down after an error of its log or its metadata, shows that neither in mountinfo nor
// to statfs; each stat gives EIO (xfs_vn_getattr in fs/xfs/xfs_iops.c).
func (r *reader) ask(ctx context.Context, root string, p path) path {
	st, err := bounded.Do(ctx, &r.calls, p.Path, func() (st unix.Statfs_t, err error) {
		file := filepath.Join(root, p.Path)
		if err := unix.Stat(file, new(unix.Stat_t)); err != nil {
			return st, err
		}
		err = unix.Statfs(file, &st)
		return st, err
	})
	switch {
	case errors.Is(err, bounded.ErrNoAnswer):
		p.Hangs, p.Err = true, err.Error()
	case errors.Is(err, unix.EIO), errors.Is(err, unix.ESTALE), errors.Is(err, unix.ENOTCONN), errors.Is(err, unix.EUCLEAN):
		p.Broken, p.Err = true, err.Error()
	case err != nil:
		p.Err = err.Error()
	default:
		p.Room = &room{Free: percent(st.Bavail, st.Blocks), Inodes: percent(st.Ffree, st.Files)}
	}
	return p
}

// percent of nothing is all: some filesystems have no fixed number of inodes.
func percent(part, of uint64) float64 {
	if of == 0 {
		return 100
	}
	return 100 * float64(part) / float64(of)
}
