package main

import (
	"cmp"
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
			result.Found(u.worst(), subject, fmt.Sprintf("restarted %d times or more within %s", l.Restarts, l.Window)+u.why())
		}
		switch {
		case u.runs():
		case u.Active == "failed":
			result.Found(u.worst(), subject, "failed"+u.why())
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
	if u.Name == fabricManager {
		return u.Asked // it is enabled by its package, also where there is nothing for it to do
	}
	return u.Asked || u.Load == "loaded" && (u.File == "enabled" || u.File == "enabled-runtime")
}

// worst is the class of a fault of the unit. A fabric manager that nothing needs keeps no GPU from its work: it fails, because it finds
// nothing to do (NV_WARN_NOTHING_TO_DO).
func (u unit) worst() conditions.Repair {
	if u.Name == fabricManager && !u.Asked {
		return conditions.Monitor
	}
	return conditions.Inspect
}

// why returns what is known of the end of the unit's program, in the words of `systemctl status`, "" if nothing.
func (u unit) why() string {
	text := ""
	switch {
	case u.Result == "" || u.Result == "success":
	case u.Exit == "":
		text = " (Result: " + u.Result + ")"
	default:
		text = " (Result: " + u.Result + ", " + u.Exit + ")"
	}
	if said := cmp.Or(u.Log, u.Status); said != "" {
		text += ": " + said
	}
	return text
}
