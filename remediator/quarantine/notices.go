package quarantine

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// updateNotices drops what was delivered and adds what webhooks are to be sent. It goes by the record and not by
// what this decision did, because a person may have changed the record since the last one.
func (d *decider) updateNotices() {
	r, p, now := d.record, d.policy, d.now
	if r == nil {
		return
	}
	r.Notices = handoff.DropDelivered(r.Notices, p, d.observed.Delivered)
	if len(p.Webhooks) == 0 {
		r.LastNotified = ""
		return
	}
	event, state := unnotifiedEvent(r)
	if event == "" {
		return
	}
	if r.Phase == Quarantined && !d.confirmed() {
		return // nothing but the record says so
	}
	if !d.observed.Seen.mayNotify(now) {
		d.next.RequeueAt(now.Add(causes.Recheck))
		return
	}
	r.LastNotified = state
	cause := r.Decisive()
	r.Notices = handoff.AddNotice(r.Notices, p, handoff.Notice{
		// No full stop: a signature separates the id from the time with one.
		ID: fmt.Sprintf("%s-%s-%d", r.ID, event, now.UnixMilli()), Event: event, At: now,
		Case: handoff.Case{
			Quarantine: r.ID, Condition: cause.Condition, Rule: r.Taint.Rule, Repair: r.Taint.Repair, Message: cause.Message,
			Taint: r.Taint.String(),
		},
	})
}

// dropNotices drops the notices that the remediator has not made: whoever may annotate the Node could have it sign and deliver
// anything.
func dropNotices(r *Record, seen Seen) {
	if r != nil {
		r.Notices = slices.DeleteFunc(slices.Clone(r.Notices), func(n handoff.Notice) bool { return !seen.accepts(n) })
	}
}

// unnotifiedEvent is the event that leads to the state that the record is in, and that state. The event is empty when there
// was a notice about it. There is a notice about a release only if there was one about the quarantine.
func unnotifiedEvent(r *Record) (event, state string) {
	during := r.ID + " quarantined "
	notified := strings.HasPrefix(r.LastNotified, during)
	switch r.Phase {
	case Quarantined:
		tainted := during + r.Taint.Since.Format(time.RFC3339Nano)
		state = tainted
		if r.Taint.Restored {
			state += " restored"
		}
		switch {
		case state == r.LastNotified:
			return "", state
		case !notified:
			return NodeQuarantined, state
		case !strings.HasPrefix(r.LastNotified, tainted):
			return QuarantineUpgraded, state
		}
		return TaintRestored, state
	case Released:
		if !notified {
			return "", r.LastNotified
		}
		if r.ReleasedBy == ByPerson {
			return ReleaseByHand, r.ID + " released"
		}
		return NodeReleased, r.ID + " released"
	case Suspect:
	}
	return "", r.LastNotified
}
