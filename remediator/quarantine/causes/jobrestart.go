package causes

import (
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// IsTainted reports whether the node carries the taint of its quarantine, and the policy knows it. A kubelet can forge the record
// and not the taint.
func (r *Record) IsTainted(p *policy.Policy, n *corev1.Node) bool {
	return r.Phase == Quarantined && r.Isolation == nil && handoff.KnownOf(p).HasTaint(r.Taint.NodeTaint()) && HasTaint(n.Spec.Taints, r.Taint)
}

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
