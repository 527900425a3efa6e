package collect

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// stamp is the time in the name of a bundle, which is in UTC.
const stamp = "20060102T150405Z"

const suffix = ".tar.gz"

// partial ends the name of a bundle that is being written.
const partial = ".part"

var stampPattern = regexp.MustCompile(`^[0-9]{8}T[0-9]{6}Z$`)

// Name is the name of the bundle of a node.
func Name(node string, at time.Time) string { return node + "-" + at.UTC().Format(stamp) + suffix }

// Room returns an error unless a disk has room for so many bytes, and so many percent of it are free after that. The kubelet evicts pods
// when a tenth or less of its disks is free.
func Room(dir string, bytes int64, percent int) error {
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		return fmt.Errorf("the room in %s: %w", dir, err)
	}
	block := uint64(fs.Bsize) //nolint:gosec // it is positive
	free, all := fs.Bavail*block, fs.Blocks*block
	keep := all / 100 * uint64(max(0, percent)) //nolint:gosec // it is positive
	if free < keep+uint64(bytes) {              //nolint:gosec // it is positive
		return fmt.Errorf("no room in %s: %d MiB of %d MiB are free, %d MiB stay free, and the bundle may need %d MiB",
			dir, free>>20, all>>20, keep>>20, bytes>>20)
	}
	return nil
}

// lock keeps a second run for the same node out, until the function that it returns is called or the process ends.
func (b Bundle) lock() (unlock func(), err error) {
	path := filepath.Join(b.Dir, b.Node+".lock")
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, errors.Join(fmt.Errorf("another run writes a bundle: lock %s: %w", path, err), file.Close())
	}
	return func() { _ = file.Close() }, nil
}

// names are the files of a directory that are bundles of the node, with an ending after that; the oldest first.
func (b Bundle) names(ending string) (names []string, err error) {
	entries, err := os.ReadDir(b.Dir)
	for _, e := range entries {
		name, isOf := strings.CutPrefix(e.Name(), b.Node+"-")
		name, isBundle := strings.CutSuffix(name, suffix+ending)
		if isOf && isBundle && stampPattern.MatchString(name) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, err
}

// removeParts removes what runs have left that were killed.
func (b Bundle) removeParts() error {
	names, err := b.names(partial)
	for _, name := range names {
		err = errors.Join(err, os.Remove(filepath.Join(b.Dir, name)))
	}
	return err
}

// rotate removes the oldest bundles of the node. The one that was just written stays, also if the clock has gone back.
func (b Bundle) rotate(written string) error {
	names, err := b.names("")
	names = slices.DeleteFunc(names, func(name string) bool { return name == written })
	for _, name := range names[:max(0, len(names)-max(0, b.Keep-1))] {
		err = errors.Join(err, os.Remove(filepath.Join(b.Dir, name)))
	}
	return err
}

// Open opens the bundle of a node by the time in its name, and no other file.
func Open(dir, node, at string) (*os.File, error) {
	if !stampPattern.MatchString(at) || node == "" || strings.Contains(node, "/") {
		return nil, fmt.Errorf("there is no bundle of node %q at %q: a time is such as %s", node, at, stamp)
	}
	return os.OpenFile(filepath.Join(dir, node+"-"+at+suffix), os.O_RDONLY|unix.O_NOFOLLOW, 0)
}
