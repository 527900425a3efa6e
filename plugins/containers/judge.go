package main

import (
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/internal/npd"
)

type limits struct{ after time.Duration }

func (l *limits) judge(s snapshot) npd.Result {
	result := npd.Result{Healthy: "containers have their GPUs and end when they are killed"}
	for _, f := range s.Faults {
		if s.Boot.Uptime-f.Since < l.after {
			// A container that starts or ends looks like that for a moment.
			result.Unconfirmed = true
			continue
		}
		repair := conditions.Inspect
		if f.Kind == lostGPU {
			repair = conditions.RestartApp
		}
		result.Found(repair, f.Subject, f.Text)
	}
	for _, u := range s.Unread {
		result.NotRead(u.Subject, u.Why)
	}
	result.Unshared(s.Unkept)
	return result
}
