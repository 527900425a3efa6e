package nodes

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/followers/webhooks"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// deliver passes the notices of the node's record to the sender.
func (c *Controller) deliver(n *corev1.Node, d quarantine.Decision) error {
	if c.dryRun {
		return nil
	}
	var record *causes.Record
	if d.State != nil {
		record = d.State.Record
	} else if on, err := causes.RecordOf(n); err == nil {
		record = on
	}
	wanted, err := webhooks.DeliveriesOf(n, record)
	if err != nil {
		return err
	}
	c.webhooks.Deliver(n.Name, wanted)
	return nil
}

// delivered are the notices of a node that need no further delivery.
func (c *Controller) delivered(node string) map[handoff.Receipt]bool {
	receipts := map[handoff.Receipt]bool{}
	for receipt := range c.webhooks.Finished(node) {
		receipts[handoff.Receipt{Webhook: receipt.Webhook, NoticeID: receipt.ID}] = true
	}
	return receipts
}

// showOthers has what soperator and the AWS suite read, and the condition of our repairs, follow the node, once the node was written. Once
// the output is off, the condition for soperator is taken back, also from nodes that are not decided about.
func (c *Controller) showOthers(n *corev1.Node, d quarantine.Decision) {
	message, known := "", true
	if c.policy.Policy().Output.Soperator {
		message, known = d.State.Suspicion()
	}
	if known && !c.dryRun {
		c.soperator.Follow(n, message)
	}
	if !c.dryRun {
		c.aws.Follow(n, d.AWS)
		c.repaired.Follow(n, c.policy.Policy().Output.Maintenance)
	}
}

// keepEvidence reports whether there is nothing to keep about the node, or it is kept.
func (c *Controller) keepEvidence(ctx context.Context, n *corev1.Node, r *causes.Record) bool {
	if err := c.evidence.Keep(ctx, n, r); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to keep the evidence; retrying")
		return false
	}
	return true
}
