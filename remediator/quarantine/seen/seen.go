// Package seen is what a remediator knows about the quarantines of nodes from elsewhere than from the records on them. It is pure.
package seen

import (
	"cmp"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/handoff"
)

// Seen is what a remediator knows about the quarantine of a node from elsewhere than from the record on the Node. It is kept
// in memory, and the zero value is that of a remediator that has just started. A record is input: a kubelet may annotate its
// own Node. So a quarantine in a record is confirmed only if
//
//   - this remediator has decided it, by the policy and within all limits, or
//   - it has seen the taint on the node: a kubelet may not change the taints of its Node (admission plugin NodeRestriction).
//
// Without that, the taint of a record is not put back and its jobs are not restarted, unless a present fault explains them
// and every limit allows them as if the quarantine began now. Without a decision of its own, the remediator restarts jobs only
// for a present fault, too: the rule in the record may be forged even where the taint is not. But a node with our own taint has
// its place under the limits already.
type Seen struct {
	// current is the quarantine as it was decided or seen last. The write of a decision may be refused: earlier is what was known
	// before it, until the node shows current.
	current, earlier Quarantine
	// notices are those that this remediator has made or has found when it first saw the node, by their ids.
	notices map[string]seenNotice
	// known is set once the node was seen.
	known bool
}

// Quarantine is one that was decided, or whose taint was seen.
type Quarantine struct {
	node types.UID
	id   string
	// taint is the decision.
	taint            causes.Taint
	Decided, Tainted bool
}

type seenNotice struct {
	// at is when the notice was made or found.
	at time.Time
	// written is set once the record had it: the write of one that was just made may have been refused.
	written bool
}

const (
	// noticeWindow is the time in which a node may have [handoff.MaxNotices] notices. A quarantine and its release make some four.
	noticeWindow = time.Hour
	// MaxUnwritten bounds those that no record was seen with. Some conflicts may precede each that is written; whoever wipes them
	// from the record makes no more of them.
	MaxUnwritten = 2 * handoff.MaxNotices
)

// Look is a decision about a node as it was observed.
type Look struct {
	// Observed is the record that the node had; nil: none, or one that cannot be read.
	Observed *causes.Record
	// Record is that which was decided, nil: the node needs none. HasDecided is false if nothing was decided.
	Record     *causes.Record
	HasDecided bool
	// Decided is set when the decision has put a taint of the policy on the node, within all limits.
	Decided bool
	// ShowsTaint reports whether the cluster shows the taint of a quarantine; nil: it does not.
	ShowsTaint func(*causes.Record) bool
}

// After returns what the remediator knows after a decision.
func (s Seen) After(l Look, now time.Time) Seen {
	next := Seen{known: true, notices: s.noticesAfter(l.Observed, now)}
	r := l.Record
	if !l.HasDecided && !s.known {
		r = l.Observed // paused: what is there when the node is first seen counts as seen
	}
	if r == nil {
		if !l.HasDecided {
			next.current, next.earlier, next.known = s.current, s.earlier, s.known
		}
		return next
	}
	for _, notice := range r.Notices {
		if _, ok := next.notices[notice.ID]; !ok {
			next.notices[notice.ID] = seenNotice{at: now}
		}
	}
	if r.Phase == causes.Quarantined {
		known := s.Of(r)
		next.current = Quarantine{
			node: r.NodeUID, id: r.ID, taint: decision(r.Taint),
			Decided: l.Decided || known.Decided,
			Tainted: l.Decided || known.Tainted || l.ShowsTaint != nil && l.ShowsTaint(r),
		}
	}
	if l.Observed == nil || !next.current.is(l.Observed) {
		if next.earlier = s.earlier; !s.current.equals(next.current) {
			next.earlier = s.current
		}
	}
	return next
}

// noticesAfter are the notices that are remembered after a look at a record, which may be nil.
func (s Seen) noticesAfter(r *causes.Record, now time.Time) map[string]seenNotice {
	next := map[string]seenNotice{}
	if r != nil {
		for _, notice := range r.Notices {
			if known, ok := s.notices[notice.ID]; ok || !s.known {
				next[notice.ID] = seenNotice{cmp.Or(known.at, now), true}
			}
		}
	}
	for id, notice := range s.notices {
		if _, ok := next[id]; !ok && now.Sub(notice.at) < noticeWindow {
			next[id] = notice
		}
	}
	return next
}

// AssumeDecided is what a remediator knows that has run for long: that it has decided the quarantine in the node's record, if
// the node has the taint. It is for those who predict what a running remediator does.
func AssumeDecided(n *corev1.Node, r *causes.Record) Seen {
	if r == nil || r.Phase != causes.Quarantined || !r.IsIsolated() && !causes.HasTaint(n.Spec.Taints, r.Taint) {
		return Seen{}
	}
	return Seen{current: Quarantine{node: r.NodeUID, id: r.ID, taint: decision(r.Taint), Decided: true, Tainted: true}}
}

// Notices returns how many notices it remembers.
func (s Seen) Notices() int { return len(s.notices) }

// Of is what is known about the quarantine of a record; the zero value is nothing.
func (s Seen) Of(r *causes.Record) Quarantine {
	for _, q := range []Quarantine{s.current, s.earlier} {
		if q.is(r) {
			return q
		}
	}
	return Quarantine{}
}

func (q Quarantine) is(r *causes.Record) bool {
	return r.Phase == causes.Quarantined && q.node == r.NodeUID && q.id == r.ID && q.taint == decision(r.Taint)
}

func (q Quarantine) equals(other Quarantine) bool {
	return q.node == other.node && q.id == other.id && q.taint == other.taint
}

// decision is a taint without what changes while the decision stands.
func decision(t *causes.Taint) causes.Taint {
	d := *t
	d.Since = t.Since.UTC()
	d.Restored, d.PreExisting = false, false
	return d
}

// Accepts reports whether a notice in a record may be delivered: it was made by this remediator, or was there when it first saw
// the node.
func (s Seen) Accepts(n handoff.Notice) bool {
	_, ok := s.notices[n.ID]
	return ok || !s.known
}

// MayNotify reports whether the node may have another notice.
func (s Seen) MayNotify(now time.Time) bool {
	written, unwritten := 0, 0
	for _, notice := range s.notices {
		switch {
		case now.Sub(notice.at) >= noticeWindow:
		case notice.written:
			written++
		default:
			unwritten++
		}
	}
	return written < handoff.MaxNotices && unwritten < MaxUnwritten
}
