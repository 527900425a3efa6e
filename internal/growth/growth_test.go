package growth

import (
	"testing"
	"time"
)

func TestGrowthWithinTheWindow(t *testing.T) {
	c := Start(100)
	for minute, value := range []uint64{100, 103, 103, 1, 5} {
		c.Add(time.Duration(minute)*time.Minute, value, time.Hour)
	}
	if got := c.Since(0); got != 3+4 {
		t.Errorf("grew by %d, want 7: the value at the start and the reset do not count", got)
	}
	if got := c.Since(2 * time.Minute); got != 4 {
		t.Errorf("grew by %d in the last minutes, want 4", got)
	}
	c.Add(62*time.Minute, 5, time.Hour)
	if got := c.Since(0); got != 4 {
		t.Errorf("grew by %d after an hour, want 4: the first step is forgotten", got)
	}
}

func TestACounterIsBounded(t *testing.T) {
	c := Start(0)
	for look := range 1000 {
		c.Add(time.Duration(look), uint64(look), time.Hour)
	}
	if len(c.Steps) != most {
		t.Errorf("%d steps", len(c.Steps))
	}
}
