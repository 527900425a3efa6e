package visit

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

// Kinds are those that this version makes.
var Kinds = []Kind{Sweep, Repair, Validation, FirstCheck}

var (
	openPhases   = []Phase{Emptying, Working, Ending, Proving}
	closedPhases = []Phase{Passed, Failed, Refused, Yielded}
)

// IsKnown reports whether this version has the kind. A visit of another kind was begun by a later version.
func (k Kind) IsKnown() bool { return slices.Contains(Kinds, k) }

// IsKnown reports whether this version has the phase.
func (p Phase) IsKnown() bool {
	return slices.Contains(openPhases, p) || slices.Contains(closedPhases, p)
}

// Closed reports whether a visit in the phase has ended.
func (p Phase) Closed() bool { return slices.Contains(closedPhases, p) }

// OfOtherVersion returns why this version does not go on with a visit that another one has begun; empty: it does.
func (v *Visit) OfOtherVersion() string {
	switch {
	case v.Group != nil:
		return "Pitcrew checks no groups of nodes any more"
	case !v.Kind.IsKnown():
		return fmt.Sprintf("kind %s is of a later version of Pitcrew", v.Kind)
	case !v.Phase.IsKnown():
		return fmt.Sprintf("phase %.40q is of a later version of Pitcrew", v.Phase)
	}
	return ""
}

// MayHaveJob reports whether there may be a Job of the present attempt. In a phase of a later version there may be one.
func (v *Visit) MayHaveJob() bool {
	return v.Phase == Working || v.Phase == Ending || !v.Phase.IsKnown() && v.Attempt > 0
}

// IsCheck reports whether the visit is a check of a node that is not quarantined. Its Job is tried once: another sweep follows in time.
func (v *Visit) IsCheck() bool { return v.Kind == Sweep || v.Kind == FirstCheck }

// Name returns the kind, and the name of a sweep.
func (v *Visit) Name() string {
	if v.Sweep != "" {
		return string(v.Kind) + " " + v.Sweep
	}
	return string(v.Kind)
}

// Retry goes back to Emptying.
func (v *Visit) Retry(now time.Time) {
	v.Phase, v.PhaseSince, v.JobUID, v.Deadline, v.JobEndedAt = Emptying, now, "", time.Time{}, time.Time{}
}

// JobName returns the name of the Job of the present attempt. It follows from the record, so that a second one cannot be created.
func (v *Visit) JobName(n *corev1.Node) string {
	return string(v.Kind) + "-" + ShortHash(string(n.UID), v.ID, fmt.Sprint(v.Attempt))
}

// ShortHash names what the texts describe, in 12 hexadecimal digits.
func ShortHash(texts ...string) string {
	h := sha256.New()
	for _, text := range texts {
		fmt.Fprintf(h, "%d:%s", len(text), text)
	}
	return hex.EncodeToString(h.Sum(nil)[:6])
}

// OfOthers returns the namespace of the Jobs of the visit under way if it is not this one: another installation of Pitcrew has begun it.
func (r *Record) OfOthers(namespace string) string {
	if r == nil || r.Current == nil || r.Current.Namespace == namespace {
		return ""
	}
	return r.Current.Namespace
}

// JobName returns the name of the Job that the visit under way has now, or had until it is known to have ended; empty: it has none.
func (r *Record) JobName(n *corev1.Node) string {
	if r == nil || r.Current == nil || !r.Current.MayHaveJob() {
		return ""
	}
	return r.Current.JobName(n)
}

// SetsTaint reports whether a visit of the record has put a taint on the node: the one under way, or the last. Others may have brought
// the taint back afterwards, with an old copy of the list.
func (r *Record) SetsTaint(t corev1.Taint) bool {
	visit := r.Current
	if visit == nil && len(r.Last) > 0 {
		visit = &r.Last[0]
	}
	return visit != nil && t.Key == conditions.TaintMaintenance && t.Effect == corev1.TaintEffectNoSchedule && t.Value == string(visit.Kind)
}

