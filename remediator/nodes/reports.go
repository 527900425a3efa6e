package nodes

import (
	"context"
	"maps"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
)

// maxNote is the longest note of an Event that the API server takes, in bytes (kubernetes
// pkg/apis/core/validation/events.go).
const maxNote = 1024

// reports remember what was reported last, so that nothing is reported again at every reconcile. Losing them costs a
// repeated Event, nothing else. There is at most one for each node and one for each rule of the policy.
type reports struct {
	mu sync.Mutex
	// blocked is what holds back the decision about a node now.
	blocked map[string]quarantine.Blocked
	// suspect are the rules that a fault of the detector holds back, however many nodes it shows on.
	suspect map[string]bool
	// upgrades are the nodes whose driver upgrade does not go on.
	upgrades map[string]bool
	// refused are the nodes, and their status as NAME/status, of which the API server refuses the write.
	refused map[string]bool
}

func newReports() *reports {
	return &reports{blocked: map[string]quarantine.Blocked{}, suspect: map[string]bool{}, upgrades: map[string]bool{}, refused: map[string]bool{}}
}

// noteBlocked notes what holds back the decision about a node, nil for nothing, and reports whether that was not reported yet: once
// for each rule and reason.
func (r *reports) noteBlocked(node string, b *quarantine.Blocked) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if b == nil {
		delete(r.blocked, node)
		return false
	}
	last, ok := r.blocked[node]
	r.blocked[node] = *b
	return !ok || last.Rule != b.Rule || last.Reason != b.Reason
}

// noteStaleUpgrade notes whether a driver upgrade does not go on, and reports whether that was not reported yet.
func (r *reports) noteStaleUpgrade(node string, stale bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	reported := r.upgrades[node]
	if stale {
		r.upgrades[node] = true
	} else {
		delete(r.upgrades, node)
	}
	return stale && !reported
}

// noteRefusal notes whether the API server refuses the write of an object, and reports whether that was not reported yet.
func (r *reports) noteRefusal(object string, refused bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	reported := r.refused[object]
	if refused {
		r.refused[object] = true
	} else {
		delete(r.refused, object)
	}
	return refused && !reported
}

// noteSuspect notes that the detector of a rule is suspect, and reports whether that was not reported yet.
func (r *reports) noteSuspect(rule string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	reported := r.suspect[rule]
	r.suspect[rule] = true
	return !reported
}

// clearSuspect notes that a rule has acted: that its detector is suspect is to be reported again.
func (r *reports) clearSuspect(rule string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.suspect, rule)
}

// keepRulesOf forgets the rules that the policy no longer has.
func (r *reports) keepRulesOf(p *policy.Policy) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.suspect, func(rule string, _ bool) bool {
		_, exists := p.Rule(rule)
		return !exists
	})
}

// blockedNodes copies what is held back now, by node.
func (r *reports) blockedNodes() map[string]quarantine.Blocked {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.blocked)
}

// publishEvents writes the Events and metrics of a decision that was written to the node.
func (c *Controller) publishEvents(ctx context.Context, n *corev1.Node, d quarantine.Decision, started time.Time) {
	for _, e := range d.Events {
		c.emitNodeEvent(ctx, n, e)
		if e.Reason == quarantine.NodeQuarantined {
			c.metrics.decision.Observe(c.clock.Now().Sub(started).Seconds())
			c.reports.clearSuspect(d.State.Record.Taint.Rule)
		}
	}
	r := d.State.Record
	if r == nil {
		return
	}
	for _, q := range append([]quarantine.Quarantine{r.Quarantine}, r.Last...) {
		if q.ReleasedAt.Equal(started) { // by this decision
			c.metrics.quarantine.Observe(q.ReleasedAt.Sub(q.QuarantinedAt).Seconds())
		}
	}
}

// knownRule is the name of a rule of the policy, or of a quarantine by hand; any other becomes empty: whoever forges records
// must not make up labels of metrics.
func knownRule(p *policy.Policy, name string) string {
	if _, ok := p.Rule(name); ok || name == policy.ByHand {
		return name
	}
	return ""
}

// reportBlocked reports a decision that was held back.
func (c *Controller) reportBlocked(ctx context.Context, n *corev1.Node, b *quarantine.Blocked) {
	if b != nil {
		known := *b
		known.Rule = knownRule(c.policy.Policy(), b.Rule)
		b = &known
	}
	if !c.reports.noteBlocked(n.Name, b) {
		return
	}
	c.metrics.blocked.WithLabelValues(b.Rule, b.Reason).Inc()
	if b.Reason != quarantine.BlockedByDetectorSuspect {
		kind, reason := corev1.EventTypeWarning, quarantine.QuarantineBlocked
		switch b.Reason {
		case quarantine.BlockedByObserve:
			reason = quarantine.WouldQuarantine
		case quarantine.BlockedByValidation: // a step of the usual way back
			kind = corev1.EventTypeNormal
		}
		c.emitNodeEvent(ctx, n, quarantine.Event{Type: kind, Reason: reason, Message: b.Message})
		return
	}
	if c.reports.noteSuspect(b.Rule) {
		c.emitClusterEvent(ctx, quarantine.Event{Type: corev1.EventTypeWarning, Reason: quarantine.DetectorSuspect,
			Message: "rule " + b.Rule + " is suspended there: node " + n.Name + ": " + b.Message})
	}
}

// reportStaleUpgrade reports that a driver upgrade on the node does not go on.
func (c *Controller) reportStaleUpgrade(ctx context.Context, n *corev1.Node, why string) {
	if c.reports.noteStaleUpgrade(n.Name, why != "") {
		c.emitNodeEvent(ctx, n, quarantine.Event{Type: corev1.EventTypeWarning, Reason: quarantine.DriverUpgradeStale, Message: why})
	}
}

// reportRefusal reports that admission, or a missing permission, refuses the write of the node. err is nil when it does not. Until that
// is mended the write is tried again.
func (c *Controller) reportRefusal(ctx context.Context, n *corev1.Node, d quarantine.Decision, err error) {
	if !c.reports.noteRefusal(n.Name, err != nil && isDenied(err)) {
		return
	}
	var events string
	for _, e := range d.Events {
		events = ", which would be " + e.Reason + ": " + e.Message
	}
	c.emitNodeEvent(ctx, n, quarantine.Event{
		Type: corev1.EventTypeWarning, Reason: quarantine.QuarantineBlocked,
		Message: "the API server refuses the change of the node: " + quarantine.Clip(err.Error(), maxNote/2) + events,
	})
}

func (c *Controller) emitNodeEvent(ctx context.Context, n *corev1.Node, e quarantine.Event) {
	c.emit(ctx, n, "Quarantine", e)
}

// emitClusterEvent writes an Event that is about no node in particular: on our namespace.
func (c *Controller) emitClusterEvent(ctx context.Context, e quarantine.Event) {
	about := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Name: c.namespace}}
	c.emit(ctx, about, "Policy", e)
}

func (c *Controller) emit(ctx context.Context, about runtime.Object, action string, e quarantine.Event) {
	message := e.Message
	if c.dryRun {
		message = "dry run: " + message
	}
	ctrl.LoggerFrom(ctx).Info(message, "reason", e.Reason)
	c.recorder.Eventf(about, nil, e.Type, e.Reason, action, "%s", quarantine.Clip(message, maxNote))
}
