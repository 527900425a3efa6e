package jobs

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/jobs/podreader"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// applyOutOfBand does what the record announces and the write of the record could not do itself. It is repeated in every
// reconcile, so a crash before, in or after it is made up for. refused is why a replacement was refused; empty: it was not.
func (r *reconciler) applyOutOfBand(ctx context.Context, kind kinds.Kind, job restart.Job, rec restart.Record, facts restart.Facts,
	do restart.OutOfBand) (refused string, err error) {
	if do.SetSuspendField {
		return "", r.suspendElsewhere(ctx, job, *rec.Current)
	}
	if do.ReplacePods {
		before := rec.Current.Sent
		if refused, err = kind.Replace(ctx, r.client, job, rec.Current, facts.Remaining); err != nil {
			return refused, err
		}
		if rec.Current.Sent != before {
			return refused, r.store.write(ctx, job, rec)
		}
	}
	for i := range do.DeletePods {
		if err := kinds.DeletePod(ctx, r.client, &do.DeletePods[i]); err != nil {
			return refused, err
		}
	}
	for _, u := range do.ForceDelete {
		if err := r.forceDelete(ctx, job, *rec.Current, u.Pod); err != nil {
			return refused, err
		}
	}
	return refused, nil
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

// unconfirmed judges those of a stopped job's pods that are being deleted: those on the nodes that caused its restart and are not Ready,
// and those of the others that do not end in time. A restart whose nodes answer and whose pods end in time costs nothing, and one
// that waits for a dead node costs as much as that node has pods.
func (r *reconciler) unconfirmed(ctx context.Context, job restart.Job, cur restart.Restart,
	remaining []metav1.PartialObjectMetadata) ([]restart.Unconfirmed, error) {
	now := r.clock.Now()
	notReady, err := r.causesNotReady(ctx, cur)
	if err != nil {
		return nil, err
	}
	pods, err := r.pods.DeletingOn(ctx, job, notReady, remaining)
	if err != nil {
		return nil, err
	}
	late, err := r.pods.Deleting(ctx, job, slices.DeleteFunc(slices.Clone(remaining), func(p metav1.PartialObjectMetadata) bool {
		return !restart.Overdue(&p, restart.EndsBy, now) || slices.ContainsFunc(pods, func(found corev1.Pod) bool { return found.UID == p.UID })
	}))
	if err != nil {
		return nil, err
	}
	pods = append(pods, late...)
	var judged []restart.Unconfirmed
	for i := range pods {
		pod := &pods[i]
		if pod.Spec.NodeName == "" {
			continue // what was never bound to a node has no process
		}
		node, err := podreader.GetNode(ctx, r.client, pod.Spec.NodeName)
		if err != nil {
			return nil, err
		}
		limits, err := r.gate.Limits(ctx, node, false)
		if err != nil {
			return nil, err
		}
		judged = append(judged, restart.NewUnconfirmed(limits, pod, node, cur, now))
	}
	return judged, nil
}

// causesNotReady are the names of those nodes that caused a restart and are gone or not Ready, as the cache of the nodes shows them, at
// most podreader.MaxNodes of them.
func (r *reconciler) causesNotReady(ctx context.Context, cur restart.Restart) (names []string, err error) {
	for _, c := range cur.Quarantines {
		if c.Kind() == restart.JobStalled { // no node is its cause
			continue
		}
		node, err := podreader.GetNode(ctx, r.client, c.Node)
		if err != nil {
			return nil, err
		}
		if (node == nil || restart.NotReady(node)) && len(names) < podreader.MaxNodes && !slices.Contains(names, c.Node) {
			names = append(names, c.Node)
		}
	}
	return names, nil
}

// forceDelete deletes a pod without the confirmation of its kubelet if a live look at its node still allows it. A pod that was written
// since it was judged is left for the next reconcile: its kubelet may be back.
func (r *reconciler) forceDelete(ctx context.Context, job restart.Job, cur restart.Restart, pod *corev1.Pod) error {
	node, err := r.pods.Node(ctx, pod.Spec.NodeName)
	if err != nil {
		return err
	}
	limits, err := r.gate.Limits(ctx, node, true)
	if err != nil {
		return err
	}
	force := restart.MayForceDelete(limits, pod, node, cur, r.clock.Now())
	if force.Why == "" {
		return nil
	}
	if owned, err := r.pods.OwnsOrOrphaned(ctx, job, pod); err != nil || !owned {
		return err
	}
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	how := []client.DeleteOption{client.GracePeriodSeconds(0), client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion}}
	if job.OtherControllers {
		// A leader of a group may have been evicted alone. Its successor has to wait for its workers, which it owns.
		how = append(how, client.PropagationPolicy(metav1.DeletePropagationForeground))
	}
	err = r.client.Delete(ctx, target, how...)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsConflict(err):
		return nil
	case err != nil:
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	r.reporter.ForceDeleted(ctx, job, cur, pod, force)
	return nil
}
