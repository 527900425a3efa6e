package node

import (
	"context"
	"fmt"
	"maps"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

// act makes the decision come true on the node: at most one write, and Events only once it stands. Acting twice equals
// acting once.
func (c *Controller) act(ctx context.Context, n *corev1.Node, d Decision, started time.Time) error {
	c.say(ctx, n, d.Blocked)
	if !d.changes(n) {
		return nil
	}
	after := n.DeepCopy()
	d.State.apply(after)
	if err := c.write(ctx, n, after); err != nil {
		return err
	}
	c.tell(ctx, after, d, started)
	return nil
}

// restartJobs makes the decision come true on the jobs of the node. Doing it again and again is meant: a pod that a
// scheduler bound before it saw the taint is only seen later. Unless again is zero, some job waits for that time.
func (c *Controller) restartJobs(ctx context.Context, n *corev1.Node, d Decision) (again time.Duration, err error) {
	if !d.RestartJobs || c.dryRun {
		return 0, nil
	}
	q := quarantineOf(n, d.State.Record)
	rule, _ := c.policy.Policy().Rule(d.State.Record.Taint.Rule)
	q.CheckpointGrace = rule.CheckpointGrace
	if again, err = c.jobs.RestartJobsOnNode(ctx, q); err != nil {
		return again, fmt.Errorf("restart the jobs of node %s: %w", n.Name, err)
	}
	return again, nil
}

// apply puts the state on a node object.
func (s *State) apply(n *corev1.Node) {
	status, repair := s.Record.Labels()
	n.Labels, n.Annotations = maps.Clone(s.Marks.Labels), maps.Clone(s.Marks.Annotations)
	n.Labels = with(n.Labels, conditions.LabelStatus, status)
	n.Labels = with(n.Labels, conditions.LabelRepair, repair)
	record := ""
	if s.Record != nil {
		record = s.Record.String()
	}
	n.Annotations = with(n.Annotations, conditions.AnnotationQuarantine, record)
	n.Spec.Taints = s.Marks.Taints
}

// with sets a key, or removes it when the value is empty.
func with(m map[string]string, key, value string) map[string]string {
	if value == "" {
		delete(m, key)
		return m
	}
	return set(m, key, value)
}

func set(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// lockedPatch is a merge patch. It replaces the taint list as a whole, so it is only good for the version of the node it
// was computed from.
func lockedPatch(before *corev1.Node) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// write patches the node; in a dry run it is enough that the decision is remembered.
func (c *Controller) write(ctx context.Context, before, after *corev1.Node) error {
	if c.dryRun {
		return nil
	}
	if err := c.client.Patch(ctx, after, lockedPatch(before), client.FieldOwner(Name)); err != nil {
		c.memory.unwritten(before.Name)
		return fmt.Errorf("patch node %s: %w", before.Name, err)
	}
	return nil
}

// changes tells whether the node is to be written.
func (d Decision) changes(n *corev1.Node) bool {
	if d.State == nil {
		return false
	}
	after := n.DeepCopy()
	d.State.apply(after)
	return !equality.Semantic.DeepEqual(n, after)
}

// tell writes the Events and metrics of a decision that stands.
func (c *Controller) tell(ctx context.Context, n *corev1.Node, d Decision, started time.Time) {
	for _, e := range d.Events {
		c.event(ctx, n, e)
		switch e.Reason {
		case NodeQuarantined:
			c.metrics.decision.Observe(c.now().Sub(started).Seconds())
			c.memory.news(frozen(d.State.Record.Taint.Rule), nil) // the next suspicion is news again
		case NodeReleased, ReleaseByHand:
			c.metrics.quarantine.Observe(d.State.Record.ReleasedAt.Sub(d.State.Record.QuarantinedAt).Seconds())
		}
	}
}

func (c *Controller) event(ctx context.Context, n *corev1.Node, e Event) {
	c.publish(ctx, n, "Quarantine", e)
}

// announce writes an Event that is about no node in particular: on our namespace.
func (c *Controller) announce(ctx context.Context, e Event) {
	about := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
	c.publish(ctx, about, "Policy", e)
}

// maxNote is the longest note of an Event that the API server takes (kubernetes pkg/apis/core/validation/events.go).
const maxNote = 1024

func (c *Controller) publish(ctx context.Context, about runtime.Object, action string, e Event) {
	message := e.Message
	if c.dryRun {
		message = "dry run: " + message
	}
	ctrl.LoggerFrom(ctx).Info(message, "reason", e.Reason)
	c.events.Eventf(about, nil, e.Type, e.Reason, action, "%s", clipTo(message, maxNote))
}

// frozen is where the memory keeps what was said of a rule; no node is called so.
func frozen(rule string) string { return "/" + rule }

// say reports a decision that was held back, once for each rule and reason and not at every look.
func (c *Controller) say(ctx context.Context, n *corev1.Node, b *Blocked) {
	if !c.memory.news(n.Name, b) {
		return
	}
	c.metrics.blocked.WithLabelValues(b.Rule, b.Reason).Inc()
	if b.Reason == BlockedBySuspicion {
		// A fault of the detector is one fault, however many nodes it shows on.
		if c.memory.news(frozen(b.Rule), b) {
			c.announce(ctx, Event{corev1.EventTypeWarning, DetectorSuspect, "rule " + b.Rule + " is frozen there: node " + n.Name + ": " + b.Message})
		}
		return
	}
	c.event(ctx, n, Event{corev1.EventTypeWarning, QuarantineBlocked, b.Message})
}

// quarantineOf is what the jobs half needs to know of a quarantine that stands.
func quarantineOf(n *corev1.Node, r *Record) restart.Quarantine {
	cause := r.decisive()
	return restart.Quarantine{
		ID:      r.ID,
		Node:    n.Name,
		NodeUID: n.UID,
		Reason:  fmt.Sprintf("%s: %s", cause.Condition, cause.Message),
		Taint:   r.Taint.On(),
		Since:   r.Taint.Since,
	}
}
