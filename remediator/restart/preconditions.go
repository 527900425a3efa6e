package restart

import (
	"github.com/go-logr/logr" //nolint:depguard // the scheduler's function takes a logger; it gets one that discards
	scheduling "k8s.io/component-helpers/scheduling/corev1"

	"cmp"
	"fmt"
	"slices"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Verdict is what is done with a job that has an active pod on a quarantined node.
type Verdict string

const (
	// LeaveAlone: nothing is done and nothing reported.
	LeaveAlone Verdict = "LeaveAlone"
	// ReportBlocked: the job should be restarted, and the first precondition that fails is the reason why it is not.
	ReportBlocked Verdict = "ReportBlocked"
	// JoinRestart: a restart is under way; this quarantine becomes one of its causes.
	JoinRestart Verdict = "JoinRestart"
	// StartRestart: stop the job for a new restart if [RateLimits] allow it, or stop it again for the one under way.
	StartRestart Verdict = "StartRestart"
)

// Blocked is why a job is left alone: a word for metrics and Events, and a sentence for people. The zero value is no reason.
type Blocked struct{ Reason, Text string }

// Precondition is one condition of a restart, for people to read one by one.
type Precondition struct {
	// Name is what has to hold, in one word.
	Name   string
	Passed bool
	// Reason is the label of pitcrew_job_restart_blocked_total and the action of the Event if it has not passed; empty if
	// it has, and if the job is then left alone without a report.
	Reason string
	// Text is why it has not passed; empty if it has.
	Text string
	// RetryAfter is when to evaluate again if it has not passed; zero: when something changes.
	RetryAfter time.Duration
}

// Names of preconditions, in the order in which they are evaluated.
const (
	OptedIn             = "OptedIn"             // the job or its namespace opts in
	NotFinished         = "NotFinished"         // the job may still run
	NotDeleted          = "NotDeleted"          // it is not being deleted
	NoRestartUnderWay   = "NoRestartUnderWay"   // it is not being restarted, or has to be stopped again
	NotSuspended        = "NotSuspended"        // no user or controller has stopped it
	NotReplacingPods    = "NotReplacingPods"    // its own controller is not restarting it just now
	NotYetRestarted     = "NotYetRestarted"     // this quarantine has not restarted it before
	OwnController       = "OwnController"       // its default controller manages it
	Supported           = "Supported"           // its kind can be restarted as this job is configured
	PodsLeaveNode       = "PodsLeaveNode"       // its pods will not come back to the node
	StopDoesNotFailIt   = "StopDoesNotFailIt"   // no podFailurePolicy takes the stop for a failure
	StopDoesNotFinishIt = "StopDoesNotFinishIt" // it is no work queue that a stop would complete
	GangCanStart        = "GangCanStart"        // as many pods are left as its PodGroup needs to be scheduled
)

// Evaluate decides what is done with a job that has active pods on a quarantined node, or a failed one. The preconditions
// are in order, and the first that has not passed decides. onNode are the job's active pods on the node.
func Evaluate(t Trigger, job Job, rec Record, optedIn bool, onNode []corev1.Pod) (Verdict, []Precondition) {
	during, underWay := duringRestart(t, job, rec, onNode)
	list := []Precondition{
		unreported(OptedIn, optedIn, "neither the job nor its namespace opts in"),
		unreported(NotFinished, job.FinishedReason == "", "it has finished: "+job.FinishedReason),
		unreported(NotDeleted, job.Object.GetDeletionTimestamp() == nil, "it is being deleted"),
		underWay,
		unreported(NotSuspended, !job.Suspended, "another user or controller has stopped it"),
		unreported(NotReplacingPods, !job.ReplacingPods, "its own controller is replacing its pods"),
		notYetRestarted(t, job, rec, onNode),
	}
	list = append(list, preconditions(t, job, onNode)...)
	failed, found := FirstFailed(list)
	switch {
	case !found:
		return StartRestart, list
	case failed.Name == NoRestartUnderWay:
		return during, list
	case failed.Reason == "":
		return LeaveAlone, list
	}
	return ReportBlocked, list
}

// FirstFailed is the first precondition that has not passed.
func FirstFailed(list []Precondition) (failed Precondition, found bool) {
	i := slices.IndexFunc(list, func(p Precondition) bool { return !p.Passed })
	if i < 0 {
		return Precondition{}, false
	}
	return list[i], true
}

// unreported is a precondition that is not reported: the job needs no restart, or has not opted in.
func unreported(name string, passed bool, text string) Precondition {
	if passed {
		return Precondition{Name: name, Passed: true}
	}
	return Precondition{Name: name, Text: text}
}

// reported is a precondition that is reported unless it has passed, which is without a reason.
func reported(name string, b Blocked) Precondition {
	return Precondition{Name: name, Passed: b.Reason == "", Reason: b.Reason, Text: b.Text}
}

// duringRestart decides what a trigger changes of a restart under way.
func duringRestart(t Trigger, job Job, rec Record, onNode []corev1.Pod) (Verdict, Precondition) {
	passed := Precondition{Name: NoRestartUnderWay, Passed: true}
	cur := rec.Current
	if cur == nil {
		return StartRestart, passed
	}
	covers := cur.coversNames(t)
	switch {
	case t.Kind == JobStalled:
		return LeaveAlone, unreported(NoRestartUnderWay, false, fmt.Sprintf("it is being restarted (%s)", cur.Phase))
	case !covers && (cur.Phase == Stopping || cur.Phase == Checkpointing && t.CheckpointGrace > 0):
		return JoinRestart, unreported(NoRestartUnderWay, false, fmt.Sprintf("the restart under way (%s) covers this node, too", cur.Phase))
	case cur.Phase == Checkpointing && t.CheckpointGrace == 0:
		return StartRestart, passed // it can wait no longer
	case covers && (cur.Phase != Starting || !createdSince(onNode, cur.PhaseSince)):
		return LeaveAlone, unreported(NoRestartUnderWay, false, fmt.Sprintf("it is being restarted for this quarantine (%s)", cur.Phase))
	case covers && !boundLate(t, *cur, job, onNode):
		return ReportBlocked, reported(NoRestartUnderWay,
			Blocked{"AlreadyRestarted", "a pod came back to the node while the job was starting again"})
	}
	return StartRestart, passed
}

// createdSince reports whether one of the pods was created in or after the second of t; creation times carry no fraction.
func createdSince(pods []corev1.Pod, t time.Time) bool {
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !p.CreationTimestamp.Time.Before(t.Truncate(time.Second)) })
}

