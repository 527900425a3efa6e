// Package ring reads and writes the last starts of quarantines or of repairs, which a key of a ConfigMap keeps longer than the Node, its
// record and the leader live: a limit that counts starts must not forget those of a Node that was deleted. The package is pure.
package ring

import (
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

// MaxEntries bounds a ring: a ConfigMap holds 1 MiB, and the longest entries have some 400 bytes. The latest are kept.
const MaxEntries = 2000

// Entry is a start. The tag `max` bounds its fields, see [record.Check].
type Entry interface {
	// StartedAt returns the time of the start; zero: no remediator writes such an entry.
	StartedAt() time.Time
}

// Parse reads a text, the latest start first. Entries that no remediator writes or that are from the future are left out, and all but the
// latest of very many. A text that cannot be read is an error.
func Parse[E Entry](text string, now time.Time) ([]E, error) {
	if text == "" {
		return nil, nil
	}
	var entries []E
	if err := json.Unmarshal([]byte(text), &entries); err != nil {
		return nil, fmt.Errorf("decode starts: %w", err)
	}
	entries = slices.DeleteFunc(entries, func(e E) bool { return !IsValid(e) || e.StartedAt().After(now.Add(conditions.MaxClockSkew)) })
	return Latest(entries), nil
}

// IsValid reports whether a remediator may have written the entry.
func IsValid[E Entry](e E) bool { return !e.StartedAt().IsZero() && record.Check(&e) == nil }

// Latest sorts entries, the latest first, and returns no more of them than a ring holds.
func Latest[E Entry](entries []E) []E {
	slices.SortStableFunc(entries, func(a, b E) int { return b.StartedAt().Compare(a.StartedAt()) })
	return entries[:min(len(entries), MaxEntries)]
}

// Text is what [Parse] reads: the first of the entries, as many as fit into limit bytes. It is empty if there are none.
func Text[E Entry](entries []E, limit int) string {
	var text []byte
	for _, e := range entries {
		one, err := json.Marshal(e)
		if err != nil || len(text)+len(one)+len("[]") > limit { // a time that JSON cannot express is no start
			break
		}
		text = append(append(text, ','), one...)
	}
	if len(text) == 0 {
		return ""
	}
	text[0] = '['
	return string(append(text, ']'))
}
