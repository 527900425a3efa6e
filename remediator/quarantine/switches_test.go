package quarantine

import (
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/node"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/limits"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
	"github.com/pitcrew-dev/pitcrew/remediator/restart/ratelimit"
	"github.com/pitcrew-dev/pitcrew/remediator/switchtest"
)

const switchPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 1}
  breaker: {maxNodes: 50, window: 1m, coolDown: 100h, pace: 100h}
  restart: {maxConcurrent: 1}
  repair: {mode: auto}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}
      restartJobs: true
`

// flip puts a switch on, and returns what puts it off again.
func flip(w *world, by, text string) (off func()) {
	before := w.policy
	change := func(oldnew ...string) func() {
		w.policy = policyOf(w.t, strings.NewReplacer(oldnew...).Replace(text))
		return func() { w.policy = before }
	}
	on := func(s step) func(step) func() { s(w); return func(s step) func() { return func() { s(w) } } }
	switch by {
	case switchtest.Observe:
		return change("mode: enforce", "mode: observe")
	case switchtest.RuleObserve:
		return change("    gpu:\n", "    gpu:\n      mode: observe\n")
	case switchtest.RuleGone:
		return change("    gpu:\n", "    other:\n", "GPUXidError", "GPUMemoryError")
	case switchtest.Approve:
		return change("mode: auto", "mode: approve")
	case switchtest.Off:
		return change("mode: auto", `mode: "off"`)
	case switchtest.Pause:
		return on(pauses("a person"))(pauses(""))
	case switchtest.Breaker:
		return on(func(w *world) { w.broken = &limits.BreakerState{OpenedAt: w.now} })(func(w *world) { w.broken = nil })
	case switchtest.Limit:
		return on(others(1))(others(0))
	case switchtest.Skip:
		return on(labels(conditions.LabelSkip, "true"))(labels(conditions.LabelSkip, ""))
	case switchtest.Others:
		return on(taints(maintenance))(func(w *world) {
			w.node.Spec.Taints = slices.DeleteFunc(w.node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
		})
	}
	w.t.Fatalf("no switch %q", by)
	return nil
}

// anAction is an action that follows from the conditions of a node.
type anAction struct {
	policy string
	world  func(t *testing.T) *world
	// due has the action begin at the next decision.
	due []step
	// done reports whether it has begun.
	done func(w *world) bool
	// stands: what it did can be taken back.
	stands bool
}

// passesWritten lets time pass while the rules of each decision are written.
func passesWritten(w *world, d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(time.Minute)
		beats(w)
		stores(w)
		written(w)
		suspects(w)
	}
}

func (a anAction) effect(t *testing.T, by string) (e switchtest.Effect) {
	w := a.world(t)
	play(w, a.due...)
	off := flip(w, by, a.policy)
	passesWritten(w, 2*time.Hour)
	if e.Next = switchtest.Begins; !a.done(w) {
		e.Next = switchtest.Waits
		off()
		if passesWritten(w, time.Hour); !a.done(w) {
			t.Errorf("it does not begin once the switch is off: %+v", w.last.Blocked)
		}
	}
	if !a.stands {
		return e
	}
	w = a.world(t)
	play(w, a.due...)
	if passesWritten(w, 10*time.Minute); !a.done(w) {
		t.Fatalf("it does not begin without the switch: %+v", w.last.Blocked)
	}
	flip(w, by, a.policy)
	passesWritten(w, 2*time.Hour)
	if e.UnderWay = switchtest.GoesOn; !a.done(w) {
		e.UnderWay = switchtest.Ends
	}
	return e
}

func switchWorld(text string) func(t *testing.T) *world {
	return func(t *testing.T) *world {
		w := newDeviceWorld(t)
		w.policy = policyOf(t, text)
		return w
	}
}

func TestWhatASwitchDoesToATaint(t *testing.T) {
	switchtest.Check(t, "taint", anAction{
		switchPolicy, switchWorld(switchPolicy), []step{gpu(lost)},
		func(w *world) bool { return slices.ContainsFunc(w.node.Spec.Taints, ourTaint) }, true,
	}.effect)
}

func TestWhatASwitchDoesToACordon(t *testing.T) {
	text := strings.Replace(switchPolicy, "  rules:\n", "  handOff: {cordon: true}\n  rules:\n", 1)
	switchtest.Check(t, "cordon", anAction{
		text, switchWorld(text), []step{gpu(lost)}, func(w *world) bool { return w.node.Spec.Unschedulable }, true,
	}.effect)
}

func TestWhatASwitchDoesToAHandOff(t *testing.T) {
	text := strings.Replace(switchPolicy, "  rules:\n", "  handOff: {labels: {example.com/broken: \"yes\"}}\n  rules:\n", 1)
	switchtest.Check(t, "hand-off", anAction{
		text, switchWorld(text), []step{gpu(lost)}, func(w *world) bool { return w.node.Labels["example.com/broken"] == "yes" }, true,
	}.effect)
}

func TestWhatASwitchDoesToTheConditionForSoperator(t *testing.T) {
	text := strings.Replace(switchPolicy, "  rules:\n", "  output: {soperator: true}\n  rules:\n", 1)
	switchtest.Check(t, "condition for soperator", anAction{
		text, switchWorld(text), []step{gpu(lost)}, func(w *world) bool {
			c, _ := node.ConditionOf(w.node, policy.SoperatorCondition)
			return c.Status == corev1.ConditionTrue
		}, true,
	}.effect)
}

func ourTaint(t corev1.Taint) bool { return t.Key == conditions.TaintUnhealthy }

func TestWhatASwitchDoesToADeviceRule(t *testing.T) {
	text := strings.Replace(switchPolicy, "    gpu:\n", "    gpu:\n      isolate: device\n", 1)
	switchtest.Check(t, "device rule", anAction{
		text, switchWorld(text), []step{gpu(ecc)},
		func(w *world) bool { return strings.Contains(w.rulesOf(), ":NoSchedule") }, true,
	}.effect)
}

func TestWhatASwitchDoesToARelease(t *testing.T) {
	switchtest.Check(t, "release", anAction{
		switchPolicy, switchWorld(switchPolicy), []step{gpu(ecc), decide, gpuFine},
		func(w *world) bool { return !slices.ContainsFunc(w.node.Spec.Taints, ourTaint) }, false,
	}.effect)
}

// A restart begins with a decision, as far as the limits of restarts allow it. One that has stopped its job does not come back here.
func TestWhatASwitchDoesToARestart(t *testing.T) {
	restarts := anAction{
		switchPolicy, switchWorld(switchPolicy), []step{gpu(lost), decide}, func(w *world) bool { return w.last.RestartJobs }, false,
	}
	begun := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	underWay := restart.Record{Current: &restart.Restart{Phase: restart.Stopping, PhaseSince: begun}}
	stopped := restart.Job{Object: &batchv1.Job{}, SuspendField: restart.SuspendField{Path: "spec.suspend"}, Suspended: true, SuspendObserved: true}
	goesOn := switchtest.Ends
	if step := restart.Next(underWay, stopped, restart.Facts{Held: true}, restart.PhaseTimeouts{}, begun); step.Action == restart.Start {
		goesOn = switchtest.GoesOn
	}
	switchtest.Check(t, "restart", func(t *testing.T, by string) switchtest.Effect {
		if by != switchtest.Limit {
			return switchtest.Effect{Next: restarts.effect(t, by).Next, UnderWay: goesOn}
		}
		w := switchWorld(switchPolicy)(t)
		play(w, restarts.due...)
		trigger := w.record().JobRestart(w.node, policy.Rule{}, nil)
		others := []ratelimit.Other{{NodeFault: true}}
		list := ratelimit.Evaluate(trigger, "ml", restart.Record{}, others, w.policy.Restart, w.now.Add(time.Hour))
		if _, waits := restart.FirstFailed(list); waits {
			return switchtest.Effect{Next: switchtest.Waits, UnderWay: goesOn}
		}
		return switchtest.Effect{Next: switchtest.Begins, UnderWay: goesOn}
	})
}
