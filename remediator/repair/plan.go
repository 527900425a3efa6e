package repair

import (
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/starts"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// Reasons of Events on Nodes.
const (
	RepairStarted   = "RepairStarted"
	RepairSucceeded = "RepairSucceeded"
	RepairFailed    = "RepairFailed"
	RepairRefused   = "RepairRefused"
	RepairWaiting   = "RepairWaiting"
	SweepStarted    = "SweepStarted"
	SweepYielded    = "SweepYielded"
	NodeChecked     = "NodeChecked"
)

const (
	// emptyPoll is how often the pods of a node that has to become empty are listed, workPoll how often a Job under way is looked at
	// if nothing changes, waitPoll how often a visit that waits for something else is.
	emptyPoll, workPoll, waitPoll = 15 * time.Second, 30 * time.Second, 30 * time.Second
	// StartTimeout is how long a Job may take until a container of it runs.
	StartTimeout = 5 * time.Minute
	// refusedRetry is how soon an action that the node refused is tried again.
	refusedRetry = 5 * time.Minute
	// maxJobFailures is how many Jobs of a check may fail to run.
	maxJobFailures = 2
)

// Facts is what is known about a node and the visit to it: plain values, no client.
type Facts struct {
	Node *corev1.Node
	// Record is nil when the node has none; RecordErr is set when it has one that does not parse. The same holds for the record of
	// the quarantine.
	Record        *visit.Record
	RecordErr     error
	Quarantine    *causes.Record
	QuarantineErr error
	// Paused is why everything is paused, empty when it is not.
	Paused string
	// Namespace is where the Jobs are.
	Namespace string
	// Job is that of the present attempt; nil: there is none. Created is its UID, if this process has created it: it may be gone again.
	Job     *batchv1.Job
	Created types.UID

	// OrphanSince is since when the node is known to have a taint of [OrphanOf]; zero: it has none.
	OrphanSince time.Time

	// Has tells which of the following was read. What a step lacks is in its [Step.Needs].
	Has Needs
	// Pods are those on the node.
	Pods []corev1.Pod
	// JobPods are those of the Job.
	JobPods []corev1.Pod
	// Template is the PodTemplate of name Has.Template; nil: there is none, and TemplateProblem may say why.
	Template        *corev1.PodTemplate
	TemplateProblem string
	// Selected is set when a sweep has chosen the node; nil: none has.
	Selected *Selection
	// Awaited is a pod that waits and could run on the node if no sweep were there, as namespace/name; empty: none is known.
	Awaited string
	// BreakerOpen is set while the breaker allows no quarantine.
	BreakerOpen bool
	// Held are the actions that failed on several nodes in a row, and on how many, see [breaker.State.Held].
	Held map[breaker.Action]int
	// Peers are all other nodes.
	Peers []Peer
	// Earlier are the starts of repairs on nodes of this name that the record does not have.
	Earlier starts.Ring
}

// Needs are facts that cost a request or a look at all nodes, and that few steps need.
type Needs struct {
	Pods, JobPods, Breaker, Peers bool
	// Template is the name of a PodTemplate.
	Template string
}

// Any tells whether anything is needed.
func (n Needs) Any() bool { return n != Needs{} }

// Plus are all needs of both.
func (n Needs) Plus(more Needs) Needs {
	n.Pods, n.JobPods, n.Breaker, n.Peers = n.Pods || more.Pods, n.JobPods || more.JobPods, n.Breaker || more.Breaker, n.Peers || more.Peers
	if more.Template != "" {
		n.Template = more.Template
	}
	return n
}

// Step is what must be done about a node. What the node must carry comes first: everything else is done once it carries that.
type Step struct {
	// Needs is what has to be read before there is a step. Everything else is empty then.
	Needs Needs
	// Record is what the node must carry; nil leaves the node as it is.
	Record *visit.Record
	// maintenance is the taint that the node must have; nil: none of ours.
	maintenance *corev1.Taint
	// orphan is a taint that nobody takes away otherwise; nil: there is none.
	orphan *corev1.Taint
	// untaint is the key of the taint of new nodes if it must go.
	untaint string
	// Events are to be written once the node carries Record.
	Events []causes.Event
	// Results are to be counted then.
	Results []Result
	// Notes are to be noted in the [breaker.State] before the node carries Record.
	Notes []Note
	// Waits is what the node waits for; nil: nothing. It is to be reported once.
	Waits *Waiting
	// Create is a Job to create, unless it exists.
	Create *batchv1.Job
	// Evict are pods to evict.
	Evict []corev1.Pod
	// KeepJob is the name of the Job that the visit has now. All others for the node are to be deleted.
	KeepJob string
	// After is when to look again even if nothing changes; zero: never.
	After time.Duration
}

// Note is what is known of an action on the node.
type Note struct {
	Action  breaker.Action
	Outcome breaker.Outcome
}

// Waiting is what a node waits for.
type Waiting struct {
	// Reason is a word, such as "approval"; Message explains it.
	Reason, Message string
}

// Result is the end of an attempt, or of a visit, for metrics.
type Result struct {
	Kind visit.Kind
	// Action is the template of a repair.
	Action string
	// Result is one word: proven, not-proven, failed, refused, not-started, healthy, problem, yielded.
	Result string
	// Took is how long a repair that has ended well took from its start, zero otherwise.
	Took time.Duration
}

// The values of [Result.Result].
const (
	ResultProven     = "proven"
	ResultNotProven  = "not-proven"
	ResultFailed     = "failed"
	ResultRefused    = "refused"
	ResultNotStarted = "not-started"
	ResultHealthy    = "healthy"
	ResultProblem    = "problem"
	ResultYielded    = "yielded"
)

// Apply puts what a step decides on a node object.
func (s Step) Apply(n *corev1.Node) {
	if s.Record != nil {
		s.Record.Put(n)
	}
	switch {
	case s.maintenance != nil && s.Record.Current.Pauses:
		n.Labels = operator.Pause(n.Labels)
	case s.Record != nil || s.orphan != nil: // a record that cannot be read may be about a Job that runs
		n.Labels = operator.Resume(n.Labels)
	}
	n.Spec.Taints = slices.DeleteFunc(slices.Clone(n.Spec.Taints), func(t corev1.Taint) bool {
		return s.Record != nil && s.Record.SetsTaint(t) && (s.maintenance == nil || t.Value != s.maintenance.Value) ||
			s.untaint != "" && t.Key == s.untaint ||
			s.orphan != nil && t.MatchTaint(s.orphan) && t.Value == s.orphan.Value
	})
	if s.maintenance != nil && !slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(s.maintenance) }) {
		n.Spec.Taints = append(n.Spec.Taints, *s.maintenance)
	}
}

