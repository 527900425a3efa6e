package record

import (
	"maps"
	"sync"
)

// Once remembers what was reported last of each subject, so that it is reported once. Losing it costs a repeated Event, nothing else. It is
// safe for concurrent use.
type Once[K, V comparable] struct {
	mu   sync.Mutex
	last map[K]V
}

// Note notes what there is to report of a subject, and reports whether that was not reported yet. The zero value is nothing: it is never
// reported, and what follows is news again.
func (o *Once[K, V]) Note(subject K, what V) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	var nothing V
	if what == nothing {
		delete(o.last, subject)
		return false
	}
	if o.last == nil {
		o.last = map[K]V{}
	}
	before := o.last[subject]
	o.last[subject] = what
	return before != what
}

// Get returns what was reported last of a subject.
func (o *Once[K, V]) Get(subject K) V {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.last[subject]
}

// Forget forgets a subject.
func (o *Once[K, V]) Forget(subject K) {
	var nothing V
	o.Note(subject, nothing)
}

// ForgetIf forgets the subjects that are gone.
func (o *Once[K, V]) ForgetIf(isGone func(K) bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	maps.DeleteFunc(o.last, func(subject K, _ V) bool { return isGone(subject) })
}

// All returns what there is to report now, by subject.
func (o *Once[K, V]) All() map[K]V {
	o.mu.Lock()
	defer o.mu.Unlock()
	return maps.Clone(o.last)
}
