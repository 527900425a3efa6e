package node

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/webhook"
)

// maxNotices bounds what a record keeps for webhooks that do not answer. The oldest give way: what the node is now matters more.
const maxNotices = 16

// Notice is something that webhooks are still to be told.
type Notice struct {
	// ID is the same in every delivery.
	ID    string    `json:"id"`
	Event string    `json:"event"`
	At    time.Time `json:"at"`
	Case
	// To are the webhooks that have not been told.
	To []string `json:"to"`
}

// Case is what a webhook is told of a quarantine: its id, the cause that decided and the taint.
type Case struct {
	Quarantine string                   `json:"quarantine"`
	Condition  corev1.NodeConditionType `json:"condition"`
	Rule       string                   `json:"rule"`
	Repair     conditions.Repair        `json:"repair"`
	Message    string                   `json:"message"`
	Taint      string                   `json:"taint"`
}

// payload is the body of a delivery, in the form that Standard Webhooks recommend. docs/webhooks.md describes it.
type payload struct {
	Type      string      `json:"type"`
	Timestamp time.Time   `json:"timestamp"`
	Data      payloadData `json:"data"`
}

type payloadData struct {
	Node    string    `json:"node"`
	NodeUID types.UID `json:"nodeUID"`
	Case
}

// deliveries are what a node's record wants delivered.
func deliveries(n *corev1.Node, r *Record) ([]webhook.Delivery, error) {
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

// notify notes what webhooks are to be told: by what stands in the record and not by what this decision did, for a person may
// have changed the record since the last one.
func (d *decider) notify() {
	r := d.record
	if r == nil {
		return
	}
	d.forgetTold()
	if len(d.policy.Webhooks) == 0 {
		r.Noticed = ""
		return
	}
	event, state := r.news()
	if event == "" {
		return
	}
	r.Noticed = state
	cause := r.decisive()
	notice := Notice{
		// No full stop: it is what a signature parts the id from the time with.
		ID: fmt.Sprintf("%s-%s-%d", r.ID, event, d.now.UnixMilli()), Event: event, At: d.now,
		Case: Case{r.ID, cause.Condition, r.Taint.Rule, r.Taint.Repair, cause.Message, r.Taint.String()},
	}
	for _, hook := range d.policy.Webhooks {
		if slices.Contains(hook.Events, event) {
			notice.To = append(notice.To, hook.Name)
		}
	}
	if len(notice.To) > 0 {
		r.Notices = append(r.Notices, notice)
		r.Notices = r.Notices[max(0, len(r.Notices)-maxNotices):]
	}
}

// forgetTold drops what was told, and what nobody is to be told any more.
func (d *decider) forgetTold() {
	var left []Notice
	for _, notice := range d.record.Notices {
		notice.To = slices.DeleteFunc(slices.Clone(notice.To), func(name string) bool {
			_, known := d.policy.Webhook(name)
			return !known || d.Told[webhook.Receipt{Webhook: name, ID: notice.ID}]
		})
		if len(notice.To) > 0 {
			left = append(left, notice)
		}
	}
	d.record.Notices = left
}

// news is the event that leads to the state that the record is in, and the state; the event is empty when it was noticed. A
// release is news only if the quarantine was.
func (r *Record) news() (event, state string) {
	during := r.ID + " quarantined "
	told := strings.HasPrefix(r.Noticed, during)
	switch r.Phase {
	case Quarantined:
		tainted := during + r.Taint.Since.Format(time.RFC3339Nano)
		state = tainted
		if r.Taint.Restored {
			state += " restored"
		}
		switch {
		case state == r.Noticed:
			return "", state
		case !told:
			return NodeQuarantined, state
		case !strings.HasPrefix(r.Noticed, tainted):
			return QuarantineUpgraded, state
		}
		return TaintRestored, state
	case Released:
		if !told {
			return "", r.Noticed
		}
		if r.ReleasedBy == ByPerson {
			return ReleaseByHand, r.ID + " released"
		}
		return NodeReleased, r.ID + " released"
	case Suspect:
	}
	return "", r.Noticed
}

// decisive is the cause that the taint stands for.
func (q *Quarantine) decisive() Cause {
	i := slices.IndexFunc(q.Causes, func(c Cause) bool { return c.Rule == q.Taint.Rule })
	return q.Causes[max(0, i)]
}

// deliver hands on what the record wants delivered.
func (c *Controller) deliver(n *corev1.Node, d Decision) error {
	if c.dryRun {
		return nil
	}
	var record *Record
	if d.State != nil {
		record = d.State.Record
	} else if on, err := RecordOf(n); err == nil {
		record = on
	}
	wanted, err := deliveries(n, record)
	if err != nil {
		return err
	}
	c.webhooks.Deliver(n.Name, wanted)
	return nil
}
