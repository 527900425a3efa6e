package repair

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/firstcheck"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/sweep"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// beginFirstCheck takes the taint of new nodes away, or begins the check under load before that.
func (d *decider) beginFirstCheck() {
	f := d.policy.FirstCheck
	if why := d.held(); why != "" {
		d.waitFor("held", "first check waits: %s", why)
		return
	}
	if !node.IsReady(d.facts.Node) {
		d.waitFor("ready", "first check waits until the node is Ready")
		return
	}
	if why := d.unproved(); why != "" {
		d.waitFor("conditions", "first check waits: %s", why)
		return
	}
	if f.Template == "" {
		if d.step.Needs.Any() {
			return
		}
		d.record.Checked = &visit.Checked{At: d.now, BootID: d.facts.Node.Status.NodeInfo.BootID}
		d.step.untaint = f.Taint
		d.event(corev1.EventTypeNormal, NodeChecked, "first check has passed: %s",
			strings.Join(firstcheck.Conditions(d.policy, d.facts.Node), ", "))
		return
	}
	if retry := d.record.RetryAt(visit.FirstCheck, "", sweep.Retry, d.now); d.now.Before(retry) && !d.requested(visit.RequestCheck) {
		d.requeueAt(retry)
		return
	}
	if d.needs(Needs{Peers: true}) {
		return
	}
	checked := len(slices.DeleteFunc(slices.Clone(d.facts.Peers), func(p Peer) bool { return !p.FirstCheck }))
	if checked >= f.MaxNodes {
		d.waitFor("limits", "first check waits: %d nodes have their first check now, and firstCheck.maxNodes is %d", checked, f.MaxNodes)
		return
	}
	d.openCheck(visit.Visit{Kind: visit.FirstCheck}, f.Check)
}

// unproved says what keeps a new node from being taken for healthy; empty: nothing does.
func (d *decider) unproved() string {
	n := d.facts.Node
	return firstcheck.Text(d.policy, n, firstcheck.Lacks(d.policy, n, d.facts.Quarantine, d.now))
}
