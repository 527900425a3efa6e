package jobs

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// activePods selects pods that have not ended, those that are being deleted included.
var activePods = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// podReader reads pods, live.
type podReader struct{ apiReader client.Reader }

// list lists the metadata of pods. A 512-rank job is a few MB that way, ten times less than whole pods.
func (r podReader) list(ctx context.Context, namespace string, of labels.Selector, in fields.Selector) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.apiReader.List(ctx, &list, client.InNamespace(namespace),
		client.MatchingLabelsSelector{Selector: of}, client.MatchingFieldsSelector{Selector: in}); err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
	}
	return list.Items, nil
}

// whole lists whole pods of a job.
func (r podReader) whole(ctx context.Context, job restart.Job, opts ...client.ListOption) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.apiReader.List(ctx, &list, append(opts, client.InNamespace(job.Object.GetNamespace()), client.MatchingLabelsSelector{Selector: job.Pods})...); err != nil {
		return nil, fmt.Errorf("list the pods of %s %s: %w", job.GVK.Kind, job.Key(), err)
	}
	return list.Items, nil
}

// ofGangs lists the active pods of the gangs that have a pod on the node.
func (r podReader) ofGangs(ctx context.Context, job restart.Job, onNode []corev1.Pod) ([]corev1.Pod, error) {
	shares := job.SharesGang(onNode)
	pods, err := r.whole(ctx, job, client.MatchingFieldsSelector{Selector: activePods})
	return slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !shares(&p) }), err
}

// running counts the job's pods that run and are not being deleted.
func (r podReader) running(ctx context.Context, job restart.Job) (int, error) {
	pods, err := r.list(ctx, job.Object.GetNamespace(), job.Pods, fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)))
	pods = slices.DeleteFunc(pods, func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil })
	return len(pods), err
}

// remaining lists the pods that stand in the way of a start: of those of [restart.Job.MustEnd] the active ones, and those of the
// job that are being deleted. A pod that ended by itself stays as an object after its processes are gone, and no controller
// deletes it. terminal are the pods of [restart.Job.TerminalPodsToDelete].
func (r podReader) remaining(ctx context.Context, job restart.Job, cur restart.Restart) (remaining, terminal []metav1.PartialObjectMetadata, err error) {
	namespace := job.Object.GetNamespace()
	labelled, err := r.list(ctx, namespace, job.Pods, fields.Everything())
	if err != nil {
		return nil, nil, err
	}
	seen := map[types.UID]bool{}
	for _, p := range labelled {
		if p.DeletionTimestamp != nil && job.MustEnd(cur, &p) {
			remaining, seen[p.UID] = append(remaining, p), true
		}
	}
	active := map[types.UID]bool{}
	for i, of := range []labels.Selector{job.Pods, labels.Everything()} {
		if len(remaining) > 0 && (job.SuspendField.Exists() || i > 0) {
			return remaining, nil, nil // and spare the API server the whole namespace until they are gone
		}
		pods, err := r.list(ctx, namespace, of, activePods)
		if err != nil {
			return nil, nil, err
		}
		for _, p := range pods {
			active[p.UID] = true
			if job.MustEnd(cur, &p) && !seen[p.UID] {
				remaining = append(remaining, p)
			}
		}
	}
	for _, p := range labelled {
		if job.MustBeDeleted(&p) && !active[p.UID] {
			terminal = append(terminal, p)
		}
	}
	return remaining, terminal, nil
}

// affected lists the job's active pods on those of the nodes whose quarantine stands.
func (r podReader) affected(ctx context.Context, job restart.Job, causes []restart.Cause) ([]corev1.Pod, error) {
	var on []corev1.Pod
	for _, c := range causes {
		stands, err := r.stands(ctx, c)
		if err != nil {
			return nil, err
		}
		if !stands {
			continue
		}
		pods, err := r.whole(ctx, job, client.MatchingFields{"spec.nodeName": c.Node})
		if err != nil {
			return nil, fmt.Errorf("on node %s: %w", c.Node, err)
		}
		on = append(on, slices.DeleteFunc(pods, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || restart.PodFinished(&p) })...)
	}
	return on, nil
}

// stands reports whether a quarantine still stands.
func (r podReader) stands(ctx context.Context, c restart.Cause) (bool, error) {
	node, err := r.node(ctx, c.Node)
	return err == nil && c.Stands(node), err
}

// node reads a node; nil if there is none of that name.
func (r podReader) node(ctx context.Context, name string) (*corev1.Node, error) {
	var node corev1.Node
	err := r.apiReader.Get(ctx, client.ObjectKey{Name: name}, &node)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return &node, nil
}

// nodeOf is the node of a pod, which its metadata does not contain; empty if the pod is gone.
func (r podReader) nodeOf(ctx context.Context, namespace, name string) (string, error) {
	var found corev1.PodList
	if err := r.apiReader.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name}); err != nil {
		return "", fmt.Errorf("list pod %s/%s: %w", namespace, name, err)
	}
	for i := range found.Items {
		return found.Items[i].Spec.NodeName, nil
	}
	return "", nil
}
