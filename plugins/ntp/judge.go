package main

import (
	"fmt"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits is what is asked of the clock.
type limits struct {
	plugin             *npd.Plugin
	ServiceOnly        bool
	Offset, Error, Age time.Duration
}

// released is earlier than any build of this release. A clock before it is wrong, whatever its servers agree on.
var released = time.Date(2026, time.October, 1, 0, 0, 0, 0, time.UTC)

// judge looks at what makes the rest meaningless first: a clock that was never synchronised shows offset 0, and a
// daemon whose server died goes on to show the last one.
func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "clock is synchronised"}
	result.Unshared(s.Unshared)
	found := func(text string) { result.Found(conditions.Inspect, "clock", text) }
	absent := func(text string) {
		result.Absent(s.Boot.Uptime < l.plugin.Grace, conditions.Inspect, "clock", text)
	}
	if s.Now.Before(released) {
		found("shows " + s.Now.UTC().Format(time.DateOnly) + ", before this release was made: certificates will not be accepted")
		return result
	}
	c := s.Clock
	if c == nil {
		noDaemon(s, &result, absent)
		return result
	}
	age := s.Now.Sub(c.Reference).Abs()
	switch {
	case l.ServiceOnly:
		result.Healthy = c.Daemon + " answers"
	case c.Leap == 3 || c.Stratum == 0 || c.Stratum >= 16:
		absent(c.Daemon + " is not synchronised")
	case c.Local:
		absent(c.Daemon + " takes the node's own clock for its reference")
	case age > max(l.Age, 4*c.Poll):
		found(c.Daemon + " has had no update from a server for too long")
	case c.Offset > l.Offset:
		found(fmt.Sprintf("offset of more than %s by %s", l.Offset, c.Daemon))
	case c.Offset+c.RootDelay/2+c.RootDispersion > l.Error:
		found(fmt.Sprintf("may be wrong by more than %s by %s", l.Error, c.Daemon))
	}
	if s.Kernel.Err == "" && !s.Kernel.Synchronised {
		result.Found(conditions.Monitor, "kernel clock", "marked as not synchronised, although "+c.Daemon+" answers")
	}
	return result
}

// noDaemon judges a node where no daemon, or not the one asked for, answers. The kernel is a witness only where
// no daemon is known that should have answered: it takes hours to notice that its clock is left alone.
func noDaemon(s snapshot, result *npd.Result, absent func(string)) {
	switch {
	case s.Asked != auto:
		absent(s.Asked + " does not answer")
	case s.Before != "":
		absent(s.Before + " does not answer any more")
	case s.Kernel.Err != "":
		result.NotRead("clock", "no time daemon answers, and "+s.Kernel.Err)
	case !s.Kernel.Synchronised:
		absent("no time daemon answers, and the kernel's clock is not synchronised")
	default:
		result.Healthy = "the kernel's clock is synchronised; no time daemon answers here"
	}
}
