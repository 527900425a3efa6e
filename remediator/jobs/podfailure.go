package jobs

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/pitcrew-dev/pitcrew/remediator/pause"
)

// incident is the failure of one rank. It says all that is needed once the pod is gone: its owner may delete it at once.
type incident struct {
	namespace, pod, node, why string
	created, at               int64 // Unix times of the pod and of its failure; that of the zero time: not known
	owner                     owner
}

// owner is a controller reference that can be compared.
type owner struct {
	apiVersion, kind, name string
	uid                    types.UID
}

// oldFailure is the age from which on a failure is no reason to restart a job. A process that begins to watch sees all failed pods
// that are still listed; a gang that waited for such a rank would have failed for good by now, or else goes on without it.
const oldFailure = time.Hour

// retryFailure is how often an incident is looked at again while the job is paused or under restart.
const retryFailure = 2 * time.Second

// followPods watches the pods that the policy selects and restarts the jobs of those that fail.
func (r *Restarter) followPods(mgr ctrl.Manager, pods labels.Selector) error {
	selected, err := cache.New(mgr.GetConfig(), cache.Options{
		HTTPClient: mgr.GetHTTPClient(),
		Scheme:     mgr.GetScheme(),
		Mapper:     mgr.GetRESTMapper(),
		ByObject:   map[client.Object]cache.ByObject{&corev1.Pod{}: {Label: pods, Transform: slimPod}},
	})
	if err != nil {
		return fmt.Errorf("make the cache of pods: %w", err)
	}
	if err := mgr.Add(selected); err != nil {
		return fmt.Errorf("add the cache of pods: %w", err)
	}
	c, err := controller.NewTyped("pod-failure", mgr, controller.TypedOptions[incident]{Reconciler: reconcile.TypedFunc[incident](r.failed)})
	if err != nil {
		return fmt.Errorf("make the pod failure controller: %w", err)
	}
	if err := c.Watch(source.TypedKind(selected, &corev1.Pod{}, handler.TypedEnqueueRequestsFromMapFunc(r.incidents))); err != nil {
		return fmt.Errorf("watch pods: %w", err)
	}
	return nil
}

// incidents is the incident of a pod, if it is one and young.
func (r *Restarter) incidents(_ context.Context, p *corev1.Pod) []incident {
	ref := metav1.GetControllerOf(p)
	why, at := failure(p)
	if ref == nil || why == "" {
		return nil
	}
	if at.IsZero() && p.Status.Phase == corev1.PodFailed {
		at = p.CreationTimestamp // it never ran
	}
	if !at.IsZero() && r.now().Sub(at.Time) > oldFailure {
		return nil
	}
	return []incident{{p.Namespace, p.Name, p.Spec.NodeName, why, p.CreationTimestamp.Unix(), at.Unix(), owner{ref.APIVersion, ref.Kind, ref.Name, ref.UID}}}
}

// failed restarts the job of a rank that failed, unless it has been restarted since.
func (r *Restarter) failed(ctx context.Context, in incident) (result ctrl.Result, err error) {
	defer func() {
		if result.RequeueAfter == 0 {
			r.waitsNoMore(in)
		}
	}()
	if !r.limits().PodFailures.Enabled { // any more
		return ctrl.Result{}, nil
	}
	again := ctrl.Result{RequeueAfter: retryFailure}
	if paused, err := pause.Reason(ctx, r.writer, r.Namespace); paused != "" || err != nil {
		return again, err
	}
	climb := climber{reader: r.reader, kinds: r.kinds(), seen: map[ownerKey]root{}}
	top, err := climb.from(ctx, in.namespace, metav1.OwnerReference{APIVersion: in.owner.apiVersion, Kind: in.owner.kind, Name: in.owner.name, UID: in.owner.uid})
	if err != nil {
		return ctrl.Result{}, err
	}
	if top.job == nil || top.stranger != nil || !top.job.replacesOne() {
		return ctrl.Result{}, nil
	}
	v := *top.job
	rec, err := readRecord(v.object)
	if err == nil && in.created < rec.incarnation().Unix() {
		return ctrl.Result{}, nil
	}
	if !r.waitsFirst(fmt.Sprintf("%s %s", v.object.GetUID(), rec.incarnation()), in) {
		return ctrl.Result{}, nil
	}
	if err == nil && rec.Current != nil && rec.Current.Phase != saving {
		return again, nil
	}
	var node corev1.Node
	if err := r.writer.Get(ctx, client.ObjectKey{Name: in.node}, &node); client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, fmt.Errorf("get node %s: %w", in.node, err)
	}
	after, err := r.sweepJob(ctx, Quarantine{
		// All failures of one incarnation are one.
		ID:      fmt.Sprintf("%s-failure-%d", v.object.GetUID(), rec.Total),
		Node:    in.node,
		NodeUID: node.UID,
		Reason:  fmt.Sprintf("pod %s failed: %s", in.pod, in.why),
		Since:   time.Unix(in.at, 0),
	}, v, nil)
	return ctrl.Result{RequeueAfter: after}, err
}

