package keystore

import (
	"context"
	"errors"
	"sync"
	"time"

	"k8s.io/utils/clock"
)

// ErrUnanswered is the error of a write while an earlier one has not been answered.
var ErrUnanswered = errors.New("an earlier write has not been answered")

// Store keeps a value in memory, and its text in a key. Changes are in force at once, and written by [Store.Save]. It is safe for
// concurrent use: no lock is held during a request, so that one that hangs delays no other.
type Store[T any] struct {
	Key
	// Parse reads a text, Text writes it; an empty text is that of no value.
	Parse func(text string, now time.Time) T
	Text  func(T) string
	Clock clock.PassiveClock
	// DryRun writes nothing.
	DryRun bool
	// Retry is how long after a write that failed [Store.Save] tries again at the earliest.
	Retry time.Duration

	mu    sync.Mutex
	value T
	// loaded is set once the value is known, unsaved while the key does not have its text.
	loaded, unsaved bool
	// version counts the changes: what was read or written before the last one is out of date.
	version int
	triedAt time.Time

	saving sync.Mutex // held during a write: a slow one must not land after a later one
}

// Get returns the value, which must not be changed.
func (s *Store[T]) Get() T {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.value
}

// State reports whether the value is known, and whether it is still to be saved.
func (s *Store[T]) State() (loaded, unsaved bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loaded, s.unsaved
}

// Load reads the key unless the value is known.
func (s *Store[T]) Load(ctx context.Context) error {
	if loaded, _ := s.State(); loaded {
		return nil
	}
	version := s.Version()
	text, err := s.Read(ctx)
	if err != nil {
		return err
	}
	s.Take(text, version)
	return nil
}

// Version is to be taken before a read of which the text is given to [Store.Take].
func (s *Store[T]) Version() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.version
}

// Take takes over a text that was read, unless the value has changed since. A text that is not that of its value is to be replaced.
func (s *Store[T]) Take(text string, version int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == version {
		s.value, s.loaded = s.Parse(text, s.Clock.Now()), true
		s.unsaved = s.Text(s.value) != text && text != "" && !s.DryRun
		s.version++
	}
}

// Set changes the value.
func (s *Store[T]) Set(value T) {
	s.Update(func(T) (T, bool) { return value, true })
}

// Update changes the value as change does, which reports whether it has. The result reports the same.
func (s *Store[T]) Update(change func(T) (T, bool)) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	value, changed := change(s.value)
	if changed {
		s.value, s.loaded, s.unsaved, s.triedAt = value, true, !s.DryRun, time.Time{}
		s.version++
	}
	return changed
}

// Save writes the text if the key does not have it yet. It does nothing for a while after a write that failed.
func (s *Store[T]) Save(ctx context.Context) error {
	s.mu.Lock()
	now, value, version := s.Clock.Now(), s.value, s.version
	if !s.unsaved || !s.triedAt.IsZero() && now.Sub(s.triedAt) < s.Retry {
		s.mu.Unlock()
		return nil
	}
	if !s.saving.TryLock() {
		s.mu.Unlock()
		return ErrUnanswered
	}
	defer s.saving.Unlock()
	s.triedAt = now
	s.mu.Unlock()
	if err := s.Write(ctx, s.Text(value)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.version == version {
		s.unsaved = false
	}
	return nil
}
