package main

import (
	"fmt"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/gpu"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

func (l *limits) judge(s snapshot) npd.Result {
	if nothing, ok := s.Absent(); ok {
		return nothing
	}
	result := npd.Result{Healthy: "no GPU that is in use stands still"}
	stalled, idlers, inUse := l.gpus(s, &result)
	for _, p := range s.Ports {
		if inUse && p.Unread != "" {
			result.NotRead(p.Subject(), p.Unread)
		}
	}
	for _, subject := range stalled {
		result.Found(conditions.Inspect, subject, fmt.Sprintf("busy for %s without traffic", l.For))
	}
	// A GPU that a notebook keeps is idle, too: only few among many say whom the others wait for.
	if len(idlers) < len(stalled) {
		for _, subject := range idlers {
			result.Found(conditions.Inspect, subject, fmt.Sprintf("idle for %s while its neighbours wait", l.For))
		}
	}
	if s.Unshared != "" {
		result.NotRead("state", "not kept between runs: "+s.Unshared)
	}
	return result
}

// gpus returns the GPUs that stand still and those that are idle, and whether any is in use.
func (l *limits) gpus(s snapshot, result *npd.Result) (stalled, idlers []string, inUse bool) {
	for _, g := range s.GPUs {
		if why := g.NotRead(); why != "" {
			result.NotRead(g.Subject(), why)
			continue
		}
		// A process may have come or gone since the look that the history ends with.
		if g.Work.Held != nil && !*g.Work.Held {
			continue
		}
		inUse = true
		if why := unjudged(g); why != "" {
			result.NotRead(g.Subject(), why)
			continue
		}
		c := s.History.GPUs[g.Address]
		switch long := s.History.At-c.Since >= l.For; {
		case c.State == waiting && long && c.NVLink == 0:
			result.NotRead(g.Subject(), "busy at low power, but its NVLink counters have never counted anything")
		case c.State == waiting && long:
			stalled = append(stalled, g.Subject())
		case c.State == idle && long:
			idlers = append(idlers, g.Subject())
		}
	}
	return stalled, idlers, inUse
}

// unjudged returns why a GPU that is in use, and that answered, cannot be judged; "" if it can be.
func unjudged(g gpu.GPU) string {
	w := g.Work
	switch {
	case g.MIG:
		return "not judged in MIG mode"
	case w.Held == nil:
		return "not known whether it is in use"
	case w.Busy == nil:
		return "no utilization"
	case w.Energy == nil:
		return "no energy counter"
	case w.PowerLimit == nil || *w.PowerLimit == 0:
		return "no power limit"
	case w.NVLink == nil:
		return "no NVLink counters of 64 bits, and no others show what it sends"
	}
	return ""
}
