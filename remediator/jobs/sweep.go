package jobs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilrand "k8s.io/apimachinery/pkg/util/rand"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/log"
)

// maxHops bounds the climb from a pod to its job.
const maxHops = 6

// Sweep begins the restart of every opted-in job that has an active pod on the quarantined node, or says why it does
// not. Swept twice is the same as swept once. The error joins what went wrong with single jobs; the others are done.
// Unless again is zero, some job is to be restarted later: sweep again after that time, while the quarantine stands. Call
// it after SetupWithManager.
func (r *Restarter) Sweep(ctx context.Context, q Quarantine) (again time.Duration, err error) {
	// No resourceVersion: the answer is at least as new as the taint.
	var pods corev1.PodList
	if err := r.reader.List(ctx, &pods, client.MatchingFields{"spec.nodeName": q.Node}); err != nil {
		return 0, fmt.Errorf("list the pods on node %s: %w", q.Node, err)
	}
	climb := climber{reader: r.reader, kinds: r.kinds(), seen: map[ownerKey]root{}}
	var errs []error
	onNode := map[ownerKey][]corev1.Pod{}
	roots := map[ownerKey]root{}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		top := root{namespace: pod.Namespace, bare: &pod}
		if owner := metav1.GetControllerOf(&pod); owner != nil {
			var err error
			if top, err = climb.from(ctx, pod.Namespace, *owner); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		if uid := top.uid(); uid != "" {
			key := ownerKey{pod.Namespace, uid}
			roots[key] = top
			onNode[key] = append(onNode[key], pod)
		}
	}
	for key, top := range roots {
		var after time.Duration
		var err error
		if top.job != nil && top.stranger == nil {
			after, err = r.sweepJob(ctx, q, *top.job, onNode[key])
		} else {
			err = r.strange(ctx, q, top)
		}
		errs = append(errs, err)
		if after > 0 && (again == 0 || after < again) {
			again = after
		}
	}
	return again, errors.Join(errs...)
}

// root is what stands above a pod: a job of a known kind, or a stranger that controls it or the pod itself, or neither;
// or the bare pod itself.
type root struct {
	namespace string
	job       *view
	stranger  *metav1.OwnerReference
	bare      *corev1.Pod
}

func (t root) uid() types.UID {
	switch {
	case t.stranger != nil:
		return t.stranger.UID
	case t.job != nil:
		return t.job.object.GetUID()
	case t.bare != nil:
		return t.bare.UID
	}
	return ""
}

// climber remembers what it found, so that a job with many pods on the node is read once.
type climber struct {
	reader client.Reader
	kinds  []kind
	seen   map[ownerKey]root
}

// ownerKey is an owner as a pod names it. Whoever may create pods can name any UID, but only in a namespace of theirs.
type ownerKey struct {
	namespace string
	uid       types.UID
}

func (c climber) from(ctx context.Context, namespace string, owner metav1.OwnerReference) (root, error) {
	key := ownerKey{namespace, owner.UID}
	if found, ok := c.seen[key]; ok {
		return found, nil
	}
	found, err := c.climb(ctx, namespace, owner)
	if err == nil {
		c.seen[key] = found
	}
	return found, err
}

// climb follows controller references up to the first object without a controller or of unknown kind.
func (c climber) climb(ctx context.Context, namespace string, owner metav1.OwnerReference) (root, error) {
	top := root{namespace: namespace}
	for range maxHops {
		if owner.APIVersion == "v1" && owner.Kind == "Pod" { // the leader of a LeaderWorkerSet's group owns its workers
			up, err := c.ownerOfPod(ctx, namespace, owner)
			if err != nil || up == nil {
				return root{}, err
			}
			owner = *up
			continue
		}
		k, known := kindOf(c.kinds, owner)
		if !known {
			if top.job != nil || !nobodysGang(owner) {
				top.stranger = &owner
			}
			return top, nil
		}
		v, err := k.look(ctx, c.reader, client.ObjectKey{Namespace: namespace, Name: owner.Name})
		if gone(err) || err == nil && v.object.GetUID() != owner.UID {
			// The owner is gone, and the garbage collector takes what it owned.
			return root{}, nil
		}
		if err != nil {
			return root{}, err
		}
		if below := top.job; below != nil && v.templates == nil { // a kind that says little of itself
			v.jobs, v.templates = below.jobs, below.templates
		}
		top.job = &v
		up := metav1.GetControllerOf(v.object)
		if up == nil {
			return top, nil
		}
		owner = *up
	}
	top.stranger = &owner // a circle, or no kind that is known here
	return top, nil
}