// LastVisit returns the last closed visit of one of the kinds for a quarantine; nil: none is known.
func (r *Record) LastVisit(quarantineID string, kinds ...Kind) *Visit {
	for i := range r.Last {
		if v := &r.Last[i]; v.Quarantine == quarantineID && slices.Contains(kinds, v.Kind) {
			return v
		}
	}
	return nil
}

// LastAction returns the last repair that was begun, if it was for a quarantine; nil: it was for another, or there was none.
func (r *Record) LastAction(quarantineID string) *Action {
	last := len(r.Repairs) - 1
	if last < 0 || r.Repairs[last].Quarantine != quarantineID {
		return nil
	}
	return &r.Repairs[last]
}

// Repaired reports whether the record has the action that began at a time for a quarantine. A nil record has none.
func (r *Record) Repaired(quarantine string, at time.Time) bool {
	return r != nil && slices.ContainsFunc(r.Repairs, func(a Action) bool { return a.Quarantine == quarantine && a.At.Equal(at) })
}

// RepairsWithin returns how many repairs began within a time. The actions for one quarantine are one.
func (r *Record) RepairsWithin(within time.Duration, now time.Time) int {
	of := map[string]bool{}
	for _, a := range r.Repairs {
		if now.Sub(a.At) < within {
			of[a.Quarantine] = true
		}
	}
	if v := r.Current; v != nil && v.Kind == Repair {
		of[v.Quarantine] = true
	}
	return len(of)
}

// ValidationFailed reports whether a validation for the quarantine has failed in a boot and nothing was repaired since.
func (r *Record) ValidationFailed(quarantineID, bootID string) bool {
	v := r.LastVisit(quarantineID, Repair, Validation)
	return v != nil && v.Kind == Validation && v.Phase == Failed && v.BootID == bootID
}

// NoteSwept notes that a sweep has found out whether the node is healthy, and forgets those that are not among sweeps. Of another visit it
// notes nothing.
func (r *Record) NoteSwept(v *Visit, sweeps []policy.Sweep, now time.Time) {
	if v.Kind != Sweep {
		return
	}
	kept := map[string]time.Time{v.Sweep: now}
	for _, s := range sweeps {
		if at, ok := r.Swept[s.Name]; ok && s.Name != v.Sweep {
			kept[s.Name] = at
		}
	}
	r.Swept = kept
}

// RetryAt returns when a check may be tried again after one that has failed or could not run.
func (r *Record) RetryAt(kind Kind, sweep string, wait time.Duration, now time.Time) time.Time {
	for _, v := range r.Last {
		if v.Kind != kind || v.Sweep != sweep {
			continue
		}
		if (v.Phase == Failed || v.Phase == Refused) && !v.EndedAt.After(now) {
			return v.EndedAt.Add(wait)
		}
		break
	}
	return time.Time{}
}

// ValidatedFor reports whether the node has passed a validation for the quarantine in its present boot.
func (r *Record) ValidatedFor(quarantineID, bootID string) bool {
	return r != nil && r.Checked != nil && quarantineID != "" && bootID != "" &&
		r.Checked.Quarantine == quarantineID && r.Checked.BootID == bootID
}

// Validated reports whether the node has passed a validation for its present quarantine, in its present boot, and no cause has shown a
// fault since: what shows after a check is what the check was to find. r and q may be nil. A check or a change ahead of the clock does
// not count.
func (r *Record) Validated(n *corev1.Node, q *causes.Record, now time.Time) bool {
	if q == nil || !r.ValidatedFor(q.ID, n.Status.NodeInfo.BootID) || causes.FromFuture(r.Checked.At, now) {
		return false
	}
	return !slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
		isCause := slices.ContainsFunc(q.Causes, func(cause causes.Cause) bool { return cause.Due && cause.Condition == c.Type })
		changed := c.LastTransitionTime.Time
		return isCause && changed.After(r.Checked.At) && !causes.FromFuture(changed, now)
	})
}