// Next decides what must be done about a node. It is pure: it reads no clock and no cluster. What a step decides is one patch of the
// node; the Job and the evictions that follow from it are decided by the next step, about a node that carries it.
func Next(p *policy.Policy, f Facts, now time.Time) Step {
	d := &decider{policy: p, facts: f, now: now, record: f.Record.Clone(f.Node)}
	if f.RecordErr != nil {
		d.waitFor("record", "annotation %s cannot be read, so no visit is made to the node until it is repaired or removed: %v",
			conditions.AnnotationRepair, f.RecordErr)
		d.removeOrphan()
		return d.step
	}
	if other := f.Record.OfOthers(f.Namespace); other != "" {
		d.waitFor("installation", "visit %s is of another installation of Pitcrew, whose Jobs are in namespace %s, and this one (%s) "+
			"leaves it alone; if there is no other, remove annotation %s", f.Record.Current.ID, other, f.Namespace, conditions.AnnotationRepair)
		return d.step
	}
	d.record.ClampTimes(now)
	d.decide()
	if d.step.Needs.Any() {
		return Step{Needs: d.step.Needs}
	}
	d.record.Fit()
	d.step.Record = d.record
	v := d.record.Current
	if v != nil && v.Phase == visit.Working {
		d.step.KeepJob = v.JobName(f.Node)
	}
	// A person may remove the taint of a visit that ends: it is not put back.
	if v != nil && (v.Phase == visit.Working || v.Phase == visit.Ending && slices.ContainsFunc(f.Node.Spec.Taints, d.record.SetsTaint)) {
		d.step.maintenance = &corev1.Taint{Key: conditions.TaintMaintenance, Value: string(v.Kind), Effect: corev1.TaintEffectNoSchedule}
	}
	return d.step
}

