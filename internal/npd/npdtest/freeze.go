package npdtest

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// Frozen is a mounted filesystem on which every write sleeps uninterruptibly, as a call does that hangs in a driver.
type Frozen struct {
	// Dir is where it is mounted.
	Dir string

	t    *testing.T
	root *os.File
}

// Freeze mounts a filesystem and freezes it until the end of the test. It needs root and a loop device.
func Freeze(t *testing.T) *Frozen {
	t.Helper()
	f := &Frozen{Dir: t.TempDir(), t: t}
	image := filepath.Join(t.TempDir(), "image")
	for _, args := range [][]string{
		{"truncate", "-s", "8M", image}, {"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, f.Dir},
	} {
		if out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%q: %v: %s", args, err, out)
		}
	}
	root, err := os.Open(f.Dir)
	if err != nil {
		t.Fatal(err)
	}
	f.root = root
	if err := unix.IoctlSetInt(int(root.Fd()), fifreeze, 0); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		f.Thaw()
		root.Close()
		// Who slept on it is about to close its files; then it goes.
		if err := unix.Unmount(f.Dir, unix.MNT_DETACH); err != nil {
			t.Errorf("unmount %s: %v", f.Dir, err)
		}
	})
	return f
}

// FIFREEZE and FITHAW of linux/fs.h: _IOWR('X', 119, int) and _IOWR('X', 120, int).
const fifreeze, fithaw = 0xc0045877, 0xc0045878

// Thaw wakes who sleeps on the filesystem.
func (f *Frozen) Thaw() {
	if err := unix.IoctlSetInt(int(f.root.Fd()), fithaw, 0); err != nil && !errors.Is(err, unix.EINVAL) {
		f.t.Error(err)
	}
}
