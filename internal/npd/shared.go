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
// Only runs under NPD share. A run by hand has a worker and a lock of its own, and so has each check for a while after a shared read
// that hung or died: what hangs for one check does not hide what the others see.
type Shared[R any] struct {
	// Name is that of the worker and of the files in the state directory, the same in all checks that share.
	Name string
	// Read calls into the driver, in a worker. R goes through JSON.
	Read func(context.Context) (R, error)
	// ReadPart is Read for this check alone.
	ReadPart func(context.Context) (R, error)
	// Apart, if set, reports after the flags are parsed that this run asks more than Read does.
	Apart func() bool
	// Whole reports whether a result of Read has a part for every check and may be judged by all of them.
	Whole func(R) bool
	// Hung, if set, reports whether calls of a Read that came back did not return: it has what the others said.
	Hung func(R) bool
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
	readPart(ctx context.Context) (any, error)
	apart() bool
	whole(data []byte) bool
	hung(data []byte) bool
	nothing() (data []byte, nothing bool, err error)
	setGet(get func(context.Context) ([]byte, error))
}

func (s *Shared[R]) name() string                                     { return s.Name }
func (s *Shared[R]) of() (string, error)                              { return s.Of() }
func (s *Shared[R]) read(ctx context.Context) (any, error)            { return s.Read(ctx) }
func (s *Shared[R]) readPart(ctx context.Context) (any, error)        { return s.ReadPart(ctx) }
func (s *Shared[R]) apart() bool                                      { return s.Apart != nil && s.Apart() }
func (s *Shared[R]) setGet(get func(context.Context) ([]byte, error)) { s.get = get }

func (s *Shared[R]) whole(data []byte) bool {
	var r R
	return json.Unmarshal(data, &r) == nil && s.Whole(r)
}

func (s *Shared[R]) hung(data []byte) bool {
	var r R
	return s.Hung != nil && json.Unmarshal(data, &r) == nil && s.Hung(r)
}

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

// newShared returns the file of a reading that begins now.
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
	return f.Version == now.Version && f.BootID == now.BootID && f.Of == now.Of &&
		f.Begun >= begun.Begun-maxAge && f.Begun <= now.Begun
}

// again is how long the checks read apart before one of them tries a shared read.
const again = 10 * time.Minute

// sharing is what a check has for a [Shared].
type sharing struct {
	s sharedRead
	// own runs the worker for this check alone, all the one that reads for all checks.
	own, all *worker
	path     string
	// apart is since when the checks read apart (uptime), 0 if they share.
	apart *Store[time.Duration]
}

func newSharing(s sharedRead, own *worker) (*sharing, error) {
	all, err := newWorker(own.p, "worker-"+s.name(), own.driver, own.args)
	if err != nil {
		return nil, err
	}
	all.reads = readsAll
	apart, err := BootStore[time.Duration](Proc, own.p.StateDir, "apart-"+s.name())
	return &sharing{s, own, all, filepath.Join(own.p.StateDir, "reading-"+s.name()+".json"), apart}, err
}

// get returns the reading for a look under NPD: that of another check, if the look may judge it, else its own.
func (h *sharing) get(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, h.own.p.limit())
	defer cancel()
	if since := h.since(); since != 0 {
		data, err := h.readPart(ctx)
		if err == nil {
			h.retry(ctx, since)
		}
		return data, err
	}
	begun, err := newShared(h.s)
	if err != nil {
		return nil, err
	}
	data, err := h.all.locked(ctx, func(ctx context.Context, lock *os.File) ([]byte, error) {
		now, err := newShared(h.s)
		if err != nil {
			return nil, err
		}
		last, err := loadShared(h.path)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			slog.Warn("the last reading is not used", "err", err)
		}
		if err == nil && last.serves(begun, now) && h.s.whole(last.Reading) {
			return last.Reading, nil
		}
		if h.since() != 0 || !h.hasTime(ctx) {
			// The check before has not come back with a reading.
			return nil, lostError{errors.New("another check had no reading")}
		}
		return h.read(ctx, lock, now)
	})
	if hung, lost := (hungError{}), (lostError{}); !errors.As(err, &hung) && !errors.As(err, &lost) {
		return data, err
	}
	if data != nil {
		return data, nil // what came back
	}
	if h.since() == 0 {
		slog.Warn("each check reads its part of the driver by itself", "err", err)
		h.split()
	}
	if !h.hasTime(ctx) {
		// One text, whichever of the checks had the lock.
		return nil, noAnswer(h.own.p.limit())
	}
	return h.readPart(ctx)
}

// hasTime reports whether a worker that starts now has time to answer.
func (h *sharing) hasTime(ctx context.Context) bool {
	deadline, _ := ctx.Deadline()
	return time.Until(deadline) >= h.own.p.limit()/2
}

// since reports since when the checks read apart. What cannot be shared is what this run knows.
func (h *sharing) since() time.Duration {
	since, _ := h.apart.Update(func(*time.Duration) bool { return false })
	return since
}

// split makes all checks read apart from now on.
func (h *sharing) split() {
	now, err := Uptime()
	if err == nil {
		_, err = h.apart.Update(func(since *time.Duration) bool { *since = now; return true })
	}
	if err != nil {
		slog.Warn("other checks do not know that a read of the driver was lost", "err", err)
	}
}

// readPart reads for this check alone.
func (h *sharing) readPart(ctx context.Context) ([]byte, error) {
	return h.own.locked(ctx, func(ctx context.Context, lock *os.File) ([]byte, error) {
		if data, nothing, err := h.s.nothing(); err != nil || nothing {
			return data, err
		}
		return h.own.run(ctx, lock)
	})
}

// read reads for all checks. It needs the lock of all. With an error it has what came back before calls that hang, if anything.
func (h *sharing) read(ctx context.Context, lock *os.File, now sharedFile) ([]byte, error) {
	data, nothing, err := h.s.nothing()
	if err != nil || nothing {
		return data, err
	}
	if data, err = h.all.run(ctx, lock); err != nil {
		if errors.As(err, new(lostError)) || errors.As(err, new(hungError)) {
			// Before the lock is free: the next check shall not run into it.
			h.split()
		}
		return nil, err
	}
	if h.s.hung(data) {
		h.split()
		return data, lostError{errors.New("calls about a GPU did not return")}
	}
	now.Reading = data
	if after, err := h.s.of(); err != nil || after != now.Of || !h.s.whole(data) {
		return data, nil //nolint:nilerr // what was read changed meanwhile, or could not be read: for this look alone
	}
	if err := now.save(h.path); err != nil {
		slog.Warn("other checks have to read the driver themselves", "err", err)
	}
	return data, nil
}

// retry tries a shared read, after this look has its own part: that answer stands, whatever becomes of the try. There is no try while
// another check makes one or a lost worker is still there.
func (h *sharing) retry(ctx context.Context, since time.Duration) {
	if now, err := Uptime(); err != nil || now-since < again || !h.hasTime(ctx) {
		return
	}
	free, cancel := context.WithTimeout(ctx, 10*time.Millisecond)
	defer cancel()
	_, err := h.all.locked(free, func(_ context.Context, lock *os.File) ([]byte, error) {
		if h.since() != since {
			return nil, nil
		}
		now, err := newShared(h.s)
		if err != nil {
			return nil, err
		}
		if _, err = h.read(ctx, lock, now); err == nil {
			_, err = h.apart.Update(func(since *time.Duration) bool { *since = 0; return true })
		}
		return nil, err
	})
	if err != nil {
		slog.Warn("each check goes on to read its part of the driver by itself", "err", err)
	}
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
