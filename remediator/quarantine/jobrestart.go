package quarantine

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// JobRestart is what the restart of jobs needs to know about a node that is [Quarantined], when a rule restarts them: its own cause is
// the reason, or else the decisive one. rules are those of its devices, if it is isolated.
func (r *Record) JobRestart(n *corev1.Node, rule policy.Rule, rules *DeviceRules) restart.Trigger {
	cause := r.Decisive()
	if i := slices.IndexFunc(r.Causes, func(c Cause) bool { return c.Rule == rule.Name }); i >= 0 {
		cause = r.Causes[i]
	}
	var isolated []devices.Device
	if r.IsIsolated() {
		isolated = rules.devices()
	}
	return restart.Trigger{
		Kind: restart.NodeQuarantined, ID: r.ID,
		Node:            n.Name,
		NodeUID:         n.UID,
		Reason:          fmt.Sprintf("%s: %s", cause.Condition, cause.Message),
		Taint:           r.Taint.NodeTaint(),
		Devices:         isolated,
		Since:           r.Taint.Since,
		CheckpointGrace: rule.CheckpointGrace,
	}
}

// restartDelays are the times after the taint at which the node's pods are listed again: the scheduler may have bound a pod
// to the node before it saw the taint.
var restartDelays = []time.Duration{2 * time.Second, 15 * time.Second, time.Minute}

// NextLook is when the pods of a node are due to be listed again that was tainted at a time, at the latest after most.
func NextLook(since, now time.Time, most time.Duration) time.Time {
	next := now.Add(most)
	for _, delay := range restartDelays {
		if at := since.Add(delay); at.After(now) && at.Before(next) {
			next = at
		}
	}
	return next
}
