package quarantine

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// The bounds of a record. A record is input, see [Seen]: one that exceeds a bound is unreadable. They leave room for a next
// version that keeps more than this one writes.
const (
	// maxRecord is the most bytes of the annotation. All annotations of a Node share 256 KiB.
	maxRecord = 192 << 10
	// maxCauses is how many causes a quarantine has at most; there are as many conditions on a node that has everything.
	maxCauses = 64
	// maxTimes, maxClosed, maxDone and maxSent bound the flap times of a cause, the closed quarantines, the repairs and the
	// notices; maxAdded each kind of what was handed off.
	maxTimes, maxClosed, maxDone, maxSent, maxAdded = 64, 4 * lastKept, 4 * maxRepairs, 4 * handoff.MaxNotices, 512
	// maxText is the most bytes of a message, maxName of anything else.
	maxText, maxName = 4 * conditions.MaxMessage, 512
)

// checkBounds returns what in a record is larger than any remediator writes it.
func (r *Record) checkBounds() error {
	b := bounds{}
	b.text("nodeUID", string(r.NodeUID), maxName)
	b.text("boot.id", r.Boot.ID, maxName)
	b.text("noticed", r.LastNotified, maxName)
	b.list("last", len(r.Last), maxClosed)
	b.list("repairs", len(r.Repairs), maxDone)
	for _, done := range r.Repairs {
		b.text("repairs.gpu", done.GPU, maxText)
		b.text("repairs.code", done.Code, maxText)
	}
	b.list("notices", len(r.Notices), maxSent)
	for _, n := range r.Notices {
		b.list("notices.to", len(n.To), maxAdded)
		for _, name := range append([]string{n.ID, n.Event, n.Quarantine, string(n.Condition), n.Rule, n.Taint}, n.To...) {
			b.text("notices", name, maxName)
		}
		b.text("notices.message", n.Message, maxText)
	}
	b.text("domain", r.Domain.String(), maxName)
	b.quarantine(&r.Quarantine)
	for i := range r.Last {
		b.quarantine(&r.Last[i])
	}
	return b.err
}

// bounds keeps the first thing that is out of bounds.
type bounds struct{ err error }

func (b *bounds) fail(format string, args ...any) {
	if b.err == nil {
		b.err = fmt.Errorf(format, args...)
	}
}

func (b *bounds) text(name, text string, most int) {
	if len(text) > most {
		b.fail("%s has %d bytes, more than %d", name, len(text), most)
	}
}

func (b *bounds) list(name string, length, most int) {
	if length > most {
		b.fail("%s has %d entries, more than %d", name, length, most)
	}
}

func (b *bounds) quarantine(q *Quarantine) {
	b.text("id", q.ID, maxName)
	b.text("releasedBy", q.ReleasedBy, maxName)
	b.text("releaseUser", q.ReleaseUser, maxName)
	b.text("releaseReason", q.ReleaseReason, maxText)
	b.list("causes", len(q.Causes), maxCauses)
	for _, c := range q.Causes {
		b.text("condition", string(c.Condition), maxName)
		b.text("rule", c.Rule, maxName)
		b.text("message", c.Message, maxText)
		b.text("user", c.User, maxName)
		b.text("bootID", c.BootID, maxName)
		b.text("link.role", string(c.Link.Role), maxName)
		b.text("link.origin", c.Link.Origin, maxName)
		b.list("covered", len(c.Covered), maxAdded)
		for _, message := range c.Covered {
			b.text("covered", message, maxText)
		}
		b.list("dips", len(c.FlapTimes), maxTimes)
	}
	if t := q.Taint; t != nil {
		b.text("taint.rule", t.Rule, maxName)
		b.text("taint.heldFor", t.HeldFor, maxName)
		b.taint(t.NodeTaint())
	}
	if i := q.Isolation; i != nil {
		b.list("isolation.gpus", len(i.GPUs), maxAdded)
		for _, g := range i.GPUs {
			b.text("isolation.gpus.address", g.Address, maxName)
			b.text("isolation.gpus.uuid", g.UUID, maxName)
			b.list("isolation.gpus.devices", len(g.Devices), maxAdded)
			for _, name := range g.Devices {
				b.text("isolation.gpus.devices", name, maxName)
			}
		}
	}
	if h := q.HandOff; h != nil {
		b.list("handOff.labels", len(h.Labels), maxAdded)
		b.list("handOff.annotations", len(h.Annotations), maxAdded)
		b.list("handOff.taints", len(h.Taints), maxAdded)
		for _, added := range []map[string]string{h.Labels, h.Annotations} {
			for key, value := range added {
				b.text("handOff", key, maxName)
				b.text("handOff", value, maxName)
			}
		}
		for _, t := range h.Taints {
			b.taint(t)
		}
	}
}

