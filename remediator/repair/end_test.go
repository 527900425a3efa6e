package repair

import (
	"slices"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/peers"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// jobPod is a pod of a Job. It has some seconds to end in order.
func jobPod(grace int64) corev1.Pod {
	return corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "reset-gpu-x"},
		Spec:       corev1.PodSpec{TerminationGracePeriodSeconds: &grace},
		Status:     corev1.PodStatus{Phase: corev1.PodRunning},
	}
}

func (m *machine) isMaintained() bool {
	return slices.ContainsFunc(m.Spec.Taints, func(t corev1.Taint) bool { return t.Key == conditions.TaintMaintenance })
}

// releasedMidway is a node that a person has released while a Job with a pod works on it.
func releasedMidway(t *testing.T, message string) (*world, *machine) {
	t.Helper()
	w, m := sick(t, message)
	m.run = func(*batchv1.Job) {}
	w.until("the Job runs", time.Hour, func() bool { return m.record().Current != nil && m.record().Current.JobUID != "" })
	m.pods = []corev1.Pod{jobPod(150)}
	n, err := quarantine.ReleaseManually(m.Node, quarantine.Manual{}, nil, w.now)
	if err != nil {
		t.Fatal(err)
	}
	m.Node = n
	w.step(time.Second)
	if len(m.jobs) > 0 || m.isQuarantined() {
		t.Fatalf("%d Jobs, quarantined %t", len(m.jobs), m.isQuarantined())
	}
	return w, m
}

// A reset that a person interrupts must not meet the next job of a tenant.
func TestTheTaintStaysUntilThePodOfTheJobHasEnded(t *testing.T) {
	for name, ends := range map[string]func(*machine){
		"it has ended": func(m *machine) { m.pods[0].Status.Phase = corev1.PodFailed },
		"it is gone":   func(m *machine) { m.pods = nil },
	} {
		t.Run(name, func(t *testing.T) {
			w, m := releasedMidway(t, ecc)
			for range 140 {
				w.step(time.Second)
				if !m.isMaintained() || m.phase() != visit.Ending || !peers.Of(w.policy, m.Node, w.now).Active {
					t.Fatalf("taints %v, record %s", m.Spec.Taints, m.record())
				}
			}
			ends(m)
			w.step(time.Second)
			if v := m.last(); m.isMaintained() || v.Phase != visit.Failed || v.Outcome != "stopped: the quarantine was ended by a person" || !v.EndedAt.Equal(w.now) || v.Then != "" {
				t.Errorf("taints %v, record %s", m.Spec.Taints, m.record())
			}
		})
	}
	t.Run("it never ends", func(t *testing.T) {
		w, m := releasedMidway(t, ecc)
		w.step(179 * time.Second)
		if !m.isMaintained() {
			t.Error("the taint has gone before the grace period and 30 s")
		}
		w.step(time.Second)
		if m.isMaintained() {
			t.Error("the taint stays")
		}
	})
	t.Run("it is created after the Job was deleted", func(t *testing.T) {
		w, m := releasedMidway(t, ecc)
		m.pods = nil
		w.visit(m)
		if !m.isMaintained() {
			t.Error("the taint goes before the first look")
		}
	})
	t.Run("its Job is still there", func(t *testing.T) {
		w, m := releasedMidway(t, ecc)
		m.pods = nil
		if m.record().JobName(m.Node) == "" {
			t.Error("the Job is not looked for")
		}
		f := w.facts(m)
		f.Job = &batchv1.Job{}
		if s := Next(w.policy, f, w.now.Add(time.Second)); !s.NeedsLive {
			t.Errorf("step %+v", s)
		}
		f.Live = &Live{}
		if s := Next(w.policy, f, w.now.Add(time.Second)); s.Record.Current == nil {
			t.Errorf("record %s", s.Record)
		}
	})
	t.Run("a person removes the taint", func(t *testing.T) {
		w, m := releasedMidway(t, ecc)
		m.Spec.Taints = nil
		w.step(time.Second)
		if m.isMaintained() || m.phase() != visit.Ending {
			t.Errorf("taints %v, record %s", m.Spec.Taints, m.record())
		}
	})
}

func TestARebootThatWasOrderedEndsWithTheBoot(t *testing.T) {
	w, m := releasedMidway(t, lost)
	m.pods = nil
	deadline := m.record().Current.Deadline
	if deadline.IsZero() {
		t.Fatal("no deadline")
	}
	for w.now.Add(time.Minute).Before(deadline) {
		w.step(time.Minute)
		if !m.isMaintained() {
			t.Fatal("the taint goes before the reboot")
		}
	}
	w2, m2 := releasedMidway(t, lost)
	w2.reboot(m2)
	w2.step(time.Millisecond)
	w.step(time.Minute)
	for _, m := range []*machine{m, m2} {
		if m.isMaintained() || m.record().Current != nil {
			t.Errorf("taints %v, record %s", m.Spec.Taints, m.record())
		}
	}
}