// boundLate reports whether pods that are replaced one by one, and so at once, may have been bound to the node by a scheduler that had not
// seen the taint yet. Then they are replaced once more: nothing else ever would. A job that is stopped as a whole takes longer than that.
// Nor is it so if the node was tainted again since that restart: another writer had dropped the taint (ADR 40).
func boundLate(t Trigger, by Restart, job Job, onNode []corev1.Pod) bool {
	const schedulerDelay = 30 * time.Second
	return job.Gang != nil && !t.Since.After(by.Quarantines[by.cause(t.ID)].Since) && !createdSince(onNode, t.Since.Add(schedulerDelay))
}

func notYetRestarted(t Trigger, job Job, rec Record, onNode []corev1.Pod) Precondition {
	replacedLate := false
	for _, past := range append([]Restart{ptr.Deref(rec.Current, Restart{})}, rec.Last...) {
		covers := past.coversNames(t) && past.Phase != Checkpointing
		if covers && (replacedLate || !boundLate(t, past, job, onNode)) {
			return reported(NotYetRestarted, Blocked{"AlreadyRestarted", "this quarantine has already restarted the job once: " + past.Outcome})
		}
		replacedLate = replacedLate || covers
	}
	return reported(NotYetRestarted, Blocked{})
}

// preconditions are the reasons why restarting the job would harm it or would not help, whether it has begun or not.
func preconditions(t Trigger, job Job, onNode []corev1.Pod) []Precondition {
	managed := Blocked{}
	if job.ManagedBy != "" {
		managed = Blocked{"ManagedBy", "it is managed by " + job.ManagedBy}
	}
	return []Precondition{
		reported(OwnController, managed),
		reported(Supported, job.Unsupported),
		reported(PodsLeaveNode, podsComeBack(t, job, onNode)),
		reported(StopDoesNotFailIt, stopFails(job)),
		reported(StopDoesNotFinishIt, stopFinishes(job)),
		reported(GangCanStart, gangIncomplete(job)),
	}
}

func podsComeBack(t Trigger, job Job, onNode []corev1.Pod) Blocked {
	if !t.IsNode() {
		return Blocked{} // its pods may come back
	}
	for _, pod := range job.Unplaced(onNode) {
		// Admission may have added to the template. The scheduler, not the template, has set this nodeName.
		spec := pod.Spec
		spec.NodeName = ""
		if text := cmp.Or(pinnedToHost(spec), comesBack(t, spec)); text != "" {
			return Blocked{"ComesBack", fmt.Sprintf("pod %s %s", pod.Name, text)}
		}
	}
	for _, template := range job.Templates {
		if text := comesBack(t, template.Spec); text != "" {
			return Blocked{"ComesBack", fmt.Sprintf("the pod template of %s %s", template.Of, text)}
		}
	}
	return Blocked{}
}

func stopFails(job Job) Blocked {
	for _, j := range job.Jobs {
		if rule := failsOnStop(j.Spec); rule >= 0 {
			return Blocked{"PodFailurePolicy", fmt.Sprintf(
				"podFailurePolicy rule %d of Job %s is FailJob for exit code 143 or 137, with which stopped ranks exit: "+
					"stopping would fail the Job for good", rule, j.Name)}
		}
	}
	return Blocked{}
}

