package repair

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// sickByShippedPolicy has the policy that ships with its section repair, that repairs by itself and validates after an Xid.
func sickByShippedPolicy(t *testing.T, message string) (*world, *machine) {
	t.Helper()
	text, err := os.ReadFile("../../manifests/policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	shipped := string(text)
	section := regexp.MustCompile(`(?s)  # repair:\n.*?\n  # sweeps:`).FindString(shipped)
	enabled := regexp.MustCompile(`(?m)^  # `).ReplaceAllString(section, "  ")
	changed := strings.NewReplacer(section, enabled, "mode: observe", "mode: enforce").Replace(shipped)
	changed = strings.Replace(changed, "mode: approve", "mode: auto", 1)
	changed = strings.Replace(changed, "    gpu-xid:\n", "    gpu-xid:\n      validate: true\n", 1)
	p, err := policy.Parse([]byte(strings.Replace(changed, "\n  sweeps:", "\n  # sweeps:", 1)))
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, p, "a")
	m := w.nodes["a"]
	w.step(time.Minute)
	w.fault(m, "GPUXidError", message)
	return w, m
}

// NVSentinel left a node cordoned for good whose validation was blocked (its issue 1854).
func TestAValidationThatWasBlockedGoesOn(t *testing.T) {
	for name, test := range map[string]struct{ set, unset func(w *world) }{
		"pause":   {func(w *world) { w.paused = "audit" }, func(w *world) { w.paused = "" }},
		"breaker": {func(w *world) { w.breaker = true }, func(w *world) { w.breaker = false }},
		"no room": {func(w *world) { w.policy.Repair.MaxConcurrent = 0 }, func(w *world) { w.policy.Repair.MaxConcurrent = 1 }},
	} {
		t.Run(name, func(t *testing.T) {
			w, m := sickByShippedPolicy(t, ecc)
			m.run = w.cures(m)
			w.untilClosed(m, visit.Repair, visit.Passed)
			test.set(w)
			w.never("a validation", 26*time.Hour, func() bool { return m.last().Kind == visit.Validation || m.phase() == visit.Working })
			if !m.isQuarantined() {
				t.Error("the node returned without its validation")
			}
			test.unset(w)
			w.untilClosed(m, visit.Validation, visit.Passed)
			w.until("the node is released", time.Hour, func() bool { return !m.isQuarantined() })
		})
	}
}

func TestANodeThatNeverReturnsFromARebootIsLeftToAPerson(t *testing.T) {
	w, m := sickByShippedPolicy(t, lost)
	w.program(m, nil)
	w.untilPhase(m, visit.Working)
	m.silent = true
	w.set(m, "Ready", "Unknown", "")
	w.untilClosed(m, visit.Repair, visit.Failed)
	if !w.happened("RepairFailed", "only its provider or a person can help") {
		t.Errorf("events %q", w.events)
	}
	w.never("another visit", 48*time.Hour, func() bool { return m.record().Current != nil })
	if !m.isQuarantined() {
		t.Error("a node that is away is back in service")
	}
}