// taint checks what the API server would refuse, because the taint of a record may be put back.
func (b *bounds) taint(t corev1.Taint) {
	wrong := append(validation.IsQualifiedName(t.Key), validation.IsValidLabelValue(t.Value)...)
	effects := []corev1.TaintEffect{corev1.TaintEffectPreferNoSchedule, corev1.TaintEffectNoSchedule, corev1.TaintEffectNoExecute}
	if !slices.Contains(effects, t.Effect) {
		wrong = append(wrong, "unknown effect")
	}
	if len(wrong) > 0 {
		b.fail("has taint %.80q: %s", t.ToString(), strings.Join(wrong, ", "))
	}
}

// clampTimes takes each time that is further ahead than clocks differ for now: it is of a clock that was ahead, or forged, and
// a timer that runs from it would never end.
func (r *Record) clampTimes(now time.Time) {
	clamp := func(times ...*time.Time) {
		for _, at := range times {
			if FromFuture(*at, now) {
				*at = now
			}
		}
	}
	clamp(&r.Boot.Seen)
	for i := range r.Repairs {
		clamp(&r.Repairs[i].At)
	}
	r.Notices = slices.Clone(r.Notices)
	for i := range r.Notices {
		clamp(&r.Notices[i].At)
	}
	quarantines := []*Quarantine{&r.Quarantine}
	for i := range r.Last {
		quarantines = append(quarantines, &r.Last[i])
	}
	for _, q := range quarantines {
		clamp(&q.QuarantinedAt, &q.ReleasedAt, &q.DevicesUnknownSince)
		if q.Isolation != nil {
			isolation := *q.Isolation
			clamp(&isolation.PendingSince)
			q.Isolation = &isolation
		}
		q.Causes = slices.Clone(q.Causes)
		for i := range q.Causes {
			c := &q.Causes[i]
			clamp(&c.FirstSeen, &c.HealthySince, &c.Link.Since)
			c.FlapTimes = slices.Clone(c.FlapTimes)
			for k := range c.FlapTimes {
				clamp(&c.FlapTimes[k])
			}
		}
		if q.Taint != nil {
			t := *q.Taint
			clamp(&t.Since)
			q.Taint = &t
		}
	}
}

// fit drops history, and then shortens messages, until the record is one that [ParseRecord] reads. The conditions' messages
// are of the node's choosing, and JSON may need six bytes for one of theirs.
func (r *Record) fit() {
	if r == nil {
		return
	}
	for most := conditions.MaxMessage; len(r.String()) > maxRecord && most > 1; {
		switch {
		case len(r.Last) > 0:
			r.Last = r.Last[:len(r.Last)-1]
		case len(r.Notices) > 1:
			r.Notices = r.Notices[1:]
		default:
			most /= 2
			for i := range r.Causes {
				r.Causes[i].Message, r.Causes[i].Covered = Clip(r.Causes[i].Message, most), nil
			}
		}
	}
}

var errTooLarge = errors.New("is larger than any that the remediator writes")
