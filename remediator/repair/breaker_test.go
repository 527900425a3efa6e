package repair

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/breaker"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// sickFleet is a fleet whose nodes all get the same fault. It counts the Jobs that are created, by template.
func sickFleet(t *testing.T, message string, change ...string) (*world, map[string]int) {
	t.Helper()
	var names []string
	for i := range 10 {
		names = append(names, fmt.Sprintf("n%d", i))
	}
	w := newWorld(t, parse(t, change...), names...)
	w.tries = &breaker.State{}
	count := map[string]int{}
	w.onCreate = func(_ *machine, job *batchv1.Job) { count[job.Labels[conditions.LabelTemplate]]++ }
	w.step(time.Minute)
	for _, m := range w.nodes {
		w.fault(m, "GPUXidError", message)
	}
	w.step(time.Minute)
	return w, count
}

// Repairs that help nobody stop, also where a person approves each, and several nodes are repaired at a time.
func TestAnActionThatFailsOnThreeNodesIsHeld(t *testing.T) {
	for name, test := range map[string]struct {
		message string
		change  []string
		want    map[string]int
	}{
		"of each action": {ecc, []string{"maxPerDay: 10", "maxPerDay: 100"}, map[string]int{"reset-gpu": 3, "reboot": 3}},
		"approved":       {lost, []string{"mode: auto", "mode: approve", "maxPerDay: 10", "maxPerDay: 100"}, map[string]int{"reboot": 3}},
		"another bound":  {lost, []string{"maxPerDay: 10", "maxPerDay: 100\n    maxFailures: 5"}, map[string]int{"reboot": 5}},
		"without bound":  {lost, []string{"maxPerDay: 10", "maxPerDay: 100\n    maxFailures: 0"}, map[string]int{"reboot": 10}},
	} {
		t.Run(name, func(t *testing.T) {
			w, got := sickFleet(t, test.message, test.change...)
			for _, m := range w.nodes {
				m.run = w.exits(m, 1, `{"result":"failed","message":"no"}`)
				if name == "approved" {
					w.ask(m, visit.RequestRepair)
				}
			}
			for range 6 * 60 {
				w.step(10 * time.Second)
			}
			if !maps.Equal(got, test.want) {
				t.Errorf("%v, want %v", got, test.want)
			}
			if name == "without bound" {
				return
			}
			held := 0
			for _, m := range w.nodes {
				if m.waiting != nil && m.waiting.Reason == "breaker" && strings.Contains(m.waiting.Message, "`kubectl pitcrew reset` goes on") {
					held++
				}
				if v := m.record().Current; v != nil {
					t.Errorf("%s keeps its place: %+v", m.Name, v)
				}
			}
			if bound := w.policy.Repair.MaxFailures; held != len(w.nodes)-bound {
				t.Errorf("%d nodes wait", held)
			}
			// A person has reset it, and the first node on which it helps closes it.
			w.tries = &breaker.State{}
			for _, m := range w.nodes {
				m.run = w.cures(m)
			}
			w.until("the others are repaired", 24*time.Hour, func() bool {
				return !slices.ContainsFunc(slices.Collect(maps.Values(w.nodes)), func(m *machine) bool {
					return m.phase() != "" || m.waiting != nil && m.waiting.Reason == "breaker"
				})
			})
		})
	}
}

// A reboot that no node survives is held although the provider deletes the nodes before they are overdue.
func TestARebootThatNoNodeSurvivesIsHeld(t *testing.T) {
	w, _ := sickFleet(t, lost, "maxPerDay: 10", "maxPerDay: 100")
	var lost []string
	for name, m := range w.nodes {
		m.run = func(*batchv1.Job) { lost = append(lost, name) }
	}
	for range 6 * 60 {
		w.step(10 * time.Second)
		for _, name := range lost {
			delete(w.nodes, name)
		}
	}
	if left := len(w.nodes); left != 7 {
		t.Errorf("%d nodes are left", left)
	}
}

// An action that helps now and then is not held.
func TestAnActionThatHelpsIsNotHeld(t *testing.T) {
	w, count := sickFleet(t, lost, "maxPerDay: 10", "maxPerDay: 100")
	for i, name := range slices.Sorted(maps.Keys(w.nodes)) {
		m := w.nodes[name]
		if m.run = w.cures(m); i%3 != 2 {
			m.run = w.exits(m, 1, `{"result":"failed","message":"no"}`)
		}
	}
	w.until("all are done", 24*time.Hour, func() bool { return count["reboot"] == 10 })
}
