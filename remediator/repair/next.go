// Package repair decides what happens on a node: repairs, validations, sweeps and first checks. [Next] is one step, and each phase of a
// visit is one function of a file of its own, from the facts to the step:
//
//	begin.go, check.go   no visit: whether one begins, on a quarantined node or on one in service
//	emptying.go          pods that are in the way have to end; then the Job of the next attempt begins
//	working.go           the Job runs
//	ending.go            what it does on the node has to end
//	proving.go           the conditions have to say what became of the node
//
// A [situation] answers questions and changes nothing. A [decision] is written in the phases only.
package repair

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// phases are what is done in each phase of a visit. Before any of them, a visit that a person or another version has taken over ends.
var phases = map[visit.Phase]func(*decision, *visit.Visit){
	visit.Emptying: emptying,
	visit.Working:  working,
	visit.Proving:  proving,
}

// Next decides what must be done about a node. It is pure: it reads no clock and no cluster. What a step decides is one patch of the
// node; the Job and the evictions that follow from it are decided by the next step, about a node that carries it.
func Next(p *policy.Policy, f Facts, now time.Time) Step {
	d := &decision{situation: situation{policy: p, facts: f, now: now, record: f.Record.Clone(f.Node)}}
	if f.RecordErr != nil {
		d.waitFor("record", "annotation %s cannot be read, so no visit is made to the node until it is repaired or removed: %v",
			conditions.AnnotationRepair, f.RecordErr)
		removeOrphan(d)
		return d.step
	}
	if other := f.Record.OfOthers(f.Namespace); other != "" {
		d.waitFor("installation", "visit %s is of another installation of Pitcrew, whose Jobs are in namespace %s, and this one (%s) "+
			"leaves it alone; if there is no other, remove annotation %s", f.Record.Current.ID, other, f.Namespace, conditions.AnnotationRepair)
		return d.step
	}
	d.record.ClampTimes(now)
	removeOrphan(d)
	switch v := d.record.Current; {
	case v != nil && v.Phase != visit.Proving && f.Live == nil:
		d.step.NeedsLive = true
	case v != nil:
		visiting(d, v)
	case f.TooLarge == "" && !node.Excluded(f.Node):
		begin(d)
	}
	if d.step.NeedsLive {
		return Step{NeedsLive: true}
	}
	return d.finish()
}

// visiting takes the next step of a visit.
func visiting(d *decision, v *visit.Visit) {
	if d.facts.Live != nil && d.facts.Live.Bundle != "" {
		v.Bundle = d.facts.Live.Bundle
	}
	if v.Phase == visit.Ending {
		ending(d, v)
		return
	}
	if why := d.takenOver(v); why != "" {
		d.stop(why)
		return
	}
	if why := cmp.Or(v.OfOtherVersion(), d.abandoned(v)); why != "" {
		d.forget(v, why)
		return
	}
	if phase := phases[v.Phase]; phase != nil {
		phase(d, v)
	}
}

// finish returns the step that the node must carry.
func (d *decision) finish() Step {
	d.record.Fit()
	d.step.Record = d.record
	v, n := d.record.Current, d.facts.Node
	if v != nil && v.Phase == visit.Working {
		d.step.KeepJob = v.JobName(n)
	}
	// A person may remove the taint of a visit that ends: it is not put back.
	if v != nil && (v.Phase == visit.Working || v.Phase == visit.Ending && slices.ContainsFunc(n.Spec.Taints, d.record.SetsTaint)) {
		d.step.maintenance = &corev1.Taint{Key: conditions.TaintMaintenance, Value: string(v.Kind), Effect: corev1.TaintEffectNoSchedule}
	}
	return d.step
}

// decision is one run of [Next]: the record and the step as far as they are decided.
type decision struct {
	situation
	step Step
}

