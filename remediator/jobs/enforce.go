package jobs

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
)

// enforce does what the record announces and the write of the record could not do itself. It is repeated at every look,
// so a crash before, in or after it is made up for. The text says who refuses, if anybody does.
func (r *Restarter) enforce(ctx context.Context, v view, rec record, pods oldPods) (refused string, err error) {
	cur := rec.Current
	if v.due(*cur) {
		return "", r.moveOther(ctx, v, *cur)
	}
	if cur.Phase != stopping {
		return "", nil
	}
	if v.replace != nil {
		before := cur.Sent
		if refused, err = v.replace(ctx, r.writer, v, cur, v.own(pods.left)); err != nil {
			return refused, err
		}
		if cur.Sent != before {
			return refused, r.sent(ctx, v, rec)
		}
	}
	for _, pod := range pods.dead {
		if err := deletePod(ctx, r.writer, pod); err != nil {
			return refused, err
		}
	}
	return refused, nil
}

// own are those of the pods that are the job's. Whoever may write the job's record could name any pod of the namespace there.
func (v view) own(pods []metav1.PartialObjectMetadata) []metav1.PartialObjectMetadata {
	return slices.DeleteFunc(slices.Clone(pods), func(p metav1.PartialObjectMetadata) bool { return !v.pods.Matches(labels.Set(p.Labels)) })
}

// sent writes what must not be done twice. A look at the job as it was before could do it again, so that a concurrent
// writer of the job (its controller is at work by now) is answered here.
func (r *Restarter) sent(ctx context.Context, v view, rec record) error {
	id := rec.Current.ID
	return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		err := r.write(ctx, v, rec)
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh, lookErr := v.look(ctx, r.reader, v.key())
		if lookErr != nil {
			return lookErr
		}
		again, readErr := readRecord(fresh.object)
		if readErr != nil {
			return readErr
		}
		if again.Current == nil || again.Current.ID != id {
			return nil // the next look tells what became of it
		}
		again.Current.Sent = true
		v, rec = fresh, again
		return err
	})
}

// moveOther moves the toggle of another object and marks there that it was us.
func (r *Restarter) moveOther(ctx context.Context, v view, cur restart) error {
	other := v.toggle.on
	body := map[string]any{"metadata": map[string]any{
		"resourceVersion": other.GetResourceVersion(),
		"annotations":     map[string]any{conditions.AnnotationRestartStep: cur.step()},
	}}
	if err := v.toggle.set(body, cur.Phase == stopping); err != nil {
		return err
	}
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	target := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Namespace: other.GetNamespace(), Name: other.GetName()}}
	target.SetGroupVersionKind(other.GroupVersionKind())
	if err := r.writer.Patch(ctx, target, client.RawPatch(types.MergePatchType, data)); err != nil {
		return fmt.Errorf("patch %s of %s %s/%s: %w", v.toggle.path, other.GetKind(), other.GetNamespace(), other.GetName(), err)
	}
	return nil
}

// deletePod deletes this pod and no later one of its name. One that is gone is fine.
func deletePod(ctx context.Context, c client.Client, pod metav1.PartialObjectMetadata, opts ...client.DeleteOption) error {
	target := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
	err := c.Delete(ctx, target, append(opts, client.Preconditions{UID: &pod.UID})...)
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
		return fmt.Errorf("delete pod %s/%s: %w", pod.Namespace, pod.Name, err)
	}
	return nil
}
