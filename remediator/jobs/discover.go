package jobs

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// RestartJobsOnNode starts the restart of every opted-in job that has an active pod on the quarantined node, or one that holds a
// device of the quarantine if that has any, or reports why it does not. Called twice is the same as called once. The error joins
// what went wrong with single jobs; the others are done. Unless after is zero, some job is to be restarted later or is left alone:
// call again after that time, while the quarantine stands. The manager must have been started.
func (c *Controller) RestartJobsOnNode(ctx context.Context, t restart.Trigger) (after time.Duration, err error) {
	if c.dryRun {
		return 0, nil
	}
	waiting := c.reporter.Waiting
	waiting.Begin(t)
	defer func() {
		left := waiting.End(t.ID, err == nil)
		if often := report.RecheckAfter(c.admission.clock.Now().Sub(t.Since)); err == nil && left && (after == 0 || after > often) {
			after = often
		}
	}()
	c.admission.causes.Remember(restart.CauseOf(t))
	found, errs, err := c.workloadsOn(ctx, t)
	if err != nil {
		waiting.Add(t.ID, report.UnknownJob)
		return 0, err
	}
	for _, on := range ratelimit.InTurns(slices.Collect(maps.Values(found)), func(w *workloadOnNode) string { return w.Namespace }) {
		wait, err := c.admission.restartOnNode(ctx, t, *on)
		errs = append(errs, err)
		if wait > 0 && (after == 0 || wait < after) {
			after = wait
		}
	}
	return after, errors.Join(errs...)
}

// workloadOnNode is a workload with pods on a node.
type workloadOnNode struct {
	kinds.Workload
	// pods are its active ones, as far as they hold a device of the trigger if that has any.
	pods []corev1.Pod
	// foreign is a pod that names it as its owner, but is none of its pods. unread is why it cannot be told which devices a pod of it holds.
	foreign string
	unread  error
}

// workloadKey tells workloads apart. An owner that is not read may have any UID, that of a job, too.
type workloadKey struct {
	namespace string
	uid       types.UID
	isJob     bool
}

// workloadsOn finds the workloads with pods on the node of a trigger. errs are about single pods.
func (c *Controller) workloadsOn(ctx context.Context, t restart.Trigger) (all map[workloadKey]*workloadOnNode, errs []error, err error) {
	active, leftOut, err := c.admission.pods.OnNode(ctx, t.Node, c.admission.client)
	if err != nil {
		return nil, nil, err
	}
	if len(leftOut) > 0 { // no error, which would have the list read again at once
		log.FromContext(ctx).Error(slim.ErrTooLarge, "No job of some namespaces is restarted: their pods on the node", "namespaces", leftOut)
		c.reporter.Waiting.Add(t.ID, report.UnknownJob)
	}
	resolver := kinds.NewOwnerResolver(c.apiReader, c.settings.kinds())
	all = map[workloadKey]*workloadOnNode{}
	var large error
	for _, holder := range c.admission.pods.Holders(ctx, t, active) {
		pod := &holder.Pod
		workload, err := resolver.OfPod(ctx, pod)
		if err != nil {
			c.reporter.Waiting.Add(t.ID, report.UnknownJob)
			if errors.Is(err, slim.ErrTooLarge) {
				large = err
				continue
			}
			errs = append(errs, err)
			continue
		}
		if workload.UID() == "" {
			continue
		}
		key := workloadKey{pod.Namespace, workload.UID(), workload.Job != nil && workload.Unsupported == nil}
		if all[key] == nil {
			all[key] = &workloadOnNode{}
		}
		on := all[key]
		on.Workload = workload
		switch {
		case !workload.Owns(pod):
			on.foreign = pod.Name
		case holder.Unread != nil:
			on.unread = holder.Unread
		default:
			on.pods = append(on.pods, *pod)
		}
	}
	if large != nil { // no error either
		log.FromContext(ctx).Error(large, "Some jobs are not restarted")
	}
	return all, errs, nil
}