// openVisit begins a visit.
func openVisit(d *decision, v visit.Visit) {
	previous := ""
	if len(d.record.Last) > 0 {
		previous = d.record.Last[0].ID
	}
	v.ID = visit.ShortHash(string(d.facts.Node.UID), d.now.Format(time.RFC3339Nano), previous, string(v.Kind))
	v.Namespace, v.Phase, v.StartedAt, v.PhaseSince, v.ActionSince = d.facts.Namespace, visit.Emptying, d.now, d.now, d.now
	v.BootID = d.boot()
	d.record.Current = &v
	d.requeue(time.Millisecond)
}

// stop closes the visit because a person has taken over, and remembers that no other follows for the quarantine.
func (d *decision) stop(why string) {
	v := d.record.Current
	if v.Quarantine != "" {
		d.record.Stopped = v.Quarantine
	}
	// What was asked for before would begin the next visit at once. A stop stays: it has the name of the person.
	if v.Quarantine == "" || !d.requested(visit.RequestStop) && (v.Kind == visit.Validation || !d.requested(visit.RequestRelease)) {
		d.record.Request = nil
	}
	d.event(corev1.EventTypeNormal, endReason(v.Kind), "%s %s", v.Kind, why)
	d.close(visit.Failed, "%s", why)
}

// close ends the visit, once what it does on the node has ended.
func (d *decision) close(phase visit.Phase, format string, args ...any) {
	v := *d.record.Current
	if phase == visit.Failed && v.Kind == visit.Validation && d.requested(visit.RequestRelease) {
		d.record.Request = nil // it would begin again and again
	}
	if len(d.step.Notes) == 0 {
		d.note(&v, breaker.Undone)
	}
	before := v
	v.Phase, v.PhaseSince, v.Held = phase, d.now, ""
	v.Outcome = causes.Clip(fmt.Sprintf(format, args...), conditions.MaxMessage)
	if endFirst(d, &v, &before) {
		d.record.Current = &v
		return
	}
	d.closed(v)
}

// forget ends a visit without a result. What is reported now may begin another one.
func (d *decision) forget(v *visit.Visit, why string) {
	d.event(corev1.EventTypeWarning, endReason(v.Kind), "visit ended: %s", why)
	d.close(visit.Yielded, "%s", why)
}

func (d *decision) closed(v visit.Visit) {
	v.EndedAt = d.now
	d.record.Current = nil
	d.record.Last = append([]visit.Visit{v}, d.record.Last...)
	d.requeue(time.Second)
}

// endReason is the reason of the Event about a visit that was given up.
func endReason(kind visit.Kind) string {
	if kind == visit.Repair {
		return RepairFailed
	}
	return NodeChecked
}

func (d *decision) event(kind, reason, format string, args ...any) {
	d.step.Events = append(d.step.Events,
		causes.Event{Type: kind, Reason: reason, Message: causes.Clip(fmt.Sprintf(format, args...), 2*conditions.MaxMessage)})
}

func (d *decision) waitFor(reason, format string, args ...any) {
	d.step.Waits = &Waiting{reason, causes.Clip(fmt.Sprintf(format, args...), 2*conditions.MaxMessage)}
	d.requeue(waitPoll)
}

// note notes the outcome of the action of a repair for each condition that it is for.
func (d *decision) note(v *visit.Visit, outcome breaker.Outcome) {
	if v.Kind != visit.Repair || v.Template == "" {
		return
	}
	for _, action := range breaker.ActionsFor(v.Template, d.facts.Quarantine) {
		d.step.Notes = append(d.step.Notes, Note{action, outcome})
	}
}

func (d *decision) result(v *visit.Visit, result string) {
	r := Result{Kind: v.Kind, Result: result}
	if v.Kind == visit.Repair {
		if result == ResultFailed || result == ResultNotProven {
			d.note(v, breaker.Failed)
		}
		r.Action = v.Template
		if result == ResultProven {
			r.Took = d.now.Sub(v.StartedAt)
		}
	}
	d.step.Results = append(d.step.Results, r)
}

// requeue asks for another step after a time at the latest.
func (d *decision) requeue(after time.Duration) {
	after = max(after, time.Millisecond)
	if d.step.After == 0 || after < d.step.After {
		d.step.After = after
	}
}