// waitsFirst tells whether no other failure of the same incarnation waits for the restart: hundreds of ranks that failed
// together must not look for room side by side.
func (r *Restarter) waitsFirst(incarnation string, in incident) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if first, waits := r.waiting[incarnation]; waits && first != in {
		return false
	}
	r.waiting[incarnation] = in
	return true
}

func (r *Restarter) waitsNoMore(in incident) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.waiting, func(_ string, first incident) bool { return first == in })
}

// replacesOne tells whether the controllers of a kind replace a failed rank alone. Others restart the whole gang, or fail,
// as their own policies say (JobSet, TrainJob, Volcano, LeaderWorkerSet, Ray), or have no gang.
func (k kind) replacesOne() bool { return k.gvk == batchJob.gvk || k.gvk.Group == pyTorchJob.gvk.Group }

// incarnation is the time from which on the pods of the job are those that run now.
func (rec record) incarnation() time.Time {
	if rec.Current != nil && rec.Current.Phase != saving {
		return rec.Current.PhaseSince
	}
	if last := rec.lastStop(); last != nil {
		return last.PhaseSince
	}
	return time.Time{}
}

// slimPod keeps what [failure] reads of a pod, so that watching many of them stays cheap.
func slimPod(object any) (any, error) {
	p, ok := object.(*corev1.Pod)
	if !ok {
		return object, nil // a tombstone
	}
	slim := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.Namespace, Name: p.Name, UID: p.UID, ResourceVersion: p.ResourceVersion,
			CreationTimestamp: p.CreationTimestamp, DeletionTimestamp: p.DeletionTimestamp,
			Labels: p.Labels, OwnerReferences: p.OwnerReferences,
		},
		Spec:   corev1.PodSpec{NodeName: p.Spec.NodeName, RestartPolicy: p.Spec.RestartPolicy},
		Status: corev1.PodStatus{Phase: p.Status.Phase, Reason: p.Status.Reason},
	}
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget {
			slim.Status.Conditions = []corev1.PodCondition{{Type: c.Type, Status: c.Status, Reason: c.Reason, LastTransitionTime: c.LastTransitionTime}}
		}
	}
	slim.Status.InitContainerStatuses = ends(p.Status.InitContainerStatuses)
	slim.Status.ContainerStatuses = ends(p.Status.ContainerStatuses)
	return slim, nil
}

// ends keeps how containers ended.
func ends(all []corev1.ContainerStatus) []corev1.ContainerStatus {
	var kept []corev1.ContainerStatus
	for _, c := range all {
		if t := c.State.Terminated; t != nil {
			kept = append(kept, corev1.ContainerStatus{Name: c.Name, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{ExitCode: t.ExitCode, Reason: t.Reason, FinishedAt: t.FinishedAt},
			}})
		}
	}
	return kept
}

// nodeLost is the status.reason of a pod whose node does not answer (kubernetes pkg/util/node, NodeUnreachablePodReason).
const nodeLost = "NodeLost"

// failure says how a rank failed, and when if that is known; empty: it has not, or it restarts in place. A pod that somebody deleted, as a suspended
// job's controller does, has not failed: it is marked as disrupted if it was evicted or preempted.
func failure(p *corev1.Pod) (why string, at metav1.Time) {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			return "disrupted: " + c.Reason, c.LastTransitionTime
		}
	}
	switch {
	case p.DeletionTimestamp != nil:
		return "", at
	case p.Status.Reason == nodeLost || p.Status.Phase == corev1.PodUnknown:
		return "its node does not answer", at
	case p.Status.Phase == corev1.PodFailed && p.Status.Reason != "":
		for _, c := range p.Status.ContainerStatuses {
			if t := c.State.Terminated; t != nil && t.FinishedAt.After(at.Time) {
				at = t.FinishedAt
			}
		}
		return p.Status.Reason, at // Evicted, UnexpectedAdmissionError, DeadlineExceeded, ...
	case p.Status.Phase != corev1.PodFailed && p.Spec.RestartPolicy != corev1.RestartPolicyNever:
		return "", at
	}
	for _, c := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if t := c.State.Terminated; t != nil && t.ExitCode != 0 {
			return fmt.Sprintf("container %s: %s, exit code %d", c.Name, t.Reason, t.ExitCode), t.FinishedAt
		}
	}
	if p.Status.Phase == corev1.PodFailed {
		return "it does not say why", at
	}
	return "", at
}
