package node

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// handsOff tells nodes that are nobody's business here.
func handsOff(n *corev1.Node) bool {
	const controlPlane, master = "node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"
	_, isControlPlane := n.Labels[controlPlane]
	_, isMaster := n.Labels[master]
	return isControlPlane || isMaster || hasTaintKey(n.Spec.Taints, controlPlane) || hasTaintKey(n.Spec.Taints, master) ||
		n.Labels[conditions.LabelSkip] == "true" || n.DeletionTimestamp != nil
}

// maintained tells whether somebody else is at work on the node.
func maintained(n *corev1.Node) bool {
	if hasTaintKey(n.Spec.Taints, conditions.TaintMaintenance) {
		return true
	}
	// The GPU operator's upgrade controller names the step it is at (NVIDIA/k8s-operator-libs pkg/upgrade/consts.go).
	// Waiting for an upgrade and having failed at one are not at work.
	switch n.Labels["nvidia.com/gpu-driver-upgrade-state"] {
	case "", "unknown", "upgrade-required", "upgrade-failed", "upgrade-done":
		return false
	}
	return true
}

// listen finds out whether anybody still confirms the node's conditions. A verdict of our own says nothing about whether
// its detectors live.
func (d *decider) listen() {
	var silent []string
	confirmed := false
	for _, c := range d.Node.Status.Conditions {
		limit, named := d.policy.UnknownAfter(c.Type)
		if !named || limit == policy.Never {
			continue
		}
		until := c.LastHeartbeatTime.Add(limit)
		d.wake(until.Add(time.Second))
		if !conditions.IsVerdict(string(c.Type)) {
			silent = append(silent, string(c.Type))
			confirmed = confirmed || !d.now.After(until)
		}
	}
	if !confirmed && !maintained(d.Node) {
		d.silent = silent
	}
}

// believable tells whether a condition says something about the node as it is now. One whose heartbeat is old has lost
// its writer. One from before the boot is about a machine that is no more, and there is no clock on a Node that says when
// it booted:
//   - With a record, we know when we first saw the boot id. That is late by our own downtime and by the kubelet's first
//     report, so a verdict of the new boot may be passed over until its next heartbeat.
//   - Without one, a node that rebooted has usually become Ready again since. That can also be a mere network cut, after
//     which a verdict is passed over until its next heartbeat, too.
//
// Heartbeats have a resolution of one second. A node clock that is wrong by minutes makes its conditions stale, or lets
// one from before the boot pass if it is ahead by more than the boot took.
func (d *decider) believable(c corev1.NodeCondition, rule policy.Rule) bool {
	if maintained(d.Node) {
		return false
	}
	heartbeat := c.LastHeartbeatTime.Time
	if rule.UnknownAfter == policy.Never && c.Status != rule.Status {
		// Its writer says nothing again after a reboot, and a boot makes nothing ill.
		return true
	}
	if rule.UnknownAfter == policy.Never && c.LastTransitionTime.After(heartbeat) {
		heartbeat = c.LastTransitionTime.Time
	}
	return d.now.Sub(heartbeat) <= rule.UnknownAfter && !heartbeat.Before(d.up().Truncate(time.Second))
}

// up is a time at which the node was in its current boot, as early as is known; zero when nothing is known.
func (d *decider) up() time.Time {
	if d.record != nil {
		return d.record.Boot.Seen
	}
	for _, c := range d.Node.Status.Conditions {
		if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time
		}
	}
	return time.Time{}
}
