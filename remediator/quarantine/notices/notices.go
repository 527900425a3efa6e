// Package notices keeps in a record what webhooks are to be sent about its quarantine. It is pure.
package notices

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/seen"
)

// Update drops what was delivered and adds what webhooks are to be sent. It goes by the record and not by what a decision did, because a
// person may have changed the record since the last one. r may be nil; isConfirmed reports whether more than the record tells of the
// quarantine.
func Update(
	r *causes.Record, p *policy.Policy, delivered map[handoff.Receipt]bool, isConfirmed func() bool, s seen.Seen, next *causes.Schedule,
) {
	if r == nil {
		return
	}
	r.Notices = handoff.DropDelivered(r.Notices, p, delivered)
	if len(p.Webhooks) == 0 {
		r.LastNotified = ""
		return
	}
	event, state := unnotified(r)
	if event == "" || r.Phase == causes.Quarantined && !isConfirmed() {
		return
	}
	if !s.MayNotify(next.Now) {
		next.RequeueAt(next.Now.Add(causes.Recheck))
		return
	}
	r.LastNotified = state
	cause := r.Decisive()
	r.Notices = handoff.AddNotice(r.Notices, p, handoff.Notice{
		// No full stop: a signature separates the id from the time with one.
		ID: fmt.Sprintf("%s-%s-%d", r.ID, event, next.Now.UnixMilli()), Event: event, At: next.Now,
		Case: handoff.Case{
			Quarantine: r.ID, Condition: cause.Condition, Rule: r.Taint.Rule, Repair: r.Taint.Repair, Message: cause.Message,
			Taint: r.Taint.String(),
		},
	})
}

// DropForged drops the notices that the remediator has not made: whoever may annotate the Node could have it sign and deliver
// anything.
func DropForged(r *causes.Record, s seen.Seen) {
	if r != nil {
		r.Notices = slices.DeleteFunc(slices.Clone(r.Notices), func(n handoff.Notice) bool { return !s.Accepts(n) })
	}
}

// unnotified is the event that leads to the state that the record is in, and that state. The event is empty when there
// was a notice about it. There is a notice about a release only if there was one about the quarantine.
func unnotified(r *causes.Record) (event, state string) {
	during := r.ID + " quarantined "
	notified := strings.HasPrefix(r.LastNotified, during)
	switch r.Phase {
	case causes.Quarantined:
		tainted := during + r.Taint.Since.Format(time.RFC3339Nano)
		state = tainted
		if r.Taint.Restored {
			state += " restored"
		}
		switch {
		case state == r.LastNotified:
			return "", state
		case !notified:
			return causes.NodeQuarantined, state
		case !strings.HasPrefix(r.LastNotified, tainted):
			return causes.QuarantineUpgraded, state
		}
		return causes.TaintRestored, state
	case causes.Released:
		if !notified {
			return "", r.LastNotified
		}
		if r.ReleasedBy == causes.ByPerson {
			return causes.ReleaseByHand, r.ID + " released"
		}
		return causes.NodeReleased, r.ID + " released"
	case causes.Suspect:
	}
	return "", r.LastNotified
}
