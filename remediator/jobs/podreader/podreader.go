// Package podreader reads the pods of jobs, live: what a cache holds of pods that are gone proves nothing. How many objects one read takes
// does not depend on the record of a job.
package podreader

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/remediator/jobs/kinds"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/slim"
)

// Active selects pods that have not ended, those that are being deleted included.
var Active = fields.AndSelectors(
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodSucceeded)),
	fields.OneTermNotEqualSelector("status.phase", string(corev1.PodFailed)),
)

// ActiveOf selects [Active] pods on a node. Anyone who may create pods can send any number there that the kubelet refuses, and that stay.
func ActiveOf(node string) fields.Selector {
	return fields.AndSelectors(fields.OneTermEqualSelector("spec.nodeName", node), Active)
}

// Reader reads pods.
type Reader struct {
	// API must be live.
	API client.Reader
	// Kinds are those of jobs that can be restarted.
	Kinds func() []kinds.Kind
}

// MaxNodes is how many nodes of a restart are read one by one; of more, all pods of the job are listed at once.
const MaxNodes = 8

// maxOnNode is how many active pods of a namespace on one node are judged. No kubelet runs as many, but anyone who may create pods can send
// more to a node that does not answer.
const maxOnNode = 512

// OnNode lists the active pods on a node, see [restart.ActiveOn]; cached has the node. leftOut are namespaces whose pods there are too
// many or too large to judge.
func (r Reader) OnNode(ctx context.Context, name string, cached client.Reader) (active []corev1.Pod, leftOut []string, err error) {
	var pods corev1.PodList
	// No resourceVersion: the answer is at least as new as the taint.
	leftOut, err = slim.ListPods(ctx, r.API, &pods, ActiveOf(name))
	if err != nil {
		return nil, nil, fmt.Errorf("list the pods on node %s: %w", name, err)
	}
	var node *corev1.Node // it is only needed if a pod is being deleted
	if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil }) {
		if node, err = GetNode(ctx, cached, name); err != nil {
			return nil, nil, err
		}
	}
	of := map[string]int{}
	active = slices.DeleteFunc(pods.Items, func(p corev1.Pod) bool {
		if !restart.ActiveOn(&p, node) {
			return true
		}
		of[p.Namespace]++
		return false
	})
	for _, namespace := range slices.Sorted(maps.Keys(of)) {
		if of[namespace] > maxOnNode {
			leftOut = append(leftOut, namespace)
		}
	}
	return slices.DeleteFunc(active, func(p corev1.Pod) bool { return of[p.Namespace] > maxOnNode }), leftOut, nil
}

// own keeps those pods that belong to the job, see [kinds.OwnerResolver.Owns].
func own[P any, PT interface {
	*P
	metav1.Object
}](ctx context.Context, r Reader, job restart.Job, pods []P) ([]P, error) {
	resolver := kinds.NewOwnerResolver(r.API, r.Kinds())
	var kept []P
	for i := range pods {
		owned, err := resolver.Owns(ctx, job, PT(&pods[i]))
		if err != nil {
			return nil, err
		}
		if owned {
			kept = append(kept, pods[i])
		}
	}
	return kept, nil
}

// Active lists the job's pods that have not ended.
func (r Reader) Active(ctx context.Context, job restart.Job) ([]metav1.PartialObjectMetadata, error) {
	pods, err := r.list(ctx, job.Object.GetNamespace(), job.Pods, Active)
	if err != nil {
		return nil, err
	}
	return own(ctx, r, job, pods)
}

// CountActive counts the job's pods that have not ended.
func (r Reader) CountActive(ctx context.Context, job restart.Job) (int, error) {
	pods, err := r.Active(ctx, job)
	return len(pods), err
}

// list lists the metadata of pods. A 512-rank job is a few MB that way, ten times less than whole pods.
func (r Reader) list(
	ctx context.Context, namespace string, of labels.Selector, in fields.Selector,
) ([]metav1.PartialObjectMetadata, error) {
	var list metav1.PartialObjectMetadataList
	list.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("PodList"))
	if err := r.API.List(ctx, &list, client.InNamespace(namespace),
		client.MatchingLabelsSelector{Selector: of}, client.MatchingFieldsSelector{Selector: in}); err != nil {
		return nil, fmt.Errorf("list pods in %s: %w", namespace, err)
	}
	return list.Items, nil
}

