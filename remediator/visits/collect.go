package visits

import (
	"context"
	"fmt"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/bundle"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// belongsToVisit reports whether a Job was made for a visit. One that writes or prints a bundle is deleted by its time to live.
func belongsToVisit(job *batchv1.Job) bool { return job.Labels[conditions.LabelVisit] != "" }

// collects reports whether the first action of a repair has to wait for the bundle of its node, which is begun. A Job that cannot be
// created, has ended, or takes too long is not waited for: evidence never blocks a repair.
func (c *Controller) collects(ctx context.Context, n *corev1.Node) bool {
	r, err := visit.RecordOf(n)
	if err != nil || r == nil {
		return false
	}
	name := bundle.ForVisit(c.policy.Policy(), n, r.Current, c.clock.Now())
	if name == "" {
		return false
	}
	left := r.Current.PhaseSince.Add(c.policy.Policy().Repair.Collect.Timeout).Sub(c.clock.Now())
	job, err := c.collect(ctx, n, name, left)
	switch {
	case err == nil:
		return !bundle.HasEnded(job)
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsInvalid(err):
		ctrl.LoggerFrom(ctx).Error(err, "Failed to collect evidence before a repair; repairing without it", "node", n.Name)
		return false
	default: // it is tried again, until its time is over
		ctrl.LoggerFrom(ctx).Error(err, "Failed to collect evidence before a repair; retrying", "node", n.Name)
		return true
	}
}

// collectHandedOff has the evidence of a node collected that others repair.
func (c *Controller) collectHandedOff(ctx context.Context, n *corev1.Node) {
	if r := c.policy.Policy().Repair; c.dryRun || r == nil || r.Collect == nil || !r.Collect.HandOff {
		return
	}
	q, err := causes.RecordOf(n)
	if err != nil {
		return
	}
	name := bundle.ForHandOff(c.policy.Policy(), n, q, "", c.clock.Now())
	if name == "" || c.client.Get(ctx, client.ObjectKey{Namespace: c.jobs, Name: name}, &batchv1.Job{}) == nil {
		return
	}
	// Its program is root on the node: what the cache shows of the pause and of the node is confirmed before it begins.
	paused, err := pause.ReasonOf(ctx, c.namespace, c.client, c.apiReader)
	var live corev1.Node
	if err == nil {
		err = c.apiReader.Get(ctx, client.ObjectKeyFromObject(n), &live)
	}
	if err == nil {
		q, err = causes.RecordOf(&live)
	}
	if err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "Failed to read the pause or the node; collecting no evidence for a hand-off", "node", n.Name)
		return
	}
	if name = bundle.ForHandOff(c.policy.Policy(), &live, q, paused, c.clock.Now()); name != "" {
		if _, err := c.collect(ctx, n, name, c.policy.Policy().Repair.Collect.Timeout); err != nil {
			ctrl.LoggerFrom(ctx).Error(err, "Failed to collect evidence for a hand-off; retrying with the next step", "node", n.Name)
		}
	}
}

// collect returns the Job of a name, which it creates unless it is there. Its name tells what it is for, so there is never a second one.
func (c *Controller) collect(ctx context.Context, n *corev1.Node, name string, limit time.Duration) (*batchv1.Job, error) {
	key := client.ObjectKey{Namespace: c.jobs, Name: name}
	var job batchv1.Job
	err := c.client.Get(ctx, key, &job)
	if err == nil || !apierrors.IsNotFound(err) {
		return &job, err
	}
	check := c.policy.Policy().Repair.Collect
	var t corev1.PodTemplate
	if err := c.apiReader.Get(ctx, client.ObjectKey{Namespace: c.jobs, Name: check.Template}, &t); err != nil {
		return nil, fmt.Errorf("get PodTemplate %s: %w", check.Template, err)
	}
	created := bundle.NewJob(&t, n.Name, name, limit, check.Args...)
	if err := c.client.Create(ctx, created, client.FieldOwner(quarantine.ControllerName)); err != nil && !apierrors.IsAlreadyExists(err) {
		return nil, fmt.Errorf("create Job %s: %w", name, err)
	}
	return created, nil
}
