package main

import (
	"fmt"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

// limits is what is asked of the units.
type limits struct {
	plugin *npd.Plugin
	// Restarts within Window are too many.
	Restarts uint64
	Window   time.Duration
}

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "services are as expected"}
	for _, u := range s.Units {
		subject := "unit " + u.Name
		found := func(repair conditions.Repair, text string) {
			result.Findings = append(result.Findings, conditions.Finding{Repair: repair, Subject: subject, Text: text})
		}
		// absent is a finding that a node that is still starting may have.
		absent := func(text string) {
			if s.Boot.Uptime < l.plugin.Grace {
				result.Unread = append(result.Unread, npd.Unread{Subject: subject, Why: text + ", but the node has only just booted"})
				return
			}
			found(conditions.Inspect, text)
		}
		if u.Err != "" {
			result.Unread = append(result.Unread, npd.Unread{Subject: subject, Why: u.Err})
		}
		if l.Restarts > 0 && u.Restarts.Since(s.Boot.Uptime-l.Window) >= l.Restarts {
			found(conditions.Inspect, fmt.Sprintf("restarted %d times or more within %s", l.Restarts, l.Window))
		}
		switch {
		case u.Active == "active" || u.Active == "reloading" || u.Active == "refreshing":
		case u.Active == "failed":
			found(conditions.Inspect, "failed")
		case !u.wanted():
		case u.Load == "masked":
			found(conditions.Inspect, "masked")
		case u.Load != "loaded":
			absent(u.Load)
		case u.Active == "inactive":
			absent("not running")
		default:
			// It is on its way, or systemd gives up on it soon and says failed.
			found(conditions.Monitor, u.Active)
		}
	}
	if s.Unshared != "" {
		result.Findings = append(result.Findings, conditions.Finding{
			Repair: conditions.Monitor, Subject: "state", Text: "not kept between runs: " + s.Unshared,
		})
	}
	return result
}

// wanted tells whether the unit must be active: because it is asked for, or because it is installed and enabled.
func (u unit) wanted() bool {
	return u.Asked || u.Load == "loaded" && (u.File == "enabled" || u.File == "enabled-runtime")
}