// Whole lists whole pods of a job.
func (r Reader) Whole(ctx context.Context, job restart.Job, opts ...client.ListOption) ([]corev1.Pod, error) {
	var list corev1.PodList
	opts = append(opts, client.InNamespace(job.Object.GetNamespace()), client.MatchingLabelsSelector{Selector: job.Pods})
	if err := r.API.List(ctx, &list, opts...); err != nil {
		return nil, fmt.Errorf("list the pods of %s %s: %w", job.GVK.Kind, job.Key(), err)
	}
	return own(ctx, r, job, list.Items)
}

// OfGangs lists the active pods of the gangs that have a pod on the node, [restart.Job.Unplaced].
func (r Reader) OfGangs(ctx context.Context, job restart.Job, onNode []corev1.Pod) ([]corev1.Pod, error) {
	shares := job.SharesGang(onNode)
	pods, err := r.Whole(ctx, job, client.MatchingFieldsSelector{Selector: Active})
	return job.Unplaced(slices.DeleteFunc(pods, func(p corev1.Pod) bool { return !shares(&p) })), err
}

// Running counts the job's pods that run and are not being deleted.
func (r Reader) Running(ctx context.Context, job restart.Job) (int, error) {
	pods, err := r.list(ctx, job.Object.GetNamespace(), job.Pods, fields.OneTermEqualSelector("status.phase", string(corev1.PodRunning)))
	if err != nil {
		return 0, err
	}
	pods, err = own(ctx, r, job, slices.DeleteFunc(pods, func(p metav1.PartialObjectMetadata) bool { return p.DeletionTimestamp != nil }))
	return len(pods), err
}

// Remaining lists the pods that stand in the way of a start: of those of [restart.Job.MustEnd] the active ones, and those of the
// job that are being deleted. A pod that ended by itself stays as an object after its processes are gone, and no controller
// deletes it. terminal are the pods of [restart.Job.TerminalPodsToDelete], listed counts as [restart.Facts.Listed].
func (r Reader) Remaining(
	ctx context.Context, job restart.Job, cur restart.Restart,
) (remaining, terminal []metav1.PartialObjectMetadata, listed int, err error) {
	namespace := job.Object.GetNamespace()
	labelled, err := r.list(ctx, namespace, job.Pods, fields.Everything())
	if err != nil {
		return nil, nil, 0, err
	}
	owned, err := own(ctx, r, job, labelled)
	if err != nil {
		return nil, nil, 0, err
	}
	ours := map[types.UID]bool{}
	for _, p := range owned {
		ours[p.UID] = true
	}
	mustEnd := func(p *metav1.PartialObjectMetadata) bool {
		return job.MustEnd(cur, p) || job.SuspendField.Exists() && ours[p.UID]
	}
	old, seen := sets.New(cur.Pods...), map[types.UID]bool{}
	for _, p := range labelled {
		if old.Has(p.UID) {
			listed++
		}
		if p.DeletionTimestamp != nil && mustEnd(&p) {
			remaining, seen[p.UID] = append(remaining, p), true
		}
	}
	active := map[types.UID]bool{}
	for i, of := range []labels.Selector{job.Pods, labels.Everything()} {
		if len(remaining) > 0 && (job.SuspendField.Exists() || i > 0) {
			return remaining, nil, listed, nil // and spare the API server the whole namespace until they are gone
		}
		pods, err := r.list(ctx, namespace, of, Active)
		if err != nil {
			return nil, nil, 0, err
		}
		for _, p := range pods {
			active[p.UID] = true
			if mustEnd(&p) && !seen[p.UID] {
				remaining = append(remaining, p)
			}
		}
	}
	terminal = slices.DeleteFunc(labelled, func(p metav1.PartialObjectMetadata) bool { return active[p.UID] || !job.MustBeDeleted(&p) })
	return remaining, terminal, listed, nil
}

// DeletingOn reads those of a job's remaining pods that are being deleted on the nodes, whole.
func (r Reader) DeletingOn(
	ctx context.Context, job restart.Job, nodes []string, remaining []metav1.PartialObjectMetadata,
) ([]corev1.Pod, error) {
	wanted := map[types.UID]bool{}
	for _, p := range remaining {
		if p.DeletionTimestamp != nil {
			wanted[p.UID] = true
		}
	}
	if len(wanted) == 0 {
		return nil, nil
	}
	var found []corev1.Pod
	for _, node := range nodes {
		var list corev1.PodList
		err := r.API.List(ctx, &list, client.InNamespace(job.Object.GetNamespace()), client.MatchingFields{"spec.nodeName": node})
		if err != nil {
			return nil, fmt.Errorf("list the pods on node %s in %s: %w", node, job.Object.GetNamespace(), err)
		}
		found = append(found, slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !wanted[p.UID] })...)
	}
	return found, nil
}

