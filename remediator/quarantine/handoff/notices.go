package handoff

import (
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// MaxNotices bounds what a record keeps for webhooks that do not answer. The oldest are dropped: what the node is now
// matters more.
const MaxNotices = 16

// Notice is an event that is still to be delivered to webhooks. It stays in the record until then, so that a crash loses
// none.
type Notice struct {
	// ID is the same in every delivery.
	ID string `json:"id"`
	// Event is the reason of the Event on the Node.
	Event string    `json:"event"`
	At    time.Time `json:"at"`
	Case
	// To are the webhooks that it has not been delivered to.
	To []string `json:"to"`
}

// Case is what a webhook is sent about a quarantine: its id, the cause that decided, and the taint.
type Case struct {
	Quarantine string                   `json:"quarantine"`
	Condition  corev1.NodeConditionType `json:"condition"`
	Rule       string                   `json:"rule"`
	Repair     conditions.Repair        `json:"repair"`
	Message    string                   `json:"message" max:"text"`
	Taint      string                   `json:"taint"`
}

// Receipt identifies the delivery of a notice to a webhook.
type Receipt struct{ Webhook, NoticeID string }

// DropDelivered is notices without the deliveries that were made, and without those to webhooks that the policy no longer
// has. Forged ones go as well: those of an event that the webhook does not ask for, twice to the same webhook, and beyond [MaxNotices].
func DropDelivered(notices []Notice, p *policy.Policy, delivered map[Receipt]bool) []Notice {
	var left []Notice
	for _, notice := range notices {
		notice.To = slices.Compact(slices.Sorted(slices.Values(notice.To)))
		notice.To = slices.DeleteFunc(notice.To, func(name string) bool {
			hook, known := p.Webhook(name)
			return !known || !slices.Contains(hook.Events, notice.Event) || delivered[Receipt{name, notice.ID}]
		})
		if len(notice.To) > 0 {
			left = append(left, notice)
		}
	}
	return left[max(0, len(left)-MaxNotices):]
}

// AddNotice adds a notice for the webhooks that are configured for its event, if there are any.
func AddNotice(notices []Notice, p *policy.Policy, notice Notice) []Notice {
	for _, hook := range p.Webhooks {
		if slices.Contains(hook.Events, notice.Event) {
			notice.To = append(notice.To, hook.Name)
		}
	}
	if len(notice.To) == 0 {
		return notices
	}
	notices = append(notices, notice)
	return notices[max(0, len(notices)-MaxNotices):]
}
