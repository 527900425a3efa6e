package jobs

import (
	"context"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/pause"
)

// halt is what the state machine does when a job has had its time to save its state.
const halt verb = "halt"

// waits is what a job that saves its state, and is to be stopped then, waits for.
type waits struct {
	// released: no node with a rank is quarantined any more.
	released bool
	// paused: nothing new is begun.
	paused bool
	// shut is why stopping would harm the job by now, see [gate].
	shut blocked
}

// nextSaving decides the next step of a restart that gives the job time to save its state. It is pure, as [next] is.
func nextSaving(cur restart, v view, w waits, now time.Time) step {
	left := cur.CheckpointBy.Sub(now)
	switch {
	case v.ended != "":
		return step{do: end, phase: done, result: "Withdrawn", outcome: "the job ended while it was " + doing(saving)}
	case aborts(v):
		return step{do: end, phase: failed, result: "Aborted", outcome: "aborted by annotation " + conditions.AnnotationAbortRestart + " before the job was stopped"}
	case v.suspended:
		return step{do: end, phase: failed, result: "Abandoned", outcome: "somebody stopped the job while it was " + doing(saving)}
	case w.released:
		return step{do: end, phase: done, result: "Withdrawn", outcome: "no rank is on a quarantined node any more; the job was not stopped"}
	case w.paused:
		return step{do: await, after: 2 * time.Second}
	case left > 0 && v.object.GetAnnotations()[conditions.AnnotationCheckpointed] != checkpointBy(cur):
		return step{do: await, after: min(left, 2*time.Second)}
	case v.busy:
		return step{do: await, after: 2 * time.Second}
	case w.shut.reason != "":
		return step{do: end, phase: failed, result: w.shut.reason, outcome: "not stopped after all: " + w.shut.text}
	}
	return step{do: halt}
}

// checkpointBy is the value of the annotation; a job that has saved its state repeats it.
func checkpointBy(cur restart) string { return cur.CheckpointBy.UTC().Format(time.RFC3339) }

// announce tells a job that it is stopped at a time, or as soon as it says that it has saved its state.
func (r *Restarter) announce(ctx context.Context, v view, rec record, by time.Time) error {
	// To the second, so that a script can compare it.
	rec.Current.Phase, rec.Current.CheckpointBy = saving, by.Truncate(time.Second)
	if err := r.watch(ctx, v.kind); err != nil {
		return err
	}
	if err := r.write(ctx, v, rec); err != nil {
		return err
	}
	for _, c := range rec.Current.Quarantines {
		r.tell(v.object, v.gvk.Kind, c, false, eventRestarting, "Checkpoint", fmt.Sprintf("it is stopped at %s, or as soon as its annotation %s says that time",
			checkpointBy(*rec.Current), conditions.AnnotationCheckpointed))
	}
	return nil
}

// reconcileSaving takes the next step of a restart that gives the job time to save its state.
func (r *Restarter) reconcileSaving(ctx context.Context, v view, rec record) (ctrl.Result, error) {
	onNode, err := r.onQuarantined(ctx, v, rec.Current.Quarantines)
	if err != nil {
		return ctrl.Result{}, err
	}
	paused, err := pause.Reason(ctx, r.writer, r.Namespace)
	if err != nil {
		return ctrl.Result{}, err
	}
	now := r.now()
	cur := *rec.Current
	s := nextSaving(cur, v, waits{released: len(onNode) == 0, paused: paused != "", shut: shut(cur, v, onNode)}, now)
	switch s.do {
	case halt:
		if err := r.stop(ctx, v, rec, onNode, cur.Quarantines); err != nil {
			return retryConflict(err)
		}
		s.after = pollInterval(0)
	case end:
		if err := r.write(ctx, v, rec.closed(s.phase, s.outcome, now)); err != nil {
			return retryConflict(err)
		}
		r.ended(v, cur, s, now)
	}
	return ctrl.Result{RequeueAfter: s.after}, nil
}

// shut asks the gates for all causes of a restart.
func shut(cur restart, v view, onNode []corev1.Pod) blocked {
	for _, c := range cur.Quarantines {
		if b := gate(Quarantine{ID: c.ID, Node: c.Node, Taint: c.Taint}, v, onNode); b.reason != "" {
			return b
		}
	}
	return blocked{}
}

// onQuarantined lists the job's active pods on those of the nodes whose quarantine stands.
func (r *Restarter) onQuarantined(ctx context.Context, v view, causes []cause) ([]corev1.Pod, error) {
	var on []corev1.Pod
	for _, c := range causes {
		stands, err := r.stands(ctx, c)
		if err != nil {
			return nil, err
		}
		if !stands {
			continue
		}
		var list corev1.PodList
		if err := r.reader.List(ctx, &list, client.InNamespace(v.object.GetNamespace()), client.MatchingLabelsSelector{Selector: v.pods},
			client.MatchingFields{"spec.nodeName": c.Node}); err != nil {
			return nil, fmt.Errorf("list the pods of %s %s on node %s: %w", v.gvk.Kind, v.key(), c.Node, err)
		}
		on = append(on, slices.DeleteFunc(list.Items, func(p corev1.Pod) bool { return p.DeletionTimestamp != nil || ended(&p) })...)
	}
	return on, nil
}

// stands tells whether a quarantine still stands. A node that was deleted does not come back well.
func (r *Restarter) stands(ctx context.Context, c cause) (bool, error) {
	var node corev1.Node
	err := r.reader.Get(ctx, client.ObjectKey{Name: c.Node}, &node)
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, fmt.Errorf("get node %s: %w", c.Node, err)
	}
	return node.UID != c.NodeUID || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.MatchTaint(&c.Taint) }), nil
}