func (d *decision) requeueAt(at time.Time) { d.requeue(at.Sub(d.now)) }

// interrupt has a visit wait, or closes it, instead of going on to its next Job.
func (d *decision) interrupt(v *visit.Visit, by *interruption) {
	switch {
	case by.yields:
		d.yieldToOther(v, by.why)
	case by.reason != "":
		d.waitOrGiveUp(v, by.late, by.reason, by.why)
	default:
		if by.event != "" {
			d.event(by.eventType, endReason(v.Kind), "%s", by.event)
		}
		d.close(by.phase, "%s", by.why)
	}
}

// yieldToOther ends a visit while another repairer works on the node, however long that takes: it must not keep its place of
// maxConcurrent from other nodes. It begins again afterwards, without a second approval.
func (d *decision) yieldToOther(v *visit.Visit, why string) {
	if v.ApprovedBy != "" && d.record.Request == nil {
		d.record.Request = &visit.Request{
			Kind: visit.RequestRepair, Quarantine: v.Quarantine, At: d.now, User: v.ApprovedBy, Reason: "approved before: " + why}
	}
	d.close(visit.Yielded, "%s", why)
}

// waitOrGiveUp notes what a visit waits for, and gives it up if that takes too long.
func (d *decision) waitOrGiveUp(v *visit.Visit, late bool, reason, what string) {
	if !late {
		v.Outcome = causes.Clip("waits: "+what, conditions.MaxMessage)
		d.waitFor(reason, "%s waits: %s", v.Kind, what)
		return
	}
	again := ""
	if v.Kind == visit.Repair {
		again = "; `kubectl pitcrew repair " + d.facts.Node.Name + " --approve` begins it again"
	}
	d.event(corev1.EventTypeWarning, endReason(v.Kind), "%s was given up after %s: %s%s",
		v.Kind, d.now.Sub(v.ActionSince).Round(time.Second), what, again)
	d.result(v, ResultNotStarted)
	d.close(visit.Failed, "given up: %s", what)
}

// forgetAction forgets the action of an attempt that did nothing to the node.
func (d *decision) forgetAction(v *visit.Visit) {
	if last := d.record.LastAction(v.Quarantine); v.Kind == visit.Repair && last != nil {
		d.note(v, breaker.Undone)
		v.Skipped = last.Skipped
		d.record.Repairs = d.record.Repairs[:len(d.record.Repairs)-1]
	}
}

// refuse tells a person why what they asked for is not done.
func (d *decision) refuse(format string, args ...any) {
	d.event(corev1.EventTypeWarning, RepairRefused, format, args...)
	d.record.Request = nil
}

// takenOver returns who has taken the node over from a visit; empty: no one has.
func (s *situation) takenOver(v *visit.Visit) string {
	n := s.facts.Node
	switch r := s.record.Request; {
	case r != nil && r.Kind == visit.RequestStop && r.Quarantine == v.Quarantine:
		return "stopped " + quarantine.Manual{User: r.User, Reason: r.Reason}.Note("manually")
	case v.Quarantine != "" && s.record.Stopped == v.Quarantine && (v.Kind != visit.Validation || !s.requested(visit.RequestRelease)):
		return "stopped by a person"
	case s.facts.TooLarge != "":
		return "stopped because the node is too large to judge: " + s.facts.TooLarge
	case n.Labels[conditions.LabelSkip] == "true":
		return "stopped because of label " + conditions.LabelSkip
	case node.Excluded(n):
		return "stopped because the node is being deleted or belongs to the control plane"
	case v.Kind == visit.Sweep && v.Phase == visit.Working && n.Spec.Unschedulable:
		return "stopped because the node was cordoned"
	case v.Phase == visit.Working && !slices.ContainsFunc(n.Spec.Taints, s.record.SetsTaint):
		return "stopped because taint " + conditions.TaintMaintenance + " was removed"
	}
	return ""
}
