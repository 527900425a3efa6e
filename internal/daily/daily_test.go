package daily

import (
	"fmt"
	"testing"
	"time"
)

func TestDue(t *testing.T) {
	day := func(d, h, m int) time.Time { return time.Date(2026, 11, d, h, m, 0, 0, time.UTC) }
	tests := map[string]struct {
		at        string
		last, now time.Time
		want      bool
	}{
		"no schedule":                 {"", day(20, 9, 59), day(20, 10, 0), true},
		"never looked":                {"10:00", time.Time{}, day(20, 9, 0), true},
		"not yet":                     {"10:00", day(19, 10, 1), day(20, 9, 59), false},
		"at last":                     {"10:00", day(19, 10, 1), day(20, 10, 0), true},
		"done today":                  {"10:00", day(20, 10, 0), day(20, 23, 59), false},
		"after midnight":              {"10:00", day(20, 10, 0), day(21, 0, 1), false},
		"missed while the node slept": {"10:00", day(18, 10, 0), day(20, 3, 0), true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var s Schedule
			if err := s.UnmarshalText([]byte(test.at)); err != nil {
				t.Fatal(err)
			}
			if text, err := s.MarshalText(); err != nil || string(text) != test.at {
				t.Errorf("%q became %q, %v", test.at, text, err)
			}
			if got := s.Due(test.last, test.now, "node", 0); got != test.want {
				t.Errorf("due: %t", got)
			}
		})
	}
	var s Schedule
	for _, bad := range []string{"25:00", "10", "noon", "10:00:00"} {
		if err := s.UnmarshalText([]byte(bad)); err == nil {
			t.Errorf("%q is a time of the day", bad)
		}
	}
}

func TestNodesAreSpread(t *testing.T) {
	var s Schedule
	if err := s.UnmarshalText([]byte("10:00")); err != nil {
		t.Fatal(err)
	}
	ten := time.Date(2026, 11, 20, 10, 0, 0, 0, time.UTC)
	due := func(after time.Duration) (n int) {
		for node := range 1000 {
			if s.Due(ten.Add(-time.Hour), ten.Add(after), fmt.Sprint("node-", node), time.Hour) {
				n++
			}
		}
		return n
	}
	if half := due(30 * time.Minute); half < 400 || half > 600 {
		t.Errorf("%d of 1000 nodes after half of the time", half)
	}
	if none, all := due(0), due(time.Hour); none > 10 || all != 1000 {
		t.Errorf("%d nodes at once and %d after all of the time", none, all)
	}
}
