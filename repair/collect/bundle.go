// Package collect writes what is known about the faults of a node into one bundle, before a reset or a reboot wipes it: a tar.gz in a
// directory that outlives the boot. It is bounded in time and size, it does not fill a disk, and what must not leave the node is filtered.
// See docs/evidence.md.
package collect

import (
	"archive/tar"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"
)

// Bundle is how a bundle is written.
type Bundle struct {
	// Dir is where bundles are kept, Node the node that this one is of.
	Dir, Node string
	// At is when it was begun.
	At time.Time
	// Head are the first lines of the index.
	Head []string
	// MaxBytes is how large it may become.
	MaxBytes int64
	// Keep is how many bundles of the node are kept, the newest.
	Keep int
	// MinFree is how much of the disk must be free when it is written, in percent.
	MinFree int
}

// The name of the index in a bundle. It is the last one: it says what became of the others.
const index = "index.txt"

// maxIndex is how much of a bundle is kept for its index and for the heads of its files.
const maxIndex = 256 << 10

// Written is a bundle that was written.
type Written struct {
	// Name is that of its file, Bytes its size.
	Name  string
	Bytes int64
	// Parts are how many of all parts are in it as they should be, Of how many there are.
	Parts, Of int
}

// Write reads the parts, one after the other, and writes the bundle. A part that fails is a line in the index. No part that begins after
// ctx is done is read. A bundle is whole when it has its name: until then it has another one, which the next run removes.
func (b Bundle) Write(ctx context.Context, parts []Part) (w Written, err error) {
	if err := os.MkdirAll(b.Dir, 0o700); err != nil {
		return w, err
	}
	unlock, err := b.lock()
	if err != nil {
		return w, err
	}
	defer unlock()
	if err := b.removeParts(); err != nil {
		return w, err
	}
	if err := Room(b.Dir, b.MaxBytes, b.MinFree); err != nil {
		return w, err
	}
	w.Name = Name(b.Node, b.At)
	path := filepath.Join(b.Dir, w.Name)
	if _, err := os.Lstat(path); err == nil {
		return w, fmt.Errorf("bundle %s is there already", w.Name)
	}
	file, err := os.OpenFile(path+partial, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return w, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(path+partial))
		}
	}()
	w.Parts, err = b.fill(ctx, file, parts)
	w.Of = len(parts)
	if info, statErr := file.Stat(); statErr == nil {
		w.Bytes = info.Size()
	}
	if err = errors.Join(err, file.Sync(), file.Close()); err != nil {
		return w, err
	}
	if err = os.Rename(path+partial, path); err != nil {
		return w, err
	}
	return w, b.rotate(w.Name)
}

// fill writes the content of the bundle and returns how many of its parts are as they should be.
func (b Bundle) fill(ctx context.Context, file io.Writer, parts []Part) (good int, err error) {
	zip := gzip.NewWriter(file)
	archive := tar.NewWriter(zip)
	room := b.MaxBytes - maxIndex
	var outcomes []outcome
	for i, p := range parts {
		o := outcome{name: p.Name}
		if ctx.Err() != nil {
			o.notes = []string{"not read: the time of the bundle was over"}
		} else {
			// One part leaves room for those after it.
			share := room
			if i < len(parts)-1 {
				share /= 2
			}
			o = p.read(ctx, int(share))
		}
		if len(o.data) > 0 {
			// A disk that others fill meanwhile is not filled by us.
			if err := Room(b.Dir, int64(len(o.data)), b.MinFree); err != nil {
				return good, err
			}
			if err := b.add(archive, o.name, o.data); err != nil {
				return good, err
			}
			room -= int64(len(o.data))
		}
		if len(o.notes) == 0 {
			good++
		}
		o.bytes, o.data = len(o.data), nil
		outcomes = append(outcomes, o)
	}
	text := b.index(outcomes)
	return good, errors.Join(b.add(archive, index, []byte(text[:min(len(text), maxIndex/2)])), archive.Close(), zip.Close())
}

func (b Bundle) add(archive *tar.Writer, name string, data []byte) error {
	head := &tar.Header{Name: name, Mode: 0o600, Size: int64(len(data)), ModTime: b.At, Typeflag: tar.TypeReg}
	if err := archive.WriteHeader(head); err != nil {
		return err
	}
	_, err := archive.Write(data)
	return err
}

// index is a table of the parts.
func (b Bundle) index(outcomes []outcome) string {
	var text strings.Builder
	fmt.Fprintf(&text, "node %s, %s\n", b.Node, b.At.UTC().Format(time.RFC3339))
	for _, line := range b.Head {
		fmt.Fprintln(&text, line)
	}
	fmt.Fprintf(&text, "\nTokens, environments and arguments are replaced by %s, as far as the filter knows them.\n\n", removed)
	table := tabwriter.NewWriter(&text, 0, 8, 2, ' ', 0)
	fmt.Fprintln(table, "PART\tBYTES\tTOOK\tFILTERED LINES\tNOTE")
	for _, o := range outcomes {
		fmt.Fprintf(table, "%s\t%d\t%.1fs\t%d\t%.1000s\n", o.name, o.bytes, o.took.Seconds(), o.lines, strings.Join(o.notes, "; "))
	}
	_ = table.Flush() // into memory
	return text.String()
}
