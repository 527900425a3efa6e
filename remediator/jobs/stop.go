package jobs

import (
	"cmp"
	"context"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/utils/clock"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/permit"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// transitions are the writes that change the phase of a restart, and what is reported of them once they stand.
type transitions struct {
	store    *store
	memory   *memory
	pods     podreader.Reader
	reporter *report.Reporter
	watcher  *watcher
	settings *settings
	clock    clock.PassiveClock
	gate     permit.Gate
}

// announce announces to a job that it is stopped at a time, or as soon as it reports that it has saved its state.
func (t transitions) announce(ctx context.Context, kind kinds.Kind, job restart.Job, rec restart.Record, by time.Time) error {
	rec = rec.Announced(by)
	// Watched before it is labelled: the watch is what drives the restart.
	if err := t.watcher.watch(ctx, kind); err != nil {
		return err
	}
	t.memory.rememberKind(requestOf(job), kind)
	if err := t.store.write(ctx, job, rec); err != nil {
		return err
	}
	t.reporter.Checkpoint(ctx, job, *rec.Current)
	return nil
}

// stop stops the job for the current restart of the record, or stops it again while it is starting. causes are what it
// is stopped for now.
func (t transitions) stop(ctx context.Context, kind kinds.Kind, job restart.Job, rec restart.Record, onNode []corev1.Pod,
	causes []restart.Cause) error {
	now := t.clock.Now()
	if rec.Current.Phase != restart.Starting {
		rec = rec.Counted(now, t.settings.restartPolicy().BackOff)
		rec.Current.StartedAt = now
	}
	cur := rec.Current
	cur.ID, cur.Phase, cur.PhaseSince, cur.CheckpointBy = utilrand.String(8), restart.Stopping, now, time.Time{}
	cur.Pods, cur.Retries, cur.Sent, cur.Command = nil, job.Retries, false, ""
	if err := t.recordPods(ctx, job, cur, onNode); err != nil {
		return err
	}
	if fits := restart.FitsRecord(len(cur.Pods)); !fits.Passed {
		t.reporter.Blocked(causes[0], report.ObjectOf(job), job.GVK.Kind, restart.Blocked{Reason: fits.Reason, Text: fits.Text})
		return nil
	}
	if err := t.watcher.watch(ctx, kind); err != nil {
		return err
	}
	t.memory.rememberKind(requestOf(job), kind)
	if err := t.store.writeAndSuspend(ctx, job, rec); err != nil {
		return err
	}
	t.reporter.Stopped(ctx, job, *cur, causes)
	return nil
}

// recordPods adds the active pods of the gangs that have a pod on the node to the recorded ones.
func (t transitions) recordPods(ctx context.Context, job restart.Job, cur *restart.Restart, onNode []corev1.Pod) error {
	shares := job.SharesGang(onNode)
	pods, err := t.pods.Active(ctx, job)
	if err != nil {
		return err
	}
	// A pod that Kubernetes evicts from a dead node may have its successor already.
	staying := slices.DeleteFunc(slices.Clone(pods), func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil })
	cur.Ranks = max(cur.Ranks, cmp.Or(len(staying), len(pods)))
	var stopped []metav1.Object
	for i := range pods {
		if !shares(&pods[i]) {
			continue
		}
		stopped = append(stopped, &pods[i])
		if created := pods[i].CreationTimestamp.Time; cur.RunningSince.IsZero() || created.Before(cur.RunningSince) {
			cur.RunningSince = created
		}
	}
	for i := range onNode { // some kinds have pods that their selector does not find
		stopped = append(stopped, &onNode[i])
	}
	cur.AddPods(stopped...)
	return nil
}

// start starts the job again.
func (t transitions) start(ctx context.Context, job restart.Job, rec restart.Record) error {
	return t.store.writeAndSuspend(ctx, job, rec.Started(t.clock.Now()))
}

// close closes the current restart of the record, and reports that once it is written.
func (t transitions) close(ctx context.Context, job restart.Job, rec restart.Record, step restart.Step) error {
	now := t.clock.Now()
	if err := t.store.write(ctx, job, rec.Closed(step, now)); err != nil {
		return err
	}
	t.reporter.Closed(ctx, job, *rec.Current, step, now)
	return nil
}