// An action that is too late is followed by the next one, once its Job has ended: until then the conditions do not count.
func TestTheNextActionWaitsForTheEndOfTheLast(t *testing.T) {
	w, m := sick(t, ecc)
	w.program(m, map[string]func(*batchv1.Job){"reset-gpu": nil})
	w.until("the Job runs", time.Hour, func() bool { return m.record().Current != nil && m.record().Current.JobUID != "" })
	m.pods = []corev1.Pod{jobPod(150)}
	w.untilPhase(m, visit.Ending)
	if len(m.jobs) > 0 || !m.isMaintained() {
		t.Errorf("%d Jobs, taints %v", len(m.jobs), m.Spec.Taints)
	}
	m.pods = nil
	w.untilClosed(m, visit.Repair, visit.Passed)
	if m.done() != "reset-gpu reboot" {
		t.Errorf("done: %s", m.done())
	}
}

func TestASweepMakesWayAfterTenSecondsAtMost(t *testing.T) {
	p := swept(t)
	p.live.Pods = []corev1.Pod{jobPod(30)}
	p.facts.Awaited = "team/rank-0"
	p.step()
	for range 9 {
		if p.pass(time.Second); p.taints() == "" || p.facts.Job != nil {
			t.Fatalf("Job %v, record %s", p.facts.Job, p.record())
		}
	}
	p.pass(time.Second)
	p.expect("taint", p.taints(), "")
	p.expect("phase", p.record().Last[0].Phase, visit.Yielded)
}

// What has ended by itself needs no look at pods.
func TestAVisitWhoseJobHasEndedIsClosedAtOnce(t *testing.T) {
	p := swept(t)
	p.answer("failed", 1)
	p.step()
	p.expect("phase", p.record().Last[0].Phase, visit.Failed)
	p.expect("taint", p.taints(), "")

	p = swept(t)
	p.answer("failed", 1)
	p.live.JobPods[0].Namespace = conditions.RepairNamespace // it is late
	p.step()
	p.expect("phase", p.record().Current.Phase, visit.Ending)
}

func TestARecordThatEnds(t *testing.T) {
	for text, valid := range map[string]bool{
		`"phase":"Ending","then":"Failed","attempt":1`:   true,
		`"phase":"Ending","then":"Emptying","attempt":1`: true,
		`"phase":"Ending","then":"Failed"`:               false,
		`"phase":"Ending","attempt":1`:                   false,
		`"phase":"Ending","then":"Working","attempt":1`:  false,
		`"phase":"Working","then":"Failed","attempt":1`:  false,
	} {
		if _, err := visit.ParseRecord(`{"v":1,"nodeUID":"n","current":{"id":"a","kind":"repair",` + text + `}}`); (err == nil) != valid {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// A kubelet that makes its Node too large in the middle of a visit keeps no place from other nodes, and gets no other visit for the quarantine.
func TestAVisitEndsOnANodeThatGrowsTooLarge(t *testing.T) {
	for phase, run := range map[visit.Phase]bool{visit.Emptying: false, visit.Working: false, visit.Proving: true} {
		t.Run(string(phase), func(t *testing.T) {
			w, m := sick(t, ecc)
			m.run = func(job *batchv1.Job) {
				if run {
					w.end(m, job, 0, `{"result":"done","message":"reset 1 GPU"}`)
				}
			}
			if phase == visit.Emptying {
				m.pods = []corev1.Pod{{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train"}, Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}}}}
			}
			w.until("the phase", time.Hour, func() bool { return m.phase() == phase && (phase != visit.Working || len(m.jobs) > 0) })
			m.tooLarge = "labels has no room in the 96 KiB that are kept of a node"
			w.until("its end", 5*time.Minute, func() bool { return m.phase() == "" })
			if v := m.last(); v.Phase != visit.Failed || v.Outcome != "stopped because the node is too large to judge: "+m.tooLarge || len(m.jobs) > 0 || m.isMaintained() {
				t.Errorf("%d Jobs, taints %v, record %s", len(m.jobs), m.Spec.Taints, m.record())
			}
			for range 60 {
				w.step(time.Minute)
			}
			m.tooLarge = ""
			for range 60 {
				w.step(time.Minute)
			}
			if visits := m.record().Last; len(visits) != 1 || m.phase() != "" {
				t.Errorf("record %s", m.record())
			}
		})
	}
}

func TestNoVisitBeginsOnANodeThatIsTooLarge(t *testing.T) {
	w, m := sick(t, ecc)
	m.tooLarge = "labels"
	for range 60 {
		w.step(time.Minute)
	}
	if r := m.record(); r.Current != nil || len(r.Last) > 0 {
		t.Errorf("record %s", r)
	}
}
