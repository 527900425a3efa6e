// Package growth remembers how much a counter grew lately, for the state of a plugin.
package growth

import (
	"slices"
	"time"
)

// most bounds what is remembered; with a look a minute it covers an hour.
const most = 64

// Counter is one counter. All times are uptimes.
type Counter struct {
	// Last is the value at the last look.
	Last uint64 `json:"last"`
	// Steps are the growths within the window given to Add, the oldest first.
	Steps []Step `json:"steps,omitempty"`
}

// Step is one growth.
type Step struct {
	At time.Duration `json:"at"`
	By uint64        `json:"by"`
}

// Start returns a counter that is seen for the first time: when it grew to its value is not known.
func Start(value uint64) Counter { return Counter{Last: value} }

// Add takes in the value of a look and forgets what is older than window. A value smaller than the last one is that
// of a counter that was reset.
func (c *Counter) Add(now time.Duration, value uint64, window time.Duration) {
	c.Steps = slices.DeleteFunc(c.Steps, func(s Step) bool { return s.At < now-window })
	if value > c.Last {
		c.Steps = append(c.Steps, Step{now, value - c.Last})
		c.Steps = c.Steps[max(0, len(c.Steps)-most):]
	}
	c.Last = value
}

// Since sums what the counter grew since a time.
func (c Counter) Since(at time.Duration) (sum uint64) {
	for _, s := range c.Steps {
		if s.At >= at {
			sum += s.By
		}
	}
	return sum
}
