package repair

import (
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/repairresult"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/pods"
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

// endFirst has a visit end before its next phase if its Job, by what was known before, may still work on the node, and returns whether
// it does.
func endFirst(d *decision, v, before *visit.Visit) bool {
	if !before.MayHaveJob() || d.facts.Job == nil && before.JobUID == "" {
		return false
	}
	job := d.job(before)
	running := pods.OfJobs(d.facts.Live.JobPods, d.facts.Namespace)
	ended := job.Ended && d.facts.Job != nil && d.facts.Job.DeletionTimestamp == nil && len(running) == 0
	rebooted := d.hasRebooted(before)
	reboots := before.Reboots && !rebooted && !job.Rejected && !job.Refused() &&
		!job.Says(repairresult.Failed) && d.now.Before(before.Deadline)
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

// ending takes a visit to its next phase when its Job is gone and no pod of a Job runs on the node: then the maintenance taint goes. A
// node that reboots has done so. It waits no longer than the pods may take.
func ending(d *decision, v *visit.Visit) {
	if !d.hasRebooted(v) {
		if listed := v.PhaseSince.Add(endPoll); d.now.Before(listed) {
			d.requeueAt(listed)
			return
		}
		if !d.isOver(v) || d.now.Before(v.Deadline) {
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

// isOver reports whether the Job and all pods of Jobs are gone, or have had the time that they may take.
func (s *situation) isOver(v *visit.Visit) bool {
	running := pods.OfJobs(s.facts.Live.Pods, s.facts.Namespace)
	limit := pods.Grace(running) + endTimeout
	if v.Kind == visit.Sweep {
		limit = yieldTimeout
	}
	gone := s.facts.Job == nil || s.facts.Job.DeletionTimestamp != nil
	return gone && len(running) == 0 || !s.now.Before(v.PhaseSince.Add(limit))
}

// orphanTimeout is how long a maintenance taint stays that no visit explains.
const orphanTimeout = 10 * time.Minute

// removeOrphan takes away a maintenance taint that no visit explains. Without the record it would count as that of another repairer
// permanently.
func removeOrphan(d *decision) {
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
