package npd

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/pitcrew-dev/pitcrew/internal/boot"
)

// Store keeps a plugin's state of type T from run to run, in one JSON file that all runs share, also those of two
// NPDs. The state belongs to one boot: another boot starts with a zero T.
type Store[T any] struct {
	Path   string
	BootID string
	// Carry, if set, makes what a new boot starts with from the state of the boot before.
	Carry func(T) T

	memory T
	// read is the file as it was when memory was read from it or written to it.
	read os.FileInfo
}

// Proc is where the proc filesystem lies for plugins without the flag -procfs.
const Proc = "/proc"

// BootStore returns the state dir/name.json, bound to the boot of the node whose proc filesystem is mounted at procfs.
func BootStore[T any](procfs, dir, name string) (*Store[T], error) {
	id, err := boot.ID(procfs)
	if err != nil {
		return nil, err
	}
	return &Store[T]{Path: filepath.Join(dir, name+".json"), BootID: id}, nil
}

// Open reads the boot of the node whose proc filesystem is mounted at procfs, for a plugin that needs the uptime at every
// look. The first call binds a zero Store to the state dir/name.json of that boot; later ones keep what it holds.
func (s *Store[T]) Open(procfs, dir, name string) (boot.Boot, error) {
	b, err := boot.Read(procfs)
	if err == nil && s.Path == "" {
		s.Path, s.BootID = filepath.Join(dir, name+".json"), b.ID
	}
	return b, err
}

// Lasting takes over into now, what a look has found, since when the look before had the same, and keeps now for the next one unless the
// run is a dump. same reports whether both are one thing, since is where a thing has its time. The error says why it was not kept.
func Lasting[T comparable](s *Store[[]T], p *Plugin, now []T, same func(before, now T) bool, since func(*T) *time.Duration) error {
	_, err := s.Update(func(before *[]T) bool {
		for i := range now {
			if j := slices.IndexFunc(*before, func(b T) bool { return same(b, now[i]) && *since(&b) <= *since(&now[i]) }); j >= 0 {
				*since(&now[i]) = *since(&(*before)[j])
			}
		}
		changed := !slices.Equal(*before, now) && !p.Dumps()
		*before = slices.Clone(now)
		return changed
	})
	return err
}

// stored is the file's form.
type stored[T any] struct {
	Version int    `json:"v"`
	BootID  string `json:"bootID"`
	State   T      `json:"state"`
}

const storeVersion = 1

// Update locks the file, re-reads the state, lets change work on it and writes it back if change says so. It returns
// the state after that. The state is good even with an error, which then says that it could not be shared: a plugin
// with a broken state directory goes on with what it holds in memory.
func (s *Store[T]) Update(change func(*T) (changed bool)) (T, error) {
	unlock, err := s.lock()
	if err != nil {
		change(&s.memory)
		return s.memory, err
	}
	defer unlock()
	state, err := s.load()
	if err != nil {
		change(&s.memory)
		return s.memory, err
	}
	if change(&state) {
		err = s.save(state)
	}
	s.remember(state)
	return state, err
}

// Unchanged returns the state without a lock if no run has written it since this one last read it. Looking again and
// again costs little then.
func (s *Store[T]) Unchanged() (T, bool) {
	now, err := os.Stat(s.Path)
	// Each write makes a new file.
	same := err == nil && s.read != nil && os.SameFile(now, s.read) && now.ModTime().Equal(s.read.ModTime())
	return s.memory, same
}

// remember keeps the state and the file that it came from. It needs the lock.
func (s *Store[T]) remember(state T) {
	s.memory = state
	// Without it, Unchanged returns false.
	s.read, _ = os.Stat(s.Path)
}

// lock takes the lock of a file beside the state, because the state file itself is replaced by each write.
func (s *Store[T]) lock() (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(s.Path), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(s.Path+".lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if !errors.Is(err, unix.EINTR) {
			break
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close())
	}
	// Closing releases the lock; nothing was written that could be lost.
	return func() { _ = f.Close() }, nil
}

func (s *Store[T]) load() (T, error) {
	var none T
	data, err := os.ReadFile(s.Path)
	if errors.Is(err, os.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, err
	}
	var file stored[T]
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err = dec.Decode(&file)
	if err == nil && file.Version != storeVersion {
		err = fmt.Errorf("version %d, want %d", file.Version, storeVersion)
	}
	if err != nil {
		aside := s.Path + ".corrupt"
		slog.Warn("state file not understood, kept aside and rebuilt", "path", s.Path, "aside", aside, "err", err)
		return none, os.Rename(s.Path, aside)
	}
	if file.BootID != s.BootID {
		if s.Carry == nil {
			return none, nil
		}
		return s.Carry(file.State), nil
	}
	return file.State, nil
}

func (s *Store[T]) save(state T) error {
	data, err := json.Marshal(stored[T]{storeVersion, s.BootID, state})
	if err != nil {
		return err
	}
	return writeFile(s.Path, data)
}

// writeFile replaces a file whole: a reader sees the old text or the new one. Only one run may write it at a time. What one leaves
// behind that is killed before the end, the next one removes.
func writeFile(path string, data []byte) error {
	temporary := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(temporary); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f, err := os.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	err = errors.Join(err, f.Close())
	if err == nil {
		err = os.Rename(temporary, path)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temporary))
	}
	return nil
}
