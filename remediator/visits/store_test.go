package visits

import (
	"testing"
	"time"
)

func TestOrphansAreTimedByNode(t *testing.T) {
	now := time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)
	o := orphans{byNode: map[string]time.Time{}}
	for i, tt := range []struct {
		node   string
		orphan bool
		at     time.Duration
		want   time.Time
	}{
		{"a", false, 0, time.Time{}},
		{"a", true, time.Minute, now.Add(time.Minute)},
		{"b", true, 2 * time.Minute, now.Add(2 * time.Minute)},
		{"a", true, 3 * time.Minute, now.Add(time.Minute)},
		{"a", false, 4 * time.Minute, time.Time{}},
		{"a", true, 5 * time.Minute, now.Add(5 * time.Minute)},
	} {
		if got := o.since(tt.node, tt.orphan, now.Add(tt.at)); !got.Equal(tt.want) {
			t.Errorf("step %d: %s, want %s", i, got, tt.want)
		}
	}
}