// Deleting reads those of a job's remaining pods that are being deleted, whole: their metadata does not contain their nodes. Of many, it
// reads those that the job's selector finds, and a few of the others, which are looked at when those are gone.
func (r Reader) Deleting(ctx context.Context, job restart.Job, remaining []metav1.PartialObjectMetadata) ([]corev1.Pod, error) {
	wanted := map[types.UID]string{}
	for _, p := range remaining {
		if p.DeletionTimestamp != nil {
			wanted[p.UID] = p.Name
		}
	}
	namespace := job.Object.GetNamespace()
	var found []corev1.Pod
	if len(wanted) > MaxNodes {
		var list corev1.PodList
		if err := r.API.List(ctx, &list, client.InNamespace(namespace), client.MatchingLabelsSelector{Selector: job.Pods}); err != nil {
			return nil, fmt.Errorf("list the pods of %s %s: %w", job.GVK.Kind, job.Key(), err)
		}
		found = slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { _, want := wanted[p.UID]; return !want })
		for _, p := range found {
			delete(wanted, p.UID)
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(wanted))[:min(len(wanted), MaxNodes)] {
		var pod corev1.Pod
		err := r.API.Get(ctx, client.ObjectKey{Namespace: namespace, Name: wanted[uid]}, &pod)
		switch {
		case apierrors.IsNotFound(err), err == nil && pod.UID != uid:
		case err != nil:
			return nil, fmt.Errorf("get pod %s/%s: %w", namespace, wanted[uid], err)
		default:
			found = append(found, pod)
		}
	}
	return found, nil
}

// OwnsOrOrphaned reports whether a pod is one of the job's, or of an owner that is gone, as the RayCluster of a suspended RayJob is. A
// record alone does not make a pod the job's.
func (r Reader) OwnsOrOrphaned(ctx context.Context, job restart.Job, pod *corev1.Pod) (bool, error) {
	resolver := kinds.NewOwnerResolver(r.API, r.Kinds())
	owned, err := resolver.Owns(ctx, job, pod)
	if owned || err != nil {
		return owned, err
	}
	w, err := resolver.OfPod(ctx, pod)
	return err == nil && w.BarePod == nil && len(w.Owners) == 0, err
}

// Affected lists the job's active pods on those of the nodes whose quarantine stands. It reads few objects: of many nodes the cached
// ones, and all pods of the job at once.
func (r Reader) Affected(ctx context.Context, job restart.Job, causes []restart.Cause, cached client.Reader) ([]corev1.Pod, error) {
	standing := map[string]*corev1.Node{}
	nodes := r.API
	if len(causes) > MaxNodes {
		nodes = cached
	}
	for _, c := range causes {
		node, err := GetNode(ctx, nodes, c.Node)
		if err != nil {
			return nil, err
		}
		if c.Stands(node) {
			standing[c.Node] = node
		}
	}
	var where []client.ListOption
	for name := range standing {
		where = append(where, client.MatchingFields{"spec.nodeName": name})
	}
	if len(where) > MaxNodes {
		where = []client.ListOption{client.MatchingFieldsSelector{Selector: Active}}
	}
	var on []corev1.Pod
	for _, option := range where {
		pods, err := r.Whole(ctx, job, option)
		if err != nil {
			return nil, err
		}
		on = append(on, slices.DeleteFunc(pods, func(p corev1.Pod) bool {
			node, stands := standing[p.Spec.NodeName]
			return !stands || !restart.ActiveOn(&p, node)
		})...)
	}
	return on, nil
}

// Node reads a node, live; nil if there is none of that name.
func (r Reader) Node(ctx context.Context, name string) (*corev1.Node, error) {
	return GetNode(ctx, r.API, name)
}

// GetNode reads a node; nil if there is none of that name.
func GetNode(ctx context.Context, reader client.Reader, name string) (*corev1.Node, error) {
	var node corev1.Node
	err := reader.Get(ctx, client.ObjectKey{Name: name}, &node)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("get node %s: %w", name, err)
	}
	return &node, nil
}

// NodeOf is the node of a pod, which its metadata does not contain; empty if the pod is gone.
func (r Reader) NodeOf(ctx context.Context, namespace, name string) (string, error) {
	var found corev1.PodList
	if err := r.API.List(ctx, &found, client.InNamespace(namespace), client.MatchingFields{"metadata.name": name}); err != nil {
		return "", fmt.Errorf("list pod %s/%s: %w", namespace, name, err)
	}
	for i := range found.Items {
		return found.Items[i].Spec.NodeName, nil
	}
	return "", nil
}
