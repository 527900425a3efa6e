// Package report writes the Events and counts the decisions of the controller of Nodes, each once.
package report

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	ctrl "sigs.k8s.io/controller-runtime"

	"github.com/pitcrew-dev/pitcrew/remediator/nodes/memory"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/record"
)

// MaxNote is the longest note of an Event that the API server takes, in bytes (kubernetes pkg/apis/core/validation/events.go).
const MaxNote = 1024

// Blocked is what holds back the decision about a node.
type Blocked struct{ Rule, Reason string }

// Reporter reports decisions. It remembers at most one thing of each kind of a node, and one of each rule of the policy.
type Reporter struct {
	Recorder events.EventRecorder
	// Namespace is ours: Events about no node in particular are about it.
	Namespace string
	DryRun    bool
	Clock     clock.PassiveClock
	Metrics   Metrics

	blocked record.Once[string, Blocked]
	// suspect are the rules that a fault of the detector holds back, however many nodes it shows on.
	suspect record.Once[string, bool]
	// upgrades are the nodes whose driver upgrade does not go on, refused those of which the API server refuses the write.
	upgrades, refused record.Once[string, bool]
}

// Forget forgets a node that is gone.
func (r *Reporter) Forget(node string) {
	r.blocked.Forget(node)
	r.upgrades.Forget(node)
	r.refused.Forget(node)
}

// KeepRules forgets the rules that the policy no longer has.
func (r *Reporter) KeepRules(p *policy.Policy) {
	r.suspect.ForgetIf(func(rule string) bool {
		_, exists := p.Rule(rule)
		return !exists
	})
}

// BlockedNodes returns what is held back now, by node.
func (r *Reporter) BlockedNodes() map[string]Blocked { return r.blocked.All() }

// Written writes the Events and metrics of a decision that was written to the node.
func (r *Reporter) Written(ctx context.Context, n *corev1.Node, d quarantine.Decision, started time.Time) {
	for _, e := range d.Events {
		r.Node(ctx, n, e)
		if e.Reason == causes.NodeQuarantined {
			r.Metrics.Decision.Observe(r.Clock.Now().Sub(started).Seconds())
			r.suspect.Forget(d.State.Record.Taint.Rule) // it is to be reported again
		}
	}
	if d.State.Record == nil {
		return
	}
	for _, q := range append([]causes.Quarantine{d.State.Record.Quarantine}, d.State.Record.Last...) {
		if q.ReleasedAt.Equal(started) { // by this decision
			r.Metrics.Quarantine.Observe(q.ReleasedAt.Sub(q.QuarantinedAt).Seconds())
		}
	}
}

// Blocked reports a decision that was held back, once for each rule and reason; nil: none was.
func (r *Reporter) Blocked(ctx context.Context, p *policy.Policy, n *corev1.Node, b *causes.Blocked) {
	var held Blocked
	if b != nil {
		held = Blocked{memory.KnownRule(p, b.Rule), b.Reason}
	}
	if !r.blocked.Note(n.Name, held) {
		return
	}
	r.Metrics.Blocked.WithLabelValues(held.Rule, held.Reason).Inc()
	if b.Reason != causes.BlockedByDetectorSuspect {
		kind, reason := corev1.EventTypeWarning, causes.QuarantineBlocked
		switch b.Reason {
		case causes.BlockedByObserve:
			reason = causes.WouldQuarantine
		case causes.BlockedByValidation: // a step of the usual way back
			kind = corev1.EventTypeNormal
		}
		r.Node(ctx, n, causes.Event{Type: kind, Reason: reason, Message: b.Message})
		return
	}
	if r.suspect.Note(held.Rule, true) {
		r.Warn(ctx, causes.DetectorSuspect, "rule "+held.Rule+" is suspended there: node "+n.Name+": "+b.Message)
	}
}

// StaleUpgrade reports that a driver upgrade on the node does not go on; empty: none, or it does.
func (r *Reporter) StaleUpgrade(ctx context.Context, n *corev1.Node, why string) {
	if r.upgrades.Note(n.Name, why != "") {
		r.Node(ctx, n, causes.Event{Type: corev1.EventTypeWarning, Reason: causes.DriverUpgradeStale, Message: why})
	}
}

// Refused reports that admission, or a missing permission, refuses the write of the node; nil: it does not. Until that is fixed the write
// is tried again.
func (r *Reporter) Refused(ctx context.Context, n *corev1.Node, d quarantine.Decision, err error) {
	if !r.refused.Note(n.Name, err != nil) {
		return
	}
	var events string
	for _, e := range d.Events {
		events = ", which would be " + e.Reason + ": " + e.Message
	}
	r.Node(ctx, n, causes.Event{
		Type: corev1.EventTypeWarning, Reason: causes.QuarantineBlocked,
		Message: "the API server refuses the change of the node: " + causes.Clip(err.Error(), MaxNote/2) + events,
	})
}

// Breaker reports that a decision has opened or closed the breaker.
func (r *Reporter) Breaker(ctx context.Context, d quarantine.Decision) {
	switch {
	case d.SetBreaker == nil:
	case d.SetBreaker.OrClosed() == nil:
		r.cluster(ctx, corev1.EventTypeNormal, causes.BreakerClosed, "the breaker has cooled down and no node waits for it")
	default:
		message := "no node is quarantined until it closes; releases go on"
		if d.Blocked != nil {
			message = d.Blocked.Message + "; " + message
		}
		r.Warn(ctx, causes.BreakerOpen, message)
	}
}

// ShowPolicy shows whether the policy file is valid.
func (r *Reporter) ShowPolicy(valid bool) { r.Metrics.PolicyValid.Set(number(valid)) }

// ShowBreaker shows the state of the breaker.
func (r *Reporter) ShowBreaker(s *limits.BreakerState) { r.Metrics.Breaker.Set(number(s != nil)) }

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

// Node writes an Event on a node.
func (r *Reporter) Node(ctx context.Context, n *corev1.Node, e causes.Event) {
	r.emit(ctx, n, "Quarantine", e)
}

// Warn writes a warning that is about no node in particular.
func (r *Reporter) Warn(ctx context.Context, reason, message string) {
	r.cluster(ctx, corev1.EventTypeWarning, reason, message)
}

func (r *Reporter) cluster(ctx context.Context, kind, reason, message string) {
	about := &corev1.Namespace{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: r.Namespace}}
	r.emit(ctx, about, "Policy", causes.Event{Type: kind, Reason: reason, Message: message})
}

func (r *Reporter) emit(ctx context.Context, about runtime.Object, action string, e causes.Event) {
	message := e.Message
	if r.DryRun {
		message = "dry run: " + message
	}
	ctrl.LoggerFrom(ctx).Info(message, "reason", e.Reason)
	r.Recorder.Eventf(about, nil, e.Type, e.Reason, action, "%s", causes.Clip(message, MaxNote))
}
