package limits

import "time"

// Span is a stretch of time, both ends included.
type Span struct {
	From time.Time
	// Until is zero for a span without an end.
	Until time.Time
}

// Contains reports whether a time is within the span.
func (s Span) Contains(at time.Time) bool {
	return !at.Before(s.From) && (s.Until.IsZero() || !at.After(s.Until))
}