// restartOnNode starts the restart of one workload on a node, or reports why it does not.
func (a *admission) restartOnNode(ctx context.Context, t restart.Trigger, on workloadOnNode) (after time.Duration, err error) {
	switch {
	case len(on.pods) > 0:
		return a.restartWorkload(ctx, t, on.Workload, on.pods)
	case on.unread != nil:
		return 0, errors.Join(on.unread, a.reportUnread(ctx, t, on.Workload, on.unread))
	}
	return 0, a.reportForeign(ctx, t, on.Workload, on.foreign)
}

// reportForeign reports a pod on the node that names the job as its owner and is none of its pods. It is no reason to restart the job.
func (a *admission) reportForeign(ctx context.Context, t restart.Trigger, w kinds.Workload, pod string) error {
	opt, err := kinds.ReadOptIn(ctx, a.apiReader, w)
	if err != nil || !opt.In {
		return err
	}
	a.reporter.Blocked(restart.CauseOf(t), report.ObjectOf(*w.Job), w.Job.GVK.Kind,
		restart.Blocked{Reason: report.ReasonForeignPod, Text: fmt.Sprintf(
			"none of its pods is on the node; pod %s names it as its owner, but the job did not make that pod", pod)})
	return nil
}

// reportUnread reports a job of which it cannot be told whether its pods hold a device of the quarantine. It is looked at again soon.
func (a *admission) reportUnread(ctx context.Context, t restart.Trigger, w kinds.Workload, why error) error {
	if w.Job == nil || w.Unsupported != nil {
		return nil // it is not restarted in any case
	}
	opt, err := kinds.ReadOptIn(ctx, a.apiReader, w)
	if err != nil || !opt.In {
		return err
	}
	if rec, err := restart.ReadRecord(w.Job.Object); err == nil && rec.Current != nil {
		return nil
	}
	a.reporter.Blocked(restart.CauseOf(t), report.ObjectOf(*w.Job), w.Job.GVK.Kind, restart.Blocked{
		Reason: "ClaimUnread", Text: causes.Clip(fmt.Sprintf("cannot %v; tried again", why), conditions.MaxMessage),
	})
	return nil
}

// restartWorkload starts the restart of one job, or joins the one under way, or reports why not and returns when to try
// again.
func (a *admission) restartWorkload(ctx context.Context, t restart.Trigger, w kinds.Workload,
	onNode []corev1.Pod) (after time.Duration, err error) {
	defer func() {
		if err != nil {
			a.reporter.Waiting.Add(t.ID, waitingFor(w, onNode, report.ReasonError))
		}
	}()
	if w.Job == nil || w.Unsupported != nil {
		return 0, a.reportUnsupported(ctx, t, w, onNode)
	}
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var err error
		after, err = a.evaluate(ctx, t, w, onNode)
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh, readErr := w.Kind.Read(ctx, a.apiReader, w.Job.Key())
		if kinds.Gone(readErr) || readErr == nil && fresh.Object.GetUID() != w.Job.Object.GetUID() {
			return nil
		}
		if readErr != nil {
			return readErr
		}
		w.Job = &fresh
		return err
	})
	return after, err
}

// restartAlone does the same for a cause of one job, of which no Node has a record: only this process knows that it is true.
func (a *admission) restartAlone(ctx context.Context, t restart.Trigger, w kinds.Workload, pods []corev1.Pod) (time.Duration, error) {
	a.causes.Remember(restart.CauseOf(t))
	a.reporter.Waiting.Begin(t)
	after, err := a.restartWorkload(ctx, t, w, pods)
	a.reporter.Waiting.End(t.ID, err == nil)
	return after, err
}

// reportUnsupported reports a job that is controlled by something unknown, and a pod that is controlled by nothing.
func (a *admission) reportUnsupported(ctx context.Context, t restart.Trigger, w kinds.Workload, onNode []corev1.Pod) error {
	opt, err := kinds.ReadOptIn(ctx, a.apiReader, w)
	if err != nil || !opt.In {
		return err
	}
	if w.BarePod != nil {
		a.reporter.Blocked(restart.CauseOf(t), w.BarePod, "Pod",
			restart.Blocked{Reason: "BarePod", Text: "it has no controller that would replace it"})
		return nil
	}
	blocked := restart.Blocked{Reason: "UnknownOwner", Text: fmt.Sprintf(
		"it is controlled by %s %s, which cannot be restarted as a whole", w.Unsupported.Kind, w.Unsupported.Name)}
	a.reporter.Waiting.Add(t.ID, waitingFor(w, onNode, blocked.Reason))
	a.reporter.BlockedUnder(restart.CauseOf(t), report.ObjectOfOwner(*w.Unsupported, &onNode[0]), w.Unsupported.Kind, report.OtherKind,
		blocked)
	return nil
}

