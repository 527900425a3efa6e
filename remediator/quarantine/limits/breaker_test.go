package limits

import (
	"testing"
	"time"
)

func TestParseBreaker(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"":                                    {},
		`{"openedAt":"2026-11-20T11:30:00Z"}`: now.Add(-30 * time.Minute),
		`{"openedAt":"2026-11-20T12:30:00Z"}`: now, // from a clock that was wrong: it must end
		`{}`:                                  now,
		"open":                                now,
	} {
		got := ParseBreaker(text, now)
		if (got == nil) != want.IsZero() || got != nil && !got.OpenedAt.Equal(want) {
			t.Errorf("%q is %+v, want %s", text, got, want)
		}
	}
}