// ownerOfPod returns the controller of a pod that controls others; nil if there is none.
func (c climber) ownerOfPod(ctx context.Context, namespace string, owner metav1.OwnerReference) (*metav1.OwnerReference, error) {
	var pod metav1.PartialObjectMetadata
	pod.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Pod"))
	err := c.reader.Get(ctx, client.ObjectKey{Namespace: namespace, Name: owner.Name}, &pod)
	if gone(err) || err == nil && pod.UID != owner.UID {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("get pod %s/%s: %w", namespace, owner.Name, err)
	}
	return metav1.GetControllerOf(&pod), nil
}

// nobodysGang tells whether an owner's pods belong to their node, so that none of them can move.
func nobodysGang(owner metav1.OwnerReference) bool {
	switch owner.APIVersion + "/" + owner.Kind {
	case "apps/v1/DaemonSet", "v1/Node":
		return true
	}
	return false
}

// optedIn asks the job, and where it says nothing its namespace.
func (r *Restarter) optedIn(ctx context.Context, t root) (bool, error) {
	var own map[string]string
	switch {
	case t.job != nil:
		own = t.job.object.GetLabels()
	case t.bare != nil:
		own = t.bare.Labels
	}
	if in, decided := optIn(own); decided {
		return in, nil
	}
	var namespace metav1.PartialObjectMetadata
	namespace.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Namespace"))
	if err := r.reader.Get(ctx, client.ObjectKey{Name: t.namespace}, &namespace); err != nil {
		return false, fmt.Errorf("get namespace %s: %w", t.namespace, err)
	}
	in, _ := optIn(namespace.Labels)
	return in, nil
}

// strange reports a job that is controlled by something unknown, and a pod that is controlled by nothing.
func (r *Restarter) strange(ctx context.Context, q Quarantine, t root) error {
	in, err := r.optedIn(ctx, t)
	if err != nil || !in {
		return err
	}
	if t.bare != nil {
		r.blocked(causeOf(q), t.bare, "Pod", blocked{"BarePod", "it has no controller that would replace it"})
		return nil
	}
	r.blocked(causeOf(q), strangerObject(t), t.stranger.Kind, blocked{"UnknownOwner", fmt.Sprintf(
		"it is controlled by %s %s, which cannot be restarted as a whole", t.stranger.Kind, t.stranger.Name)})
	return nil
}

// sweepJob begins the restart of one job, or joins the one under way, or says why not and when to try again.
func (r *Restarter) sweepJob(ctx context.Context, q Quarantine, v view, onNode []corev1.Pod) (after time.Duration, err error) {
	err = retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		var err error
		after, err = r.begin(ctx, q, v, onNode)
		if !apierrors.IsConflict(err) {
			return err
		}
		fresh, lookErr := v.look(ctx, r.reader, v.key())
		if gone(lookErr) || lookErr == nil && fresh.object.GetUID() != v.object.GetUID() {
			return nil
		}
		if lookErr != nil {
			return lookErr
		}
		v = fresh
		return err
	})
	return after, err
}

