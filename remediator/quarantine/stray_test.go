package quarantine

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
)

var (
	oldTaint  = corev1.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule}
	slowTaint = corev1.Taint{Key: "pitcrew.dev/slow", Value: "network", Effect: corev1.TaintEffectPreferNoSchedule}
)

// slowRule has a rule of the policy set another taint of our domain.
func slowRule(w *world) {
	for i := range w.policy.Rules {
		if w.policy.Rules[i].Name == "slow-node" {
			w.policy.Rules[i].Taint = slowTaint
		}
	}
}

// C2: a writer with an old copy of the taint list brings our taint back after the release.
func TestATaintThatNoRecordExplainsIsRemoved(t *testing.T) {
	gone := []step{gpu(ecc), decide, gpuFine, decide, lasts(10 * time.Minute)}
	after := func(more ...step) []step { return append(append([]step{}, gone...), more...) }
	removed := "NodeQuarantined NodeReleased NodeReleased"
	const unhealthy = "pitcrew.dev/unhealthy=GPUXidError:NoSchedule"
	checkOutcomes(t, map[string]outcomeTest{
		"after the release": {after(taints(oldTaint), decide), released.but(func(o *outcome) { o.Said = removed })},
		"with another value or effect": {after(taints(corev1.Taint{Key: conditions.TaintUnhealthy, Value: "x", Effect: corev1.TaintEffectNoExecute}), decide),
			released.but(func(o *outcome) { o.Said = removed })},
		"after a manual release": {[]step{gpu(ecc), decide, pardoned, taints(oldTaint), decide},
			outcome{Phase: causes.Released, By: causes.ByPerson, Status: "suspect", Repair: "ResetGPU", Said: "NodeQuarantined NodeReleased"}},
		"without a record":      {[]step{gpuFine, taints(oldTaint), decide}, untouched.but(func(o *outcome) { o.Said = "NodeReleased" })},
		"without any condition": {[]step{taints(oldTaint), decide}, untouched.but(func(o *outcome) { o.Said = "NodeReleased" })},
		"of a suspect": {[]step{says("DiskFailing", "True", "x"), decide, taints(oldTaint), decide},
			outcome{Phase: causes.Suspect, Status: "suspect", Repair: "Replace", Said: "NodeReleased"}},
		"beside the taint of the quarantine": {[]step{slow, decide, gpu(lost), decide, taints(corev1.Taint{Key: conditions.TaintUnhealthy, Value: "SlowNode", Effect: corev1.TaintEffectPreferNoSchedule}), decide},
			quarantined.but(func(o *outcome) { o.Said = "NodeQuarantined QuarantineUpgraded NodeReleased" })},
		"another taint of our domain that a rule sets": {[]step{slowRule, taints(slowTaint), decide}, untouched.but(func(o *outcome) { o.Said = "NodeReleased" })},
		"one that no rule sets stays":                  {[]step{taints(slowTaint), decide}, untouched.but(func(o *outcome) { o.Taints = slowTaint.ToString() })},
		"one with another effect stays": {[]step{slowRule, taints(corev1.Taint{Key: slowTaint.Key, Effect: corev1.TaintEffectNoSchedule}), decide},
			untouched.but(func(o *outcome) { o.Taints = "pitcrew.dev/slow:NoSchedule" })},
		"the taint of a rule outside our domain stays": {[]step{taints(theirs), decide}, untouched.but(func(o *outcome) { o.Taints = theirs.ToString() })},
		"that of a maintenance stays":                  {[]step{taints(maintenance), decide}, untouched.but(func(o *outcome) { o.Taints = maintenance.ToString() })},
		"that of an unchecked node stays, whatever a rule sets": {[]step{func(w *world) {
			for i := range w.policy.Rules {
				w.policy.Rules[i].Taint = corev1.Taint{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}
			}
		}, taints(corev1.Taint{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}), decide},
			untouched.but(func(o *outcome) { o.Taints = "pitcrew.dev/unchecked:NoSchedule" })},
		"that of a manual quarantine stays": {[]step{gpuFine, ordered, decide},
			outcome{Phase: causes.Quarantined, Taints: "pitcrew.dev/unhealthy=ByHand:NoSchedule", Status: "quarantined", Repair: "Inspect"}},
		"during a pause it stays, and it is said": {after(pauses("x"), taints(oldTaint), decide),
			released.but(func(o *outcome) { o.Taints, o.Said = unhealthy, "NodeQuarantined NodeReleased blocked:paused" })},
		"after the pause it goes": {after(pauses("x"), taints(oldTaint), decide, pauses(""), decide),
			released.but(func(o *outcome) { o.Said = "NodeQuarantined NodeReleased blocked:paused NodeReleased" })},
		"on a skipped node it stays": {after(taints(oldTaint), labels(conditions.LabelSkip, "true"), decide),
			released.but(func(o *outcome) { o.Taints = unhealthy })},
		"beside a record that does not parse it stays": {after(taints(oldTaint), func(w *world) {
			w.node.Annotations[conditions.AnnotationQuarantine] = "{"
		}, decide), outcome{Taints: unhealthy, Status: "healthy", Said: "NodeQuarantined NodeReleased blocked:record-unreadable"}},
	})

	w := newWorld(t)
	for _, s := range after(taints(theirs), taints(oldTaint), decide) {
		s(w)
	}
	const want = "taint pitcrew.dev/unhealthy=GPUXidError:NoSchedule was on the node without a quarantine and was removed; " +
		"a writer with an old copy of the taints may have brought it back"
	if e := w.last.Events; len(e) != 1 || e[0] != (causes.Event{Type: corev1.EventTypeNormal, Reason: causes.NodeReleased, Message: want}) {
		t.Errorf("events %+v", e)
	}
	if got := w.node.Spec.Taints; len(got) != 1 || got[0] != theirs {
		t.Errorf("taints %v", got)
	}
}

// What is written, and not shown by the cache yet, hides the taint as well.
func TestAnOverlayShowsNoTaintThatNoRecordExplains(t *testing.T) {
	w := newWorld(t)
	for _, s := range []step{taints(theirs), taints(maintenance), taints(oldTaint), taints(slowTaint)} {
		s(w)
	}
	Overlay(w.node, nil)
	var got []string
	for _, taint := range w.node.Spec.Taints {
		got = append(got, taint.ToString())
	}
	if strings.Join(got, " ") != "example.com/fan=theirs:NoSchedule pitcrew.dev/maintenance=sweep:NoSchedule" {
		t.Errorf("taints %v", got)
	}
}