// waitingFor is a workload as a metric names it. One whose owner is not read is named by its first pod on the node: whoever may create
// pods can write anything of any length as their owner.
func waitingFor(w kinds.Workload, onNode []corev1.Pod, reason string) report.Job {
	if w.Job != nil && w.Unsupported == nil {
		return report.Job{Kind: w.Job.GVK.Kind, Namespace: w.Job.Object.GetNamespace(), Name: w.Job.Object.GetName(), Reason: reason}
	}
	return report.Job{Kind: "Pod", Namespace: onNode[0].Namespace, Name: onNode[0].Name, Reason: reason}
}

// missesOptIn reports whether a job would have to opt in to be restarted, and has neither done so nor opted out.
func missesOptIn(t restart.Trigger, w kinds.Workload, opt kinds.OptIn) bool {
	job := w.Job
	return t.Kind != restart.PodFailed && opt.By == "" && (!w.Kind.IsService || len(opt.Mistakes) > 0) &&
		job.FinishedReason == "" && job.Object.GetDeletionTimestamp() == nil
}

// evaluate does with one job what [restart.Evaluate] decides.
func (a *admission) evaluate(ctx context.Context, t restart.Trigger, w kinds.Workload, onNode []corev1.Pod) (time.Duration, error) {
	job := *w.Job
	opt, err := kinds.ReadOptIn(ctx, a.apiReader, w)
	if err != nil {
		return 0, err
	}
	if missesOptIn(t, w, opt) {
		a.reporter.NotOptedIn(restart.CauseOf(t), report.ObjectOf(job), opt)
	}
	rec, err := restart.ReadRecord(job.Object)
	if err != nil {
		if opt.In {
			a.reporter.Blocked(restart.CauseOf(t), report.ObjectOf(job), job.GVK.Kind,
				restart.Blocked{Reason: "RecordUnreadable", Text: err.Error()})
		}
		return 0, nil
	}
	rec, _ = rec.Clamp(a.settings.longestGrace(), a.clock.Now())
	verdict, preconditions := restart.Evaluate(t, job, rec, opt.In, onNode)
	failed, _ := restart.FirstFailed(preconditions)
	log.FromContext(ctx).V(1).Info("evaluated a restart", "kind", job.GVK.Kind, "job", job.Key(), "quarantine", t.ID, "verdict", verdict,
		"precondition", failed.Name, "reason", failed.Reason)
	switch verdict {
	case restart.ReportBlocked:
		a.reporter.Blocked(restart.CauseOf(t), report.ObjectOf(job), job.GVK.Kind, restart.Blocked{Reason: failed.Reason, Text: failed.Text})
	case restart.JoinRestart:
		rec.Current.AddCause(restart.CauseOf(t))
		if rec.Current.Phase == restart.Stopping {
			if err := a.recordPods(ctx, job, rec.Current, onNode); err != nil {
				return 0, err
			}
		}
		return 0, a.store.write(ctx, job, rec)
	case restart.StartRestart:
		if err := a.gate.Begins(ctx, t, onNode, a.clock.Now()); err != nil {
			return 0, err
		}
		if rec.Current == nil {
			return a.startRestart(ctx, t, w.Kind, job, rec, onNode)
		}
		rec.Current.AddCause(restart.CauseOf(t))
		return 0, a.stop(ctx, w.Kind, job, rec, onNode, []restart.Cause{restart.CauseOf(t)})
	}
	return 0, nil
}

// Kinds are the kinds of jobs that can be restarted.
func (c *Controller) Kinds() []kinds.Kind { return c.settings.kinds() }

// ActivePods lists the pods of a job that have not ended, live. Of others with its labels there are none.
func (c *Controller) ActivePods(ctx context.Context, job restart.Job) ([]corev1.Pod, error) {
	return c.admission.pods.Whole(ctx, job, client.MatchingFieldsSelector{Selector: podreader.Active})
}
