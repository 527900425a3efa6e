package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// conflictRetry is how soon a job that another writer has changed is reconciled again.
const conflictRetry = 50 * time.Millisecond

// reconciler drives the restarts under way: observe, [restart.Next], act.
type reconciler struct {
	transitions
	client    client.Client
	apiReader client.Reader
	timeouts  restart.PhaseTimeouts
	causes    *causes.Confirmed
}

// Reconcile takes the next step of the restart of one job.
func (r *reconciler) Reconcile(ctx context.Context, req request) (ctrl.Result, error) {
	kind, err := r.memory.kindOf(req)
	if err != nil {
		return ctrl.Result{}, err
	}
	job, err := kind.Read(ctx, r.apiReader, req.NamespacedName)
	if kinds.Gone(err) || err == nil && job.Object.GetDeletionTimestamp() != nil {
		r.store.forget(req)
		return ctrl.Result{}, nil
	}
	if err != nil {
		return ctrl.Result{}, err
	}
	rec, err := restart.ReadRecord(job.Object)
	if err != nil || rec.Current == nil {
		r.store.forget(req)
		return retryConflict(r.store.dropLabel(ctx, job, err))
	}
	r.memory.rememberKind(req, kind)
	now := r.clock.Now()
	rec, changed := rec.InKnownPhase(job).Clamp(r.settings.longestGrace(), now)
	if changed {
		// Unwritten, a restart that began in the future would begin now in every reconcile.
		if err := r.store.write(ctx, job, rec); err != nil {
			return retryConflict(err)
		}
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	}
	facts, err := r.observe(ctx, job, rec)
	if err != nil {
		return ctrl.Result{}, err
	}
	step := restart.Next(rec, job, facts, r.timeouts, now)
	if step.OutOfBand.Needed() {
		if facts.Refused, err = r.applyOutOfBand(ctx, kind, job, rec, facts, step.OutOfBand); err != nil {
			return retryConflict(err)
		}
		step = restart.Next(rec, job, facts, r.timeouts, now)
	}
	if err := r.act(ctx, kind, job, rec, facts, step); err != nil {
		return retryConflict(err)
	}
	return ctrl.Result{RequeueAfter: step.After}, nil
}

// observe reads, live, what the phase of the restart needs.
func (r *reconciler) observe(ctx context.Context, job restart.Job, rec restart.Record) (facts restart.Facts, err error) {
	switch cur := rec.Current; cur.Phase {
	case restart.Checkpointing:
		confirmed, err := r.causes.Of(ctx, cur.Quarantines)
		if err != nil {
			return facts, err
		}
		if facts.Affected, err = r.pods.Affected(ctx, job, confirmed, r.client); err != nil {
			return facts, err
		}
		facts.Held, err = r.gate.Held(ctx, facts.Affected, r.clock.Now())
		return facts, err
	case restart.Stopping:
		if facts.Remaining, facts.Terminal, facts.Listed, err = r.pods.Remaining(ctx, job, *cur); err != nil {
			return facts, err
		}
		facts.Unconfirmed, err = r.unconfirmed(ctx, job, *cur, facts.Remaining)
	case restart.Starting:
		facts.Running, err = r.pods.Running(ctx, job)
	}
	return facts, err
}

// act makes the step come true. Acting twice equals acting once.
func (r *reconciler) act(ctx context.Context, kind kinds.Kind, job restart.Job, rec restart.Record, facts restart.Facts,
	step restart.Step) error {
	if step.Action != restart.Hold {
		r.reporter.NotHeld(requestOf(job))
	}
	switch step.Action {
	case restart.Stop:
		return r.stop(ctx, kind, job, rec, facts.Affected, rec.Current.Quarantines)
	case restart.Start:
		return r.start(ctx, job, rec)
	case restart.Close:
		return r.close(ctx, job, rec, step)
	}
	if step.Action == restart.Hold {
		return r.hold(ctx, job, rec, facts)
	}
	return nil
}

// hold records and reports a stop that takes too long, is refused, or waits for nodes that are not Ready: by Event once, by metric as
// long as it lasts.
func (r *reconciler) hold(ctx context.Context, job restart.Job, rec restart.Record, facts restart.Facts) error {
	h, err := r.holding(ctx, job, facts)
	if err != nil {
		return err
	}
	r.reporter.Held(job, h.pod, h.node)
	if rec.Current.Held != "" {
		return nil
	}
	cur := *rec.Current
	cur.Held, rec.Current = h.text, &cur
	if err := r.store.write(ctx, job, rec); err != nil {
		return err
	}
	why := h.text
	if !h.saysWhy {
		why = fmt.Sprintf("stopping takes longer than %s: %s", r.timeouts.Stop, h.text)
	}
	r.reporter.HoldBegan(ctx, job, cur, why)
	return nil
}

// holding is what a stop waits for: a pod on a node, if it is one, and a sentence, which may say why that takes long.
type holding struct {
	pod, node, text string
	saysWhy         bool
}

func (r *reconciler) holding(ctx context.Context, job restart.Job, facts restart.Facts) (holding, error) {
	h := holding{text: "its controller has not acted on " + job.SuspendField.Path}
	more := len(facts.Remaining) - 1
	waits := slices.IndexFunc(facts.Unconfirmed, func(u restart.Unconfirmed) bool { return u.Waiting != "" })
	switch {
	case waits >= 0:
		u := facts.Unconfirmed[waits]
		h = holding{u.Pod.Name, u.Pod.Spec.NodeName, u.Waiting, true}
		if more > 0 {
			h.text += fmt.Sprintf("; %d more of its pods have not ended", more)
		}
	case more >= 0:
		pod := facts.Remaining[0]
		node, err := r.pods.NodeOf(ctx, pod.Namespace, pod.Name)
		if err != nil {
			return h, err
		}
		h = holding{pod.Name, node, fmt.Sprintf("pod %s on node %s has not ended", pod.Name, node), false}
		if more > 0 {
			h.text += fmt.Sprintf(", nor have %d more", more)
		}
	}
	if facts.Refused != "" {
		h.text, h.saysWhy = facts.Refused, true
	}
	return h, nil
}

// retryConflict makes a conflict an early second reconcile instead of an error: the writer may be the job's own controller,
// which is busy while pods stop.
func retryConflict(err error) (ctrl.Result, error) {
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: conflictRetry}, nil
	}
	return ctrl.Result{}, err
}
