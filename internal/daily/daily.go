// Package daily decides when a run that is made once a day is due.
package daily

import (
	"fmt"
	"hash/fnv"
	"time"
)

// Schedule is a time of the day. The zero value has no schedule: a run is always due.
type Schedule struct {
	set  bool
	hour int
	min  int
}

// MarshalText returns HH:MM, or nothing if there is no schedule.
func (s Schedule) MarshalText() ([]byte, error) {
	if !s.set {
		return nil, nil
	}
	return fmt.Appendf(nil, "%02d:%02d", s.hour, s.min), nil
}

// UnmarshalText reads HH:MM; nothing is no schedule.
func (s *Schedule) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*s = Schedule{}
		return nil
	}
	at, err := time.Parse("15:04", string(text))
	if err != nil {
		return fmt.Errorf("%q is no time of the day, HH:MM", text)
	}
	*s = Schedule{true, at.Hour(), at.Minute()}
	return nil
}

// Due reports whether a run is due at now, in its time zone, when the last one was made at last. A run that was missed
// is due immediately. The runs of the nodes are spread over the time after the scheduled one, each node at its own.
func (s Schedule) Due(last, now time.Time, node string, spread time.Duration) bool {
	if !s.set {
		return true
	}
	h := fnv.New64a()
	h.Write([]byte(node))
	jitter := time.Duration(0)
	if spread > 0 {
		jitter = time.Duration(h.Sum64() % uint64(spread))
	}
	at := time.Date(now.Year(), now.Month(), now.Day(), s.hour, s.min, 0, 0, now.Location()).Add(jitter)
	if at.After(now) {
		at = at.AddDate(0, 0, -1)
	}
	return last.Before(at)
}
