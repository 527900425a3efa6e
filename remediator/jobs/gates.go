package jobs

import (
	"fmt"
	"slices"
	"time"

	"github.com/go-logr/logr"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// verdict is what a sweep does with a job that has an active pod on a quarantined node.
type verdict string

const (
	skip  verdict = "skip"  // leave it alone and say nothing
	block verdict = "block" // leave it alone and say why
	join  verdict = "join"  // a restart is under way: add this quarantine to it
	stop  verdict = "stop"  // begin a restart, or stop a starting one again
)

// blocked is why a job is left alone: a word for metrics and a sentence for people.
type blocked struct{ reason, text string }

// judge decides what a sweep does with a job. It is pure. onNode are the job's active pods on the quarantined node.
func judge(q Quarantine, v view, rec record, optedIn bool, onNode []corev1.Pod) (verdict, blocked) {
	if !optedIn || v.ended != "" || v.object.GetDeletionTimestamp() != nil {
		return skip, blocked{}
	}
	if cur := rec.Current; cur != nil {
		switch {
		case !cur.covers(q.ID) && (cur.Phase == stopping || cur.Phase == saving && q.CheckpointGrace > 0):
			return join, blocked{}
		case cur.Phase == saving && q.CheckpointGrace == 0: // it can wait no longer
		case cur.covers(q.ID) && (cur.Phase != starting || !createdSince(onNode, cur.PhaseSince)):
			return skip, blocked{}
		case cur.covers(q.ID):
			return block, blocked{"AlreadyRestarted", "a pod came back to the node while the job was starting again"}
		}
	}
	if v.suspended || v.busy {
		return skip, blocked{}
	}
	for _, past := range rec.Last {
		if past.covers(q.ID) {
			return block, blocked{"AlreadyRestarted", "this quarantine has already restarted the job once: " + past.Outcome}
		}
	}
	if b := gate(q, v, onNode); b.reason != "" {
		return block, b
	}
	return stop, blocked{}
}

// createdSince tells whether one of the pods was created in or after the second of t; creation times carry no fraction.
func createdSince(pods []corev1.Pod, t time.Time) bool {
	return slices.ContainsFunc(pods, func(p corev1.Pod) bool { return !p.CreationTimestamp.Time.Before(t.Truncate(time.Second)) })
}

// gate finds the reason why restarting the job would harm it or would not help; an empty reason means none.
func gate(q Quarantine, v view, onNode []corev1.Pod) blocked {
	if v.managedBy != "" {
		return blocked{"ManagedBy", "it is managed by " + v.managedBy}
	}
	if v.shut.reason != "" {
		return v.shut
	}
	for _, pod := range onNode {
		// Admission may have added to the template. The scheduler, not the template, has set this nodeName.
		spec := pod.Spec
		spec.NodeName = ""
		if spec.NodeSelector[corev1.LabelHostname] != "" || len(hosts(spec)) == 1 {
			return blocked{"ComesBack", fmt.Sprintf("pod %s selects this host", pod.Name)}
		}
		if text := comesBack(q, spec); text != "" {
			return blocked{"ComesBack", fmt.Sprintf("pod %s %s", pod.Name, text)}
		}
	}
	for _, t := range v.templates {
		if text := comesBack(q, t.spec); text != "" {
			return blocked{"ComesBack", fmt.Sprintf("the pod template of %s %s", t.of, text)}
		}
	}
	for _, job := range v.jobs {
		if rule := failsOnStop(job.Spec); rule >= 0 {
			return blocked{"PodFailurePolicy", fmt.Sprintf(
				"podFailurePolicy rule %d of Job %s is FailJob for exit code 143 or 137, with which stopped ranks exit: stopping would fail the Job for good", rule, job.Name)}
		}
		if job.Spec.Completions == nil && job.Status.Succeeded > 0 {
			return blocked{"WorkQueue", fmt.Sprintf(
				"Job %s has no completions and a pod succeeded: without active pods it counts as complete", job.Name)}
		}
	}
	return blocked{}
}

// comesBack says why a pod, or the pods of a template, would come back to the node in spite of its taint, or wait for
// it for ever; empty when they would not.
func comesBack(q Quarantine, spec corev1.PodSpec) string {
	if !q.ofNode() {
		return ""
	}
	for _, t := range spec.Tolerations {
		if t.ToleratesTaint(logr.Discard(), &q.Taint, true) {
			return fmt.Sprintf("tolerates the taint %s", q.Taint.ToString())
		}
	}
	if spec.NodeName == q.Node {
		return "sets nodeName, which passes by every taint"
	}
	if spec.NodeSelector[corev1.LabelHostname] == q.Node || slices.Equal(hosts(spec), []string{q.Node}) {
		return "selects this host"
	}
	return ""
}

// hosts lists the hosts that a required node affinity names, without duplicates; nil if it leaves the choice open.
func hosts(spec corev1.PodSpec) []string {
	if spec.Affinity == nil || spec.Affinity.NodeAffinity == nil || spec.Affinity.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution == nil {
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

// optIn reads the opt-in labels of a job or of a namespace. decided is false when they say nothing.
func optIn(labels map[string]string) (in, decided bool) {
	switch {
	case labels[conditions.LabelRestartOnNodeFault] == "false":
		return false, true
	case labels[conditions.LabelRestartOnNodeFault] == "true", labels[conditions.LabelKcoverRecovery] == "true":
		return true, true
	}
	return false, false
}
