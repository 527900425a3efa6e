package restart

import (
	"slices"
	"strings"
	"time"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// The bounds of a record that is read. They are not narrower than what any version writes.
const (
	// maxRead is the size in bytes of the largest record. The UIDs of MaxPods pods, the causes and what else a version has
	// written stay below it.
	maxRead = 240 << 10
	// maxName is the longest name or UID of an object in bytes.
	maxName = 253
	// maxText is the longest sentence in bytes.
	maxText = 1 << 10
	// maxCount bounds counters, so that they can still be counted up.
	maxCount = 1 << 30
)

// bound cuts everything in the record that has no natural end.
func (rec *Record) bound() {
	rec.Total = min(max(rec.Total, 0), maxCount)
	rec.Recent = slices.DeleteFunc(rec.Recent, impossible)
	rec.Recent = rec.Recent[max(0, len(rec.Recent)-policy.MaxPerDayLimit):]
	rec.Last = rec.Last[:min(len(rec.Last), keptRestarts)]
	for i := range rec.Last {
		rec.Last[i].bound()
		rec.Last[i].Pods, rec.Last[i].Moving = nil, 0
	}
	if rec.Current != nil {
		rec.Current.bound()
	}
}

func (r *Restart) bound() {
	r.Quarantines = slices.DeleteFunc(r.Quarantines, func(c Cause) bool {
		return max(len(c.ID), len(c.Node), len(c.NodeUID), len(c.Taint.Value)) > maxName || len(c.Taint.Key) > 2*maxName
	})
	r.Quarantines = r.Quarantines[:min(len(r.Quarantines), maxCauses)]
	for i := range r.Quarantines {
		c := &r.Quarantines[i]
		c.Reason = cut(c.Reason, maxReason)
		c.Taint.TimeAdded = nil
		if impossible(c.Since) {
			c.Since = time.Time{}
		}
	}
	r.Held, r.Outcome = cut(r.Held, maxText), cut(r.Outcome, maxText)
	r.Moving = min(max(r.Moving, 0), MaxPods)
	r.Ranks = min(max(r.Ranks, 0), maxCount)
	r.Streak = min(max(r.Streak, 0), maxCount)
	r.Retries = min(max(r.Retries, 0), maxCount)
	if len(r.Command) > maxName {
		r.Command = ""
	}
	for _, t := range []*time.Time{&r.StartedAt, &r.PhaseSince, &r.EndedAt, &r.CheckpointBy, &r.RunningSince} {
		if impossible(*t) {
			*t = time.Time{}
		}
	}
}

// impossible reports whether JSON could not express the time in every time zone, nor after a second was added.
func impossible(t time.Time) bool {
	year := t.UTC().Year()
	return !t.IsZero() && (year < 1 || year > 9998)
}

// cut shortens a text to so many bytes, and shows that with three more.
func cut(text string, to int) string {
	const more = "..."
	if len(text) <= to+len(more) {
		return text
	}
	return strings.ToValidUTF8(text[:to], "") + more
}

// Clamp returns the record without times that are further in the future than clocks differ, see [conditions.MaxClockSkew], and with
// a checkpoint deadline of at most grace after the start of the restart. A restart under way that began in the future begins now: the
// record has to be written then, or each read would have it begin now. What was closed in the future was closed long ago. changed reports
// whether the restart under way is another one.
func (rec Record) Clamp(grace time.Duration, now time.Time) (clamped Record, changed bool) {
	ahead := func(t time.Time) bool { return t.After(now.Add(conditions.MaxClockSkew)) }
	rec.Recent = slices.DeleteFunc(slices.Clone(rec.Recent), ahead)
	rec.Last = slices.Clone(rec.Last)
	for i := range rec.Last {
		for _, t := range []*time.Time{&rec.Last[i].StartedAt, &rec.Last[i].PhaseSince, &rec.Last[i].EndedAt} {
			if ahead(*t) {
				*t = time.Time{}
			}
		}
	}
	if rec.Current == nil {
		return rec, false
	}
	cur := *rec.Current
	rec.Current = &cur
	for _, t := range []*time.Time{&cur.StartedAt, &cur.PhaseSince} {
		if ahead(*t) {
			*t, changed = now, true
		}
	}
	if ahead(cur.RunningSince) {
		cur.RunningSince, changed = time.Time{}, true
	}
	if latest := cur.StartedAt.Add(grace).Truncate(time.Second); cur.Phase == Checkpointing && cur.CheckpointBy.After(latest) {
		cur.CheckpointBy, changed = latest, true
	}
	return rec, changed
}

// Summary is what other restarts have to know of a restart under way, with its first causes. It is small, whatever the record contains.
func (r Restart) Summary() Restart {
	const causes = 8
	s := Restart{ID: r.ID, Phase: r.Phase, StartedAt: r.StartedAt, PhaseSince: r.PhaseSince, CheckpointBy: r.CheckpointBy, Moving: r.Moving}
	if r.Held != "" {
		s.Held = "held"
	}
	for _, c := range r.Quarantines[:min(len(r.Quarantines), causes)] {
		s.Quarantines = append(s.Quarantines, Cause{ID: c.ID, Node: c.Node, NodeUID: c.NodeUID})
	}
	return s
}
