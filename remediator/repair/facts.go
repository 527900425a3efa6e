package repair

import (
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
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
	// TooLarge is what of the node, or of its pods, is more than is kept of one; empty: nothing is. No visit begins then, and one that is
	// under way ends: it must not keep its place for as long as the node is too large.
	TooLarge string
	// Namespace is where the Jobs are.
	Namespace string
	// Job is that of the present attempt; nil: there is none. Created is its UID, if this process has created it: it may be gone again.
	Job     *batchv1.Job
	Created types.UID

	// JobProblem is why the Job could not be created; empty: it was not tried, or was created.
	JobProblem string
	// OrphanSince is since when the node is known to have a taint of [OrphanOf]; zero: it has none.
	OrphanSince time.Time
	// Selected is set when a sweep has chosen the node; nil: none has.
	Selected *Selection
	// Awaited is a pod that waits and could run on the node if no sweep were there, as namespace/name; empty: none is known.
	Awaited string
	// Earlier are the starts of repairs on nodes of this name that the record does not have.
	Earlier starts.Ring
	// Live is what costs requests; nil: it was not read, which is enough for a node to which no visit is made.
	Live *Live
}

// Live is what is read from the API server about a node that has a visit, or gets one.
type Live struct {
	// Pods are those on the node, JobPods those of the Job.
	Pods, JobPods []corev1.Pod
	// Bundle is the name of the evidence that was written for the visit; empty: none yet.
	Bundle string
	// Templates are the PodTemplates that exist of those that package job names in Templates; TemplateProblems are why others could not
	// be read, by name.
	Templates        map[string]*corev1.PodTemplate
	TemplateProblems map[string]string
	// BreakerOpen is set while the breaker allows no quarantine.
	BreakerOpen bool
	// Held are the actions that failed on several nodes in a row, and on how many, see [breaker.State.Held].
	Held map[breaker.Action]int
	// Peers are all other nodes. They matter only while no visit is under way.
	Peers []peers.Peer
}

// MayStart reports whether the next step may begin something on the node: what it does otherwise follows from the Job and the pods alone.
func (f Facts) MayStart() bool {
	if f.Record == nil || f.Record.Current == nil {
		return true
	}
	phase := f.Record.Current.Phase
	return phase == visit.Emptying || phase == visit.Working && f.Job == nil
}

// Step is what must be done about a node. What the node must carry comes first: everything else is done once it carries that.
type Step struct {
	// NeedsLive is set if there is no step before [Facts.Live] is read. Everything else is empty then.
	NeedsLive bool
	// Record is what the node must carry; nil leaves the node as it is.
	Record *visit.Record
	// maintenance is the taint that the node must have; nil: none of ours.
	maintenance *corev1.Taint
	// orphan is a taint that nothing else takes away; nil: there is none.
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
