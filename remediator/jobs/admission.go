package jobs

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/report"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/room"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/capacity"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
)

// retryAdmission is when to try again if another job is being admitted just now.
const retryAdmission = 100 * time.Millisecond

// admission starts restarts that are right, as the policy limits them.
type admission struct {
	transitions
	client    client.Client // has the cache of the nodes
	apiReader client.Reader
	causes    *causes.Confirmed
	timeouts  restart.PhaseTimeouts
	// admitting is held from the read of the other restarts until a new one is recorded: two that are admitted side by side
	// would both take the last place.
	admitting sync.Mutex
}

// startRestart starts a restart if nothing speaks against it now. Otherwise it reports what does, and returns when to try
// again; zero: when something changes.
func (a *admission) startRestart(ctx context.Context, t restart.Trigger, kind kinds.Kind, job restart.Job, rec restart.Record,
	onNode []corev1.Pod) (time.Duration, error) {
	now := a.clock.Now()
	started := rec.With(t, 0, now)
	if step, requested := restart.AbortedEarly(started, job, now); requested {
		return 0, a.close(ctx, job, started, step)
	}
	limits := ratelimit.LimitsOf(t, job, a.settings.restartPolicy())
	var others []ratelimit.Other
	if limits.MaxConcurrent > 0 || limits.CheckCapacity {
		// Who is second does not wait here: a node's controller that waits would delay taints.
		if !a.admitting.TryLock() {
			return retryAdmission, nil
		}
		defer a.admitting.Unlock()
		var err error
		if others, err = a.others(ctx, requestOf(job)); err != nil {
			return 0, err
		}
	}
	now = a.clock.Now()
	var claims []capacity.Claim
	moving := 0
	failed, delayed := restart.FirstFailed(ratelimit.Evaluate(t, job.Object.GetNamespace(), rec, others, limits, now))
	if !delayed && limits.CheckCapacity {
		search, err := a.searchRoom(ctx, t, job, onNode, ratelimit.Claims(t, others), now)
		if err != nil {
			return 0, err
		}
		moving, claims = search.Moving, search.Claims()
		failed, delayed = restart.FirstFailed([]restart.Precondition{search.Result()})
	}
	if delayed {
		if failed.Reason != ratelimit.ReasonSettling {
			a.reporter.Blocked(restart.CauseOf(t), report.ObjectOf(job), job.GVK.Kind, restart.Blocked{Reason: failed.Reason, Text: failed.Text})
		}
		return failed.RetryAfter, nil
	}
	rec = rec.With(t, moving, now)
	a.memory.take(requestOf(job), place{job.Object.GetUID(), now, moving, claims, t.Kind == restart.NodeQuarantined})
	if t.CheckpointGrace > 0 {
		return 0, a.announce(ctx, kind, job, rec, now.Add(t.CheckpointGrace))
	}
	return 0, a.stop(ctx, kind, job, rec, onNode, rec.Current.Quarantines)
}

// searchRoom searches room for those ranks of a job that have to move, others being what other jobs need.
func (a *admission) searchRoom(ctx context.Context, t restart.Trigger, job restart.Job, onNode []corev1.Pod, others []capacity.Claim,
	now time.Time) (*capacity.Search, error) {
	ranks, err := a.pods.OfGangs(ctx, job, onNode)
	if err != nil {
		return nil, err
	}
	var list corev1.NodeList
	// The cache is shared and large; nothing here changes a node.
	if err := a.client.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("list nodes: %w", err)
	}
	return room.Search(ctx, a.apiReader, t, ranks, list.Items, others, now)
}
