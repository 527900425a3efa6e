package webhooks

import (
	"encoding/json"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/plain"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
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

// DeliveriesOf are those of the notices in a node's record.
func DeliveriesOf(n *corev1.Node, r *causes.Record) ([]Delivery, error) {
	if r == nil {
		return nil, nil
	}
	var list []Delivery
	for _, notice := range r.Notices {
		notice.Message = plain.Line(notice.Message) // of a condition of others
		body, err := json.Marshal(payload{notice.Event, notice.At, payloadData{n.Name, r.NodeUID, notice.Case}})
		if err != nil {
			return nil, fmt.Errorf("encode notice %s of node %s: %w", notice.ID, n.Name, err)
		}
		for _, name := range notice.To {
			list = append(list, Delivery{Webhook: name, ID: notice.ID, At: notice.At, Body: body})
		}
	}
	return list, nil
}