// decider is one run of [Next].
type decider struct {
	policy *policy.Policy
	facts  Facts
	now    time.Time
	record *visit.Record
	step   Step
}

func (d *decider) decide() {
	d.removeOrphan()
	v := d.record.Current
	if v == nil {
		if !node.Excluded(d.facts.Node) {
			d.begin()
		}
		return
	}
	if v.Phase == visit.Ending {
		d.end(v)
		return
	}
	if why := d.takenOver(v); why != "" {
		d.stop(why)
		return
	}
	if why := ofOtherVersion(v); why != "" {
		d.event(corev1.EventTypeWarning, endReason(v.Kind), "visit ended: %s", why)
		d.close(visit.Yielded, "%s", why)
		return
	}
	switch v.Phase {
	case visit.Emptying:
		d.empty(v)
	case visit.Working:
		before := *v
		d.work(v)
		if v.Phase == visit.Emptying {
			d.endFirst(v, &before)
		}
	case visit.Proving:
		d.prove(v)
	}
}

// takenOver says who has taken the node over from a visit; empty: nobody has.
func (d *decider) takenOver(v *visit.Visit) string {
	n := d.facts.Node
	switch r := d.record.Request; {
	case r != nil && r.Kind == visit.RequestStop && r.Quarantine == v.Quarantine:
		return "stopped " + quarantine.Manual{User: r.User, Reason: r.Reason}.Note("manually")
	case v.Quarantine != "" && d.record.Stopped == v.Quarantine && (v.Kind != visit.Validation || !d.requested(visit.RequestRelease)):
		return "stopped by a person"
	case n.Labels[conditions.LabelSkip] == "true":
		return "stopped because of label " + conditions.LabelSkip
	case node.Excluded(n):
		return "stopped because the node is being deleted or belongs to the control plane"
	case v.Kind == visit.Sweep && v.Phase == visit.Working && n.Spec.Unschedulable:
		return "stopped because the node was cordoned"
	case v.Phase == visit.Working && !slices.ContainsFunc(n.Spec.Taints, d.record.SetsTaint):
		return "stopped because taint " + conditions.TaintMaintenance + " was removed"
	}
	return ""
}

