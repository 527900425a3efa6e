package nodes

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/webhook"
)

// payload is the body of a delivery, in the form that Standard Webhooks recommend. docs/webhooks.md describes it.
type payload struct {
	Type      string      `json:"type"`
	Timestamp time.Time   `json:"timestamp"`
	Data      payloadData `json:"data"`
}

type payloadData struct {
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	handoff.Case
}

// deliver passes the notices of the node's record to the sender.
func (c *Controller) deliver(n *corev1.Node, d quarantine.Decision) error {
	if c.dryRun {
		return nil
	}
	var record *quarantine.Record
	if d.State != nil {
		record = d.State.Record
	} else if on, err := quarantine.RecordOf(n); err == nil {
		record = on
	}
	wanted, err := deliveries(n, record)
	if err != nil {
		return err
	}
	c.webhooks.Deliver(n.Name, wanted)
	return nil
}

// deliveries are those of the notices in a node's record.
func deliveries(n *corev1.Node, r *quarantine.Record) ([]webhook.Delivery, error) {
	if r == nil {
		return nil, nil
	}
	var list []webhook.Delivery
	for _, notice := range r.Notices {
		body, err := json.Marshal(payload{notice.Event, notice.At, payloadData{n.Name, r.NodeUID, notice.Case}})
		if err != nil {
			return nil, fmt.Errorf("encode notice %s of node %s: %w", notice.ID, n.Name, err)
		}
		for _, name := range notice.To {
			list = append(list, webhook.Delivery{Webhook: name, ID: notice.ID, At: notice.At, Body: body})
		}
	}
	return list, nil
}

// delivered are the notices of a node that need no further delivery.
func (c *Controller) delivered(node string) map[handoff.Receipt]bool {
	receipts := map[handoff.Receipt]bool{}
	for receipt := range c.webhooks.Finished(node) {
		receipts[handoff.Receipt{Webhook: receipt.Webhook, NoticeID: receipt.ID}] = true
	}
	return receipts
}
