package jobs

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// applyOutOfBand does what the record announces and the write of the record could not do itself. It is repeated in every
// reconcile, so a crash before, in or after it is made up for. refused is why a replacement was refused; empty: it was not.
func (r *reconciler) applyOutOfBand(ctx context.Context, kind kinds.Kind, job restart.Job, rec restart.Record, facts restart.Facts, do restart.OutOfBand) (refused string, err error) {
	if do.SetSuspendField {
		return "", r.suspendElsewhere(ctx, job, *rec.Current)
	}
	if do.ReplacePods {
		before := rec.Current.Sent
		if refused, err = kind.Replace(ctx, r.client, job, rec.Current, facts.Remaining); err != nil {
			return refused, err
		}
		if rec.Current.Sent != before {
			return refused, r.recordSent(ctx, kind, job, rec)
		}
	}
	for i := range do.DeletePods {
		if err := kinds.DeletePod(ctx, r.client, &do.DeletePods[i]); err != nil {
			return refused, err
		}
	}
	return refused, nil
}

// recordSent writes what must not be done twice. A reconcile of the job as it was before could do it again, so that a
// concurrent writer of the job (its controller is at work by now) is answered here.
func (r *reconciler) recordSent(ctx context.Context, kind kinds.Kind, job restart.Job, rec restart.Record) error {
	id := rec.Current.ID
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := r.store.write(ctx, job, rec)
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh, readErr := kind.Read(ctx, r.apiReader, job.Key())
		if readErr != nil {
			return readErr
		}
		again, readErr := restart.ReadRecord(fresh.Object)
		if readErr != nil {
			return readErr
		}
		if again.Current == nil || again.Current.ID != id {
			return nil // the next reconcile reads what became of it
		}
		again.Current.Sent = true
		job, rec = fresh, again
		return err
	})
}

// suspendElsewhere sets the suspend field of another object and marks there that it was us.
func (r *reconciler) suspendElsewhere(ctx context.Context, job restart.Job, cur restart.Restart) error {
	data, err := cur.PatchElsewhere(job.SuspendField)
	if err != nil {
		return err
	}
	other := job.SuspendField.Elsewhere
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: other.GetNamespace(), Name: other.GetName()}}
	target.SetGroupVersionKind(other.GroupVersionKind())
	if err := r.client.Patch(ctx, target, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("patch %s of %s %s/%s: %w", job.SuspendField.Path, other.GetKind(), other.GetNamespace(), other.GetName(), err)
	}
	return nil
}

// forceDeleteOverdue deletes those of a stopped job's pods that do not end, if the policy and their nodes let it.
func (r *reconciler) forceDeleteOverdue(ctx context.Context, job restart.Job, cur restart.Restart, remaining []metav1.PartialObjectMetadata) error {
	limits, now := r.settings.restartPolicy(), r.clock.Now()
	late := func(p metav1.PartialObjectMetadata) bool { return restart.Overdue(&p, limits.ForceDeleteAfter, now) }
	if limits.ForceDelete == "" || limits.ForceDelete == policy.ForceNever || !slices.ContainsFunc(remaining, late) {
		return nil
	}
	pods, err := r.pods.whole(ctx, job) // metadata does not contain their nodes
	if err != nil {
		return err
	}
	nodes := map[string]*corev1.Node{}
	for i := range pods {
		pod := &pods[i]
		waitedFor := slices.ContainsFunc(remaining, func(p metav1.PartialObjectMetadata) bool { return p.UID == pod.UID })
		if !waitedFor || pod.Spec.NodeName == "" || !restart.Overdue(pod, limits.ForceDeleteAfter, now) {
			continue // what was never bound to a node has no process
		}
		node, known := nodes[pod.Spec.NodeName]
		if !known {
			if node, err = r.pods.node(ctx, pod.Spec.NodeName); err != nil {
				return err
			}
			nodes[pod.Spec.NodeName] = node
		}
		why := restart.MayForceDelete(limits, pod, node, cur, now)
		if why == "" {
			continue
		}
		if err := kinds.DeletePod(ctx, r.client, pod, client.GracePeriodSeconds(0)); err != nil {
			return err
		}
		r.reporter.reportForceDeleted(ctx, job, cur, pod, why)
	}
	return nil
}