// ofOtherVersion says why this version does not go on with a visit that another one has begun; empty: it does.
func ofOtherVersion(v *visit.Visit) string {
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

// stop closes the visit because a person has taken over, and remembers that no other follows for the quarantine.
func (d *decider) stop(why string) {
	v := d.record.Current
	if v.Quarantine != "" {
		d.record.Stopped = v.Quarantine
	}
	// What was asked for before would begin the next visit at once. A stop stays: it says who has asked for it.
	if v.Quarantine == "" || !d.requested(visit.RequestStop) && (v.Kind == visit.Validation || !d.requested(visit.RequestRelease)) {
		d.record.Request = nil
	}
	d.event(corev1.EventTypeNormal, endReason(v.Kind), "%s %s", v.Kind, why)
	d.close(visit.Failed, "%s", why)
}

// close ends the visit, once what it does on the node has ended.
func (d *decider) close(phase visit.Phase, format string, args ...any) {
	v := *d.record.Current
	if phase == visit.Failed && v.Kind == visit.Validation && d.requested(visit.RequestRelease) {
		d.record.Request = nil // it would begin again and again
	}
	if len(d.step.Notes) == 0 {
		d.step.note(&v, d.facts.Quarantine, breaker.Undone)
	}
	before := v
	v.Phase, v.PhaseSince, v.Held = phase, d.now, ""
	v.Outcome = causes.Clip(fmt.Sprintf(format, args...), conditions.MaxMessage)
	if d.endFirst(&v, &before) {
		d.record.Current = &v
		return
	}
	d.closed(v)
}

func (d *decider) closed(v visit.Visit) {
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

// held says why no action may begin on the node now; empty: it may. It asks for what it lacks.
func (d *decider) held() string {
	switch {
	case d.facts.Paused != "":
		return fmt.Sprintf("paused (%s)", causes.Clip(d.facts.Paused, conditions.MaxMessage/4))
	case d.facts.QuarantineErr != nil:
		return "the quarantine record of the node cannot be read"
	}
	if why := otherRepairer(d.facts.Node, d.record, d.now); why != "" {
		return why
	}
	if d.policy.Breaker == nil {
		return ""
	}
	if !d.facts.Has.Breaker {
		d.step.Needs.Breaker = true
		return ""
	}
	if d.facts.BreakerOpen {
		return "the breaker is open: Pitcrew has quarantined many nodes in a short time, " +
			"and begins nothing until it closes (`kubectl pitcrew status`)"
	}
	return ""
}

// otherRepairer says who else works on the node; empty: nobody does.
func otherRepairer(n *corev1.Node, r *visit.Record, now time.Time) string {
	marked := false
	for _, t := range n.Spec.Taints {
		switch {
		case node.OfOtherRepairer(t), t.Key == conditions.TaintMaintenance && !r.SetsTaint(t):
			return "another repairer works on the node: it has taint " + t.ToString()
		}
		marked = marked || t.Key == conditions.TaintMaintenance
	}
	if label := operator.PausedByOthers(n.Labels); label != "" {
		return "the GPU operator works on the node, as in a driver upgrade: it has label " + label
	}
	if !marked && node.Maintained(n, now) {
		return "a driver upgrade is under way on the node"
	}
	return ""
}

func (d *decider) event(kind, reason, format string, args ...any) {
	d.step.Events = append(d.step.Events,
		causes.Event{Type: kind, Reason: reason, Message: causes.Clip(fmt.Sprintf(format, args...), 2*conditions.MaxMessage)})
}

func (d *decider) waitFor(reason, format string, args ...any) {
	d.step.Waits = &Waiting{reason, causes.Clip(fmt.Sprintf(format, args...), 2*conditions.MaxMessage)}
	d.requeue(waitPoll)
}

func (d *decider) result(v *visit.Visit, result string) {
	r := Result{Kind: v.Kind, Result: result}
	if v.Kind == visit.Repair {
		if result == ResultFailed || result == ResultNotProven {
			d.step.note(v, d.facts.Quarantine, breaker.Failed)
		}
		r.Action = v.Template
		if result == ResultProven {
			r.Took = d.now.Sub(v.StartedAt)
		}
	}
	d.step.Results = append(d.step.Results, r)
}

// requeue asks to look again after a time at the latest.
func (d *decider) requeue(after time.Duration) {
	after = max(after, time.Millisecond)
	if d.step.After == 0 || after < d.step.After {
		d.step.After = after
	}
}

func (d *decider) requeueAt(at time.Time) { d.requeue(at.Sub(d.now)) }

// needs asks for facts, and tells whether they are missing.
func (d *decider) needs(n Needs) bool {
	has := d.facts.Has
	missing := Needs{Pods: n.Pods && !has.Pods, JobPods: n.JobPods && !has.JobPods,
		Breaker: n.Breaker && !has.Breaker, Peers: n.Peers && !has.Peers}
	if n.Template != "" && n.Template != has.Template {
		missing.Template = n.Template
	}
	d.step.Needs = d.step.Needs.Plus(missing)
	return missing.Any()
}

// open begins a visit.
func (d *decider) open(v visit.Visit) {
	boot := d.facts.Node.Status.NodeInfo.BootID
	previous := ""
	if len(d.record.Last) > 0 {
		previous = d.record.Last[0].ID
	}
	v.ID = visit.ShortHash(string(d.facts.Node.UID), d.now.Format(time.RFC3339Nano), previous, string(v.Kind))
	v.Namespace, v.Phase, v.StartedAt, v.PhaseSince, v.ActionSince, v.BootID = d.facts.Namespace, visit.Emptying, d.now, d.now, d.now, boot
	d.record.Current = &v
	d.requeue(time.Millisecond)
}
