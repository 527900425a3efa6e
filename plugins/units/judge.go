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
		absent := func(text string) {
			result.Absent(s.Boot.Uptime < l.plugin.Grace, conditions.Inspect, subject, text)
		}
		if u.Err != "" {
			result.NotRead(subject, u.Err)
		}
		if l.Restarts > 0 && u.Restarts.Since(s.Boot.Uptime-l.Window) >= l.Restarts {
			result.Found(conditions.Inspect, subject, fmt.Sprintf("restarted %d times or more within %s", l.Restarts, l.Window))
		}
		switch {
		case u.Active == "active" || u.Active == "reloading" || u.Active == "refreshing":
		case u.Active == "failed":
			result.Found(conditions.Inspect, subject, "failed")
		case !u.needed():
		case u.Load == "masked":
			result.Found(conditions.Inspect, subject, "masked")
		case u.Load != "loaded":
			absent(u.Load)
		case u.Active == "inactive":
			absent("not running")
		default:
			// It is on its way, or systemd gives up on it soon and says failed.
			result.Found(conditions.Monitor, subject, u.Active)
		}
	}
	result.Unshared(s.Unshared)
	return result
}

// needed reports whether the unit must be active: because it is asked for, or because it is installed and enabled.
func (u unit) needed() bool {
	return u.Asked || u.Load == "loaded" && (u.File == "enabled" || u.File == "enabled-runtime")
}
