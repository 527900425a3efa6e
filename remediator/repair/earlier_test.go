package repair

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// anew deletes the Node and creates it again, as a person or an autoscaler does, and has it fail again.
func (w *world) anew(m *machine, times int) {
	m.UID, m.Annotations, m.Labels, m.Spec.Taints = types.UID(fmt.Sprintf("uid-%s-%d", m.Name, times)), nil, nil, nil
	w.step(10 * time.Minute)
	w.fault(m, "GPUXidError", lost)
	w.step(10 * time.Minute)
}

// reboots repairs a node again and again, and deletes the Node after each repair.
func (w *world) reboots(m *machine, rounds int) (boots int) {
	m.run = w.cures(m)
	before := m.boots
	for i := range rounds {
		for end := w.now.Add(2 * time.Hour); w.now.Before(end) && (m.record().Current == nil || m.record().Current.Phase != visit.Proving); {
			w.step(30 * time.Second)
		}
		w.anew(m, i)
	}
	return m.boots - before
}

func TestLimitsCountTheRepairsOfADeletedNode(t *testing.T) {
	t.Run("maxPerDay", func(t *testing.T) {
		w, m := sick(t, lost, "maxPerDay: 10", "maxPerDay: 2")
		if boots := w.reboots(m, 6); boots != 2 {
			t.Errorf("%d reboots", boots)
		}
		if waits := m.waiting; waits == nil || !strings.Contains(waits.Message, "2 repairs have begun within 24 hours") {
			t.Errorf("it waits for %+v", waits)
		}
		w.until("a repair on the next day", 24*time.Hour, func() bool { return m.boots > 2 })
	})
	t.Run("maxPerDay on a machine of the same name", func(t *testing.T) {
		w, m := sick(t, lost, "maxPerDay: 10", "maxPerDay: 1")
		m.Status.NodeInfo.SystemUUID = "one"
		w.reboots(m, 1)
		m.Status.NodeInfo.SystemUUID = "two"
		if boots := w.reboots(m, 2); boots != 0 {
			t.Errorf("%d more reboots", boots)
		}
	})
	t.Run("lemon", func(t *testing.T) {
		w, m := sick(t, lost, "lemon: {repairs: 4, window: 720h}", "lemon: {repairs: 2, window: 720h}")
		m.Status.NodeInfo.SystemUUID = "one"
		if boots := w.reboots(m, 6); boots != 2 {
			t.Errorf("%d reboots", boots)
		}
		if a := m.record().Advice; a == nil || a.Do != visit.AdviseReplace {
			t.Errorf("advice %+v", a)
		}
	})
	t.Run("a machine of the same name is no lemon", func(t *testing.T) {
		w, m := sick(t, lost, "lemon: {repairs: 4, window: 720h}", "lemon: {repairs: 2, window: 720h}")
		m.Status.NodeInfo.SystemUUID = "one"
		w.reboots(m, 2)
		m.Status.NodeInfo.SystemUUID = "two"
		if boots := w.reboots(m, 1); boots != 1 {
			t.Errorf("%d more reboots", boots)
		}
	})
	t.Run("the share of a name", func(t *testing.T) {
		w, m := sick(t, lost, "maxPerDay: 10", "maxPerDay: 16")
		boots := 0
		for i := range 6 { // it claims to be another machine each time, so that it is no lemon
			m.Status.NodeInfo.SystemUUID = fmt.Sprint(i)
			boots += w.reboots(m, 1)
		}
		if waits := m.waiting; boots != 4 || waits == nil || !strings.Contains(waits.Message, "which is the share of one name in repair.maxPerDay (16)") {
			t.Errorf("%d reboots, it waits for %+v", boots, waits)
		}
	})
	t.Run("another scope", func(t *testing.T) {
		w, m := sick(t, lost, "maxPerDay: 10", "maxPerDay: 1\n    scope: rack")
		m.Labels = map[string]string{"rack": "r1"}
		w.reboots(m, 1)
		m.Labels = map[string]string{"rack": "r2"}
		w.until("a repair in another rack", 4*time.Hour, func() bool { return m.boots == 2 })
	})
}