func (r *Restarter) begin(ctx context.Context, q Quarantine, v view, onNode []corev1.Pod) (after time.Duration, err error) {
	optedIn, err := r.optedIn(ctx, root{namespace: v.object.GetNamespace(), job: &v})
	if err != nil {
		return 0, err
	}
	rec, err := readRecord(v.object)
	if err != nil {
		if optedIn {
			r.blocked(causeOf(q), v.object, v.gvk.Kind, blocked{"RecordUnreadable", err.Error()})
		}
		return 0, nil
	}
	do, why := judge(q, v, rec, optedIn, onNode)
	log.FromContext(ctx).V(1).Info("swept", "kind", v.gvk.Kind, "job", v.key(), "quarantine", q.ID, "verdict", do, "reason", why.reason)
	switch do {
	case block:
		r.blocked(causeOf(q), v.object, v.gvk.Kind, why)
	case join:
		rec.Current.add(causeOf(q))
		if rec.Current.Phase == stopping {
			if err := r.remember(ctx, v, rec.Current, onNode); err != nil {
				return 0, err
			}
		}
		return 0, r.write(ctx, v, rec)
	case stop:
		if rec.Current == nil {
			return r.admit(ctx, q, v, rec, onNode)
		}
		rec.Current.add(causeOf(q))
		return 0, r.stop(ctx, v, rec, onNode, []cause{causeOf(q)})
	}
	return 0, nil
}

// stop stops the job for the current restart of the record, or stops it again while it is starting. causes are what it
// is stopped for now.
func (r *Restarter) stop(ctx context.Context, v view, rec record, onNode []corev1.Pod, causes []cause) error {
	now := r.now()
	if rec.Current.Phase != starting {
		rec = rec.counted(now, r.limits().BackOff)
		rec.Current.StartedAt = now
	}
	cur := rec.Current
	cur.ID, cur.Phase, cur.PhaseSince, cur.CheckpointBy = utilrand.String(8), stopping, now, time.Time{}
	cur.Pods, cur.Retries, cur.Sent = nil, v.retries, false
	if err := r.remember(ctx, v, cur, onNode); err != nil {
		return err
	}
	if n := len(cur.Pods); n > maxPods {
		r.blocked(causes[0], v.object, v.gvk.Kind, blocked{"TooManyPods", fmt.Sprintf("its %d pods do not fit the record, which holds %d", n, maxPods)})
		return nil
	}
	// Watched before it is labelled: the watch is what drives the restart.
	if err := r.watch(ctx, v.kind); err != nil {
		return err
	}
	if err := r.move(ctx, v, rec); err != nil {
		return err
	}
	r.began(v, *cur, causes)
	return nil
}

// remember adds the active pods of the gangs that have a pod on the node to the recorded ones.
func (r *Restarter) remember(ctx context.Context, v view, cur *restart, onNode []corev1.Pod) error {
	hit := v.hit(onNode)
	pods, err := r.pods(ctx, v.object.GetNamespace(), v.pods, active)
	if err != nil {
		return err
	}
	cur.Ranks = max(cur.Ranks, len(pods))
	for _, pod := range pods {
		if !hit(&pod) {
			continue
		}
		cur.Pods = append(cur.Pods, pod.UID)
		if created := pod.CreationTimestamp.Time; cur.RunningSince.IsZero() || created.Before(cur.RunningSince) {
			cur.RunningSince = created
		}
	}
	for _, pod := range onNode { // some kinds have pods that their selector does not find
		cur.Pods = append(cur.Pods, pod.UID)
	}
	slices.Sort(cur.Pods)
	cur.Pods = slices.Compact(cur.Pods)
	return nil
}

// hit tells of a pod whether it has to be restarted together with the pods on the node.
func (v view) hit(onNode []corev1.Pod) func(metav1.Object) bool {
	if v.gang == nil {
		return func(metav1.Object) bool { return true }
	}
	gangs := map[string]bool{}
	for _, pod := range onNode {
		gangs[v.gang(&pod)] = true
	}
	return func(pod metav1.Object) bool { return gangs[v.gang(pod)] }
}
