package repair

import (
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/operator"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const exporter, plugin = "nvidia.com/gpu.deploy.dcgm-exporter", "nvidia.com/gpu.deploy.device-plugin"

// operated is a node of the GPU operator with a GPU that needs a reset. Its exporter leaves when its label is paused, as the controller of
// DaemonSets has it, unless it hangs.
func operated(t *testing.T, hangs bool) (*world, *machine) {
	w := newWorld(t, parse(t), "a")
	w.templates["reset-gpu"].Annotations = map[string]string{conditions.AnnotationPauses: conditions.PausesGPUOperator}
	m := w.nodes["a"]
	m.Labels = map[string]string{exporter: "true", plugin: "false", "nvidia.com/gpu.deploy.driver": "true"}
	pod := cpuPod("exporter", "DaemonSet")
	pod.Spec.NodeSelector = map[string]string{exporter: "true"}
	m.pods = []corev1.Pod{pod}
	m.run = func(job *batchv1.Job) {
		if len(m.pods) > 0 && job.Labels[conditions.LabelTemplate] == "reset-gpu" {
			t.Error("the Job was created while the exporter had the GPU")
		}
		if m.Labels[exporter] != operator.Paused && job.Labels[conditions.LabelTemplate] == "reset-gpu" {
			t.Errorf("while the Job runs, the labels are %v", m.Labels)
		}
		w.cures(m)(job)
	}
	w.fault(m, "GPUXidError", ecc)
	if !hangs {
		w.until("the exporter is asked to leave", time.Hour, func() bool { return m.Labels[exporter] == operator.Paused })
		if m.phase() != visit.Working || len(m.jobs) > 0 || m.waiting == nil || !strings.Contains(m.waiting.Message, "pod ml/exporter has not ended") {
			t.Fatalf("%s, %d Jobs, waits %+v", m.phase(), len(m.jobs), m.waiting)
		}
	}
	return w, m
}

func givenBack(t *testing.T, m *machine) {
	t.Helper()
	if m.Labels[exporter] != "true" || m.Labels[plugin] != "false" || m.Labels["nvidia.com/gpu.deploy.driver"] != "true" || len(m.Labels) < 3 {
		t.Errorf("afterwards the labels are %v", m.Labels)
	}
}

func TestTheGPUOperatorLetsGoWhileAResetRuns(t *testing.T) {
	w, m := operated(t, false)
	m.pods = nil
	w.until("the reset is proven", time.Hour, func() bool { return m.phase() == visit.Proving })
	givenBack(t, m) // what proves it may need the device plugin
	w.until("validated and released", time.Hour, func() bool { return !m.isQuarantined() })
	if !w.happened("RepairSucceeded: reset-gpu has helped") {
		t.Errorf("events %q", w.events)
	}
	givenBack(t, m)
}

func TestTheGPUOperatorGetsItsLabelsBackWhateverHappens(t *testing.T) {
	for name, end := range map[string]func(*world, *machine){
		"the record is lost":          func(_ *world, m *machine) { delete(m.Annotations, conditions.AnnotationRepair) },
		"the record cannot be read":   func(_ *world, m *machine) { m.Annotations[conditions.AnnotationRepair] = "{" },
		"the taint was removed":       func(_ *world, m *machine) { m.Spec.Taints = nil },
		"a person says skip":          func(_ *world, m *machine) { m.Labels[conditions.LabelSkip] = "true" },
		"the exporter never leaves":   func(*world, *machine) {},
		"the policy forgets":          func(w *world, m *machine) { w.policy.Repair = nil },
		"Pitcrew is uninstalled":      func(w *world, m *machine) { m.Node, m.stalled, w.policy.Repair = visit.Strip(m.Node), true, nil },
		"the template does not pause": func(w *world, m *machine) { w.templates["reset-gpu"].Annotations, m.pods = nil, nil },
	} {
		t.Run(name, func(t *testing.T) {
			w, m := operated(t, false)
			m.run = nil
			end(w, m)
			if name == "Pitcrew is uninstalled" {
				givenBack(t, m)
				return
			}
			if name == "the record cannot be read" {
				w.visit(m)
				if m.Labels[exporter] != operator.Paused {
					t.Error("the Job may run")
				}
				return
			}
			if name == "the record is lost" {
				w.visit(m)
				givenBack(t, m)
				return
			}
			w.until("given back", 30*time.Minute, func() bool { return m.Labels[exporter] == "true" })
			givenBack(t, m)
			if failed := w.happened("the Job of template reset-gpu has not started: pod ml/exporter has not ended although its label is paused"); failed != (name == "the exporter never leaves") {
				t.Errorf("events %q", w.events)
			}
		})
	}
}

func TestALabelThatADriverUpgradeHasPausedIsWaitedFor(t *testing.T) {
	w, m := operated(t, true)
	m.pods = nil
	m.Labels[plugin] = "paused-for-driver-upgrade"
	for range 100 {
		w.step(time.Minute)
	}
	if m.phase() != "" || m.Labels[plugin] != "paused-for-driver-upgrade" || m.Labels[exporter] != "true" || m.waiting == nil ||
		!strings.Contains(m.waiting.Message, plugin+"=paused-for-driver-upgrade") {
		t.Errorf("%s, labels %v, waits %+v", m.phase(), m.Labels, m.waiting)
	}
	m.Labels[plugin] = "false"
	w.until("repaired", time.Hour, func() bool { return w.happened("RepairSucceeded: reset-gpu has helped") })
	w.until("released", time.Hour, func() bool { return !m.isQuarantined() })
	givenBack(t, m)
}
