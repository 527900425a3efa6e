package limits

import (
	"testing"
	"time"
)

func TestMostWithin(t *testing.T) {
	at := func(seconds ...int) (times []time.Time) {
		for _, s := range seconds {
			times = append(times, time.Unix(int64(s), 0))
		}
		return times
	}
	for _, test := range []struct {
		times []time.Time
		self  int
		want  int
	}{
		{at(0), 0, 1},
		{at(0, 60, 120), 0, 3},
		{at(0, 60, 121), 0, 2},
		{at(300, 0, 1, 2, 3), 300, 1},
		{at(120, 0, 60, 240, 180), 120, 3},
	} {
		if got := mostWithin(test.times, time.Unix(int64(test.self), 0), 2*time.Minute); got != test.want {
			t.Errorf("mostWithin(%v, %d) = %d, want %d", test.times, test.self, got, test.want)
		}
	}
}
