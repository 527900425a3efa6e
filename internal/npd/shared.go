package npd

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
	"github.com/pitcrew-dev/pitcrew/internal/version"
)

// Shared is a read of a driver whose result R several checks judge. The first of them that looks reads for all: its worker holds
// the lock that they share, and the others wait for it and judge what it has read. See docs/adr/0024-one-look-at-the-driver.md.
//
// Only a run under NPD judges what another one has read. A run by hand reads itself.
type Shared[R any] struct {
	// Name is that of the worker and of the files in the state directory, the same in all checks that share.
	Name string
	// Read calls into the driver, in a worker. R goes through JSON.
	Read func(context.Context) (R, error)
	// Nothing, if set, returns what Read would return if there is nothing to open, without a call into the driver.
	Nothing func() (r R, nothing bool, err error)
	// Of identifies what is read: the loaded driver, the devices and where they were looked for. A reading of something else is
	// never judged.
	Of func() (string, error)

	// get is set by [Main].
	get func(context.Context) ([]byte, error)
}

// Get returns the reading for the present look. It is for [Check.Read].
func (s *Shared[R]) Get(ctx context.Context) (r R, err error) {
	data, err := s.get(ctx)
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

// sharedRead is a [Shared] of any R.
type sharedRead interface {
	name() string
	of() (string, error)
	read(ctx context.Context) (any, error)
	nothing() (data []byte, nothing bool, err error)
	setGet(get func(context.Context) ([]byte, error))
}

func (s *Shared[R]) name() string                                     { return s.Name }
func (s *Shared[R]) of() (string, error)                              { return s.Of() }
func (s *Shared[R]) read(ctx context.Context) (any, error)            { return s.Read(ctx) }
func (s *Shared[R]) setGet(get func(context.Context) ([]byte, error)) { s.get = get }

func (s *Shared[R]) nothing() ([]byte, bool, error) {
	if s.Nothing == nil {
		return nil, false, nil
	}
	r, nothing, err := s.Nothing()
	if err != nil || !nothing {
		return nil, false, err
	}
	data, err := json.Marshal(r)
	return data, true, err
}

// maxAge is how long before a look a reading may have begun that the look judges. The checks look at the same moment, see
// [Plugin.pause]; this bounds what a check that came late can miss.
const maxAge = 5 * time.Second

// sharedFile is the form of the file with the last reading.
type sharedFile struct {
	// Version is the build that has read: another one may ask other questions.
	Version string `json:"version"`
	BootID  string `json:"bootID"`
	// Of is [Shared.Of] before and after the read.
	Of string `json:"of"`
	// Begun is when the read began, CLOCK_BOOTTIME: it cannot be set, and it counts suspended time.
	Begun   time.Duration   `json:"begun"`
	Reading json.RawMessage `json:"reading"`
}

// of returns the file of a reading that begins now.
func newShared(s sharedRead) (f sharedFile, err error) {
	f.Version = version.String()
	if f.BootID, err = boot.ID(Proc); err != nil {
		return f, err
	}
	if f.Of, err = s.of(); err != nil {
		return f, err
	}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &now); err != nil {
		return f, fmt.Errorf("read CLOCK_BOOTTIME: %w", err)
	}
	f.Begun = time.Duration(now.Nano())
	return f, nil
}

// serves reports whether a reading may be judged by a look that began as begun says.
func (f sharedFile) serves(begun, now sharedFile) bool {
	return f.Version == now.Version && f.BootID == now.BootID && f.Of == now.Of && len(f.Reading) > 0 &&
		f.Begun >= begun.Begun-maxAge && f.Begun <= now.Begun
}

// share returns the reading for a look: that of another check, if the look may judge it, else its own.
func (w *worker) share(ctx context.Context, s sharedRead, others bool) ([]byte, error) {
	begun, err := newShared(s)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(w.p.StateDir, "reading-"+s.name()+".json")
	return w.locked(ctx, func(ctx context.Context, lock *os.File) ([]byte, error) {
		mine, err := newShared(s)
		if err != nil {
			return nil, err
		}
		if others {
			last, err := loadShared(path)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				slog.Warn("the last reading is not used", "err", err)
			}
			if err == nil && last.serves(begun, mine) {
				return last.Reading, nil
			}
		}
		data, nothing, err := s.nothing()
		if err == nil && !nothing {
			if deadline, _ := ctx.Deadline(); time.Until(deadline) < w.p.limit()/2 {
				// The check before has not come back with a reading. Another worker would have no time.
				return nil, hungError{}
			}
			data, err = w.run(ctx, lock)
		}
		if err != nil {
			return nil, err
		}
		mine.Reading = data
		if after, err := s.of(); err != nil || after != mine.Of {
			return data, nil //nolint:nilerr // the driver or its devices changed meanwhile: for this look alone
		}
		if err := mine.save(path); err != nil {
			slog.Warn("other checks have to read the driver themselves", "err", err)
		}
		return data, nil
	})
}

// loadShared reads the file. It has to be our own: who can write it decides what is wrong with the node.
func loadShared(path string) (f sharedFile, err error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return f, err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return f, fmt.Errorf("stat %s: %w", path, err)
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFREG || stat.Mode&0o022 != 0 || int(stat.Uid) != os.Geteuid() {
		return f, fmt.Errorf("%s has mode %o and owner %d: it is not a file that only we can write", path, stat.Mode, stat.Uid)
	}
	const most = 16 << 20
	data, err := io.ReadAll(io.LimitReader(file, most))
	if err != nil {
		return f, err
	}
	if err := json.Unmarshal(data, &f); err != nil {
		return f, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// save replaces the file whole; a reader sees the old reading or the new one. Only its owner can read it.
func (f sharedFile) save(path string) error {
	data, err := json.Marshal(f)
	if err != nil {
		return err
	}
	return writeFile(path, data)
}
