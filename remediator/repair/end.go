package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const (
	// endPoll is how often the pods of a node are listed on which a visit ends. A Job may get its pod until then.
	endPoll = time.Second
	// endTimeout is how much longer than its grace period a pod may take to end.
	endTimeout = 30 * time.Second
	// yieldTimeout is how long a pod of a sweep may take: a pod that waits is found within 5 s, and has the node within 15 s.
	yieldTimeout = 10 * time.Second
)

// endFirst has a visit end before its next phase if its Job, by what was known before, may still work on the node, and tells whether
// it does.
func (d *decider) endFirst(v, before *visit.Visit) bool {
	if !before.MayHaveJob() || d.facts.Job == nil && before.JobUID == "" {
		return false
	}
	job := d.jobState(before)
	ended := job.ended && d.facts.Job != nil && d.facts.Job.DeletionTimestamp == nil && len(d.unended(d.facts.JobPods)) == 0
	rebooted := d.hasRebooted(before)
	reboots := before.Reboots && !rebooted && !job.rejected && !job.refused() &&
		!job.says(repairresult.Failed) && d.now.Before(before.Deadline)
	if rebooted || ended && !reboots {
		return false
	}
	v.Then, v.Phase, v.PhaseSince = v.Phase, visit.Ending, d.now
	v.Deadline = time.Time{}
	if reboots {
		v.Deadline = before.Deadline
	}
	d.requeue(endPoll)
	return true
}

// end takes a visit to its next phase when its Job is gone and no pod of a Job runs on the node: then the maintenance taint goes. A node
// that reboots has done so. It waits no longer than the pods may take.
func (d *decider) end(v *visit.Visit) {
	looked := v.PhaseSince.Add(endPoll)
	switch {
	case d.hasRebooted(v):
	case d.now.Before(looked):
		d.requeueAt(looked)
		return
	case d.needs(Needs{Pods: true}):
		return
	default:
		limit := endTimeout
		running := d.unended(d.facts.Pods)
		for _, pod := range running {
			grace := time.Duration(corev1.DefaultTerminationGracePeriodSeconds) * time.Second // the default of the API
			if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
				grace = time.Duration(*s) * time.Second
			}
			limit = max(limit, grace+endTimeout)
		}
		if v.Kind == visit.Sweep {
			limit = yieldTimeout
		}
		gone := d.facts.Job == nil || d.facts.Job.DeletionTimestamp != nil
		over := gone && len(running) == 0 || !d.now.Before(v.PhaseSince.Add(limit))
		if !over || d.now.Before(v.Deadline) {
			d.requeue(endPoll)
			return
		}
	}
	next := *v
	next.Phase, next.PhaseSince, next.Then, next.Deadline = v.Then, d.now, "", time.Time{}
	if !next.Phase.IsKnown() {
		next.Phase = visit.Yielded // of a later version
	}
	if next.Phase.Closed() {
		d.closed(next)
		return
	}
	*v = next
	d.requeue(time.Millisecond)
}

// hasRebooted tells whether the node is in another boot than the attempt.
func (d *decider) hasRebooted(v *visit.Visit) bool {
	boot := d.facts.Node.Status.NodeInfo.BootID
	return boot != v.BootID && boot != "" && v.BootID != ""
}

// unended are the pods of Jobs that have not ended.
func (d *decider) unended(pods []corev1.Pod) []corev1.Pod {
	var running []corev1.Pod
	for _, pod := range pods {
		if pod.Namespace == d.facts.Namespace && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			running = append(running, pod)
		}
	}
	return running
}

// orphanTimeout is how long a maintenance taint stays that no visit explains.
const orphanTimeout = 10 * time.Minute

// removeOrphan takes away a maintenance taint that no visit explains. Without the record it would count as that of another repairer, for
// ever.
func (d *decider) removeOrphan() {
	orphan, since := visit.OrphanOf(d.facts.Node, d.record), d.facts.OrphanSince
	switch over := since.Add(orphanTimeout); {
	case orphan == nil || since.IsZero() || d.facts.Paused != "" || node.Excluded(d.facts.Node):
	case d.now.Before(over):
		d.requeueAt(over)
	default:
		d.step.orphan = orphan
		d.event(corev1.EventTypeWarning, endReason(visit.Kind(orphan.Value)),
			"taint %s was removed: for %s no visit to the node has explained it",
			orphan.ToString(), orphanTimeout)
	}
}