func stopFinishes(job Job) Blocked {
	for _, j := range job.Jobs {
		if j.Spec.Completions == nil && j.Status.Succeeded > 0 {
			return Blocked{"WorkQueue", fmt.Sprintf(
				"Job %s has no completions and a pod succeeded: without active pods it counts as complete", j.Name)}
		}
	}
	return Blocked{}
}

// gangIncomplete is about a job with a PodGroup: the scheduler waits for as many pods as the gang had at first, also when some indexes of a
// Job have ended (https://github.com/kubernetes/kubernetes/issues/142330).
func gangIncomplete(job Job) Blocked {
	if job.GangNeeds > job.Ranks {
		return Blocked{"GangIncomplete", fmt.Sprintf(
			"its PodGroup waits for %d pods and it has only %d by now: once stopped, it would never be scheduled", job.GangNeeds, job.Ranks)}
	}
	for _, j := range job.Jobs {
		s := j.Spec.Scheduling
		if s == nil || s.SchedulingPolicy == nil || s.SchedulingPolicy.Gang == nil || j.Spec.Completions == nil {
			continue
		}
		left := *j.Spec.Completions - j.Status.Succeeded
		if ptr.Deref(j.Status.FailedIndexes, "") != "" {
			left-- // at least
		}
		if needs := ptr.Deref(s.SchedulingPolicy.Gang.MinCount, ptr.Deref(j.Spec.Parallelism, 1)); left < needs {
			return Blocked{"GangIncomplete", fmt.Sprintf(
				"Job %s is a gang of %d pods and only %d are left, because indexes have ended: once stopped, it would never be scheduled",
				j.Name, needs, left)}
		}
	}
	return Blocked{}
}

const (
	pinnedBySelector = "is pinned to this node by nodeSelector"
	pinnedByAffinity = "is pinned to this node by node affinity"
)

// pinnedToHost returns how a pod that runs on the node could run on no other: its label kubernetes.io/hostname need not be
// the name of the node.
func pinnedToHost(spec corev1.PodSpec) string {
	switch {
	case spec.NodeSelector[corev1.LabelHostname] != "":
		return pinnedBySelector
	case len(hosts(spec)) == 1:
		return pinnedByAffinity
	}
	return ""
}

// comesBack returns why a pod, or one of a template, would come back to the node despite its taint, or wait for it; empty: it would not.
func comesBack(t Trigger, spec corev1.PodSpec) string {
	switch {
	case scheduling.TolerationsTolerateTaint(logr.Discard(), spec.Tolerations, &t.Taint, true):
		return fmt.Sprintf("tolerates the taint %s", t.Taint.ToString())
	case spec.NodeName == t.Node:
		return "sets nodeName, which bypasses every taint"
	case spec.NodeSelector[corev1.LabelHostname] == t.Node:
		return pinnedBySelector
	case slices.Equal(hosts(spec), []string{t.Node}):
		return pinnedByAffinity
	}
	return ""
}

// hosts lists the hosts that a required node affinity names, without duplicates; nil if it leaves the choice open.
func hosts(spec corev1.PodSpec) []string {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil ||
		spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
		return nil
	}
	var named []string
	for _, term := range spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms {
		i := len(named)
		for _, r := range slices.Concat(term.MatchExpressions, term.MatchFields) {
			if r.Operator == corev1.NodeSelectorOpIn && (r.Key == corev1.LabelHostname || r.Key == metav1.ObjectNameField) {
				named = append(named, r.Values...)
			}
		}
		if len(named) == i { // one term that leaves the choice open is enough
			return nil
		}
	}
	slices.Sort(named)
	return slices.Compact(named)
}

// failsOnStop returns the index of the podFailurePolicy rule that fails the Job when a stopped rank exits with 143
// (SIGTERM) or 137 (SIGKILL), or -1. The Job controller matches it against any failed pod object that it sees, those
// that a suspend deleted too, and the Job is failed for good (kubernetes pkg/controller/job, getFailJobMessage;
// measured on 1.36). Rules on pod conditions do not match a suspended pod: it carries no DisruptionTarget.
func failsOnStop(spec batchv1.JobSpec) int {
	if spec.PodFailurePolicy == nil {
		return -1
	}
	pod := spec.Template.Spec
	for _, container := range slices.Concat(pod.Containers, pod.InitContainers) {
		for _, code := range []int32{143, 137} {
			i := slices.IndexFunc(spec.PodFailurePolicy.Rules, func(rule batchv1.PodFailurePolicyRule) bool {
				return matches(rule.OnExitCodes, container.Name, code)
			})
			if i >= 0 && spec.PodFailurePolicy.Rules[i].Action == batchv1.PodFailurePolicyActionFailJob {
				return i
			}
		}
	}
	return -1
}

func matches(on *batchv1.PodFailurePolicyOnExitCodesRequirement, container string, code int32) bool {
	if on == nil || ptr.Deref(on.ContainerName, container) != container {
		return false
	}
	return slices.Contains(on.Values, code) == (on.Operator == batchv1.PodFailurePolicyOnExitCodesOpIn)
}
