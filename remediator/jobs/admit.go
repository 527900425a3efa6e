package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// retryAdmission is when to try again if another job is being admitted just now.
const retryAdmission = 100 * time.Millisecond

func (r *Restarter) limits() policy.Restart {
	if r.Policy == nil {
		return policy.Restart{}
	}
	return r.Policy.Policy().Restart
}

// admit begins a restart if nothing speaks against it now. Else it says what, and returns when to try again; zero: when
// something changes.
func (r *Restarter) admit(ctx context.Context, q Quarantine, v view, rec record, onNode []corev1.Pod) (time.Duration, error) {
	if aborts(v) {
		return 0, r.abortEarly(ctx, q, v, rec)
	}
	l := v.bounds(r.limits())
	var others []restart
	if l.MaxConcurrent > 0 || l.CheckCapacity {
		// Two that are admitted side by side would both take the last place. Who is second does not wait here: a node's
		// controller that waits would delay taints.
		if !r.admitting.TryLock() {
			return retryAdmission, nil
		}
		defer r.admitting.Unlock()
		var err error
		if others, err = r.others(ctx, request{v.gvk, v.key()}); err != nil {
			return 0, err
		}
	}
	now := r.now()
	moving := 0
	d := delayed(q, rec, others, l, now)
	if d.reason == "" && l.CheckCapacity {
		ranks, err := r.ranks(ctx, v, onNode)
		if err != nil {
			return 0, err
		}
		if moving, d, err = r.roomFor(ctx, q, ranks, claimed(others), now); err != nil {
			return 0, err
		}
	}
	if d.reason != "" {
		if d.reason != reasonSettling {
			r.blocked(causeOf(q), v.object, v.gvk.Kind, d.blocked)
		}
		return d.after, nil
	}
	rec.Current = &restart{StartedAt: now, PhaseSince: now, Quarantines: []cause{causeOf(q)}, Moving: moving}
	if q.CheckpointGrace > 0 {
		return 0, r.announce(ctx, v, rec, now.Add(q.CheckpointGrace))
	}
	return 0, r.stop(ctx, v, rec, onNode, rec.Current.Quarantines)
}

// bounds are the limits that mean something to a job. Where each pod or group is replaced by itself, one restart says
// nothing about the next.
func (v view) bounds(l policy.Restart) policy.Restart {
	if v.gang != nil {
		l.MaxPerDay, l.MaxPerJob, l.BackOff = 0, 0, policy.BackOff{}
	}
	return l
}

// claimed is how many ranks of restarts under way have to move, and need room that nobody has taken yet. Whoever may write
// a job can write any number into its record.
func claimed(all []restart) int {
	n := 0
	for _, r := range all {
		n += min(max(r.Moving, 0), maxPods)
	}
	return n
}

// others are the restarts of other jobs that are under way: those that the cache shows, and those that this process has
// begun and the cache may not show yet.
func (r *Restarter) others(ctx context.Context, self request) ([]restart, error) {
	r.mu.Lock()
	tried := r.triedAll
	r.mu.Unlock()
	if !tried {
		r.watchAll(ctx)
	}
	r.mu.Lock()
	all := map[request]restart{}
	for req, cur := range r.begun {
		all[req] = cur
	}
	var kinds []kind
	for _, k := range r.kinds() {
		if r.watched[k.gvk] {
			kinds = append(kinds, k)
		}
	}
	r.mu.Unlock()
	for _, k := range kinds {
		var list metav1.PartialObjectMetadataList
		list.SetGroupVersionKind(k.gvk.GroupVersion().WithKind(k.gvk.Kind + "List"))
		if err := r.cache.List(ctx, &list); err != nil {
			return nil, fmt.Errorf("list the %ss under restart: %w", k.gvk.Kind, err)
		}
		for i := range list.Items {
			// A record that does not parse is dropped by the restart's own controller.
			if rec, err := readRecord(&list.Items[i]); err == nil && rec.Current != nil {
				all[request{k.gvk, client.ObjectKeyFromObject(&list.Items[i])}] = *rec.Current
			}
		}
	}
	delete(all, self)
	var others []restart
	for _, cur := range all {
		others = append(others, cur)
	}
	return others, nil
}

// ranks lists the active pods of the gangs that have a pod on the node.
func (r *Restarter) ranks(ctx context.Context, v view, onNode []corev1.Pod) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.reader.List(ctx, &list, client.InNamespace(v.object.GetNamespace()),
		client.MatchingLabelsSelector{Selector: v.pods}, client.MatchingFieldsSelector{Selector: active}); err != nil {
		return nil, fmt.Errorf("list the pods of %s %s: %w", v.gvk.Kind, v.key(), err)
	}
	hit := v.hit(onNode)
	return slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return !hit(&p) }), nil
}

// abortEarly closes a restart that a person aborted before it had begun.
func (r *Restarter) abortEarly(ctx context.Context, q Quarantine, v view, rec record) error {
	now := r.now()
	rec.Current = &restart{StartedAt: now, PhaseSince: now, Quarantines: []cause{causeOf(q)}}
	s := step{phase: failed, result: "Aborted", outcome: "aborted by annotation " + conditions.AnnotationAbortRestart + " before the job was stopped"}
	cur := *rec.Current
	if err := r.write(ctx, v, rec.closed(s.phase, s.outcome, now)); err != nil {
		return err
	}
	r.ended(v, cur, s, now)
	return nil
}
