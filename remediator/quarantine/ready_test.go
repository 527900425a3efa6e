package quarantine

import (
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/remediator/policy"
)

// readyPolicy has a rule about nodes that are not Ready.
const readyPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 3, maxPercent: 10}
  correlated: {maxPercent: 50, minNodes: 4, window: 2m, scopes: [rack]}
  rules:
    gpu:
      match: {condition: GPUXidError, repair: [ResetGPU, Reboot, Replace]}
      restartJobs: true
    deadlock:
      match: {condition: KernelDeadlock, repair: [Reboot]}
    dead:
      match: {condition: Ready, status: [Unknown, "False"], repair: [Inspect]}
      for: 2m
      clearAfter: 5m
      flaps: {max: 4, window: 24h}
      restartJobs: true
      handOff: {keepNode: false}
`

const deadTaint = "pitcrew.dev/unhealthy=Ready:NoSchedule"

func newReadyWorld(t *testing.T) *world {
	t.Helper()
	w := newWorld(t)
	p, err := policy.Parse([]byte(readyPolicy))
	if err != nil {
		t.Fatal(err)
	}
	w.policy = p
	kubelet(corev1.ConditionTrue)(w)
	return w
}

// kubelet reports Ready, with a heartbeat.
func kubelet(status corev1.ConditionStatus) step {
	return says("Ready", string(status), "kubelet is "+string(status))
}

// silent is what the node controller makes of a node whose kubelet does not renew its lease: a status without a heartbeat
// (kubernetes pkg/controller/nodelifecycle/node_lifecycle_controller.go, tryUpdateNodeHealth).
func silent(w *world) {
	for i := range w.node.Status.Conditions {
		if c := &w.node.Status.Conditions[i]; c.Type == corev1.NodeReady && c.Status != corev1.ConditionUnknown {
			c.Status, c.Reason, c.Message = corev1.ConditionUnknown, "NodeStatusUnknown", "Kubelet stopped posting node status."
			c.LastTransitionTime = metav1.NewTime(w.now)
		}
	}
}

func (w *world) run(steps ...step) {
	w.t.Helper()
	for _, s := range steps {
		s(w)
	}
}

// expect compares the phase, the taints and whether jobs are restarted.
func (w *world) expect(phase Phase, taint string, restarts bool) {
	w.t.Helper()
	got, tainted := Phase(""), ""
	if r := w.record(); r != nil {
		got = r.Phase
	}
	for _, taint := range w.node.Spec.Taints {
		tainted += taint.ToString()
	}
	if got != phase || tainted != taint || w.last.RestartJobs != restarts {
		w.t.Fatalf("phase %q, taint %q, restarts %v, want %q, %q, %v; blocked %+v", got, tainted, w.last.RestartJobs, phase, taint, restarts, w.last.Blocked)
	}
}

func TestANodeThatDoesNotAnswerIsQuarantinedAndItsJobsRestart(t *testing.T) {
	for name, fails := range map[string]step{"Unknown": silent, "False": kubelet(corev1.ConditionFalse)} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(passes(time.Hour), fails, decide)
			w.expect(Suspect, "", false)
			w.run(starves(2*time.Minute - time.Second))
			w.expect(Suspect, "", false)
			w.run(starves(time.Second))
			w.expect(Quarantined, deadTaint, true)
			if len(w.node.Annotations) != 1 {
				t.Errorf("an autoscaler is kept from replacing a dead node: %v", w.node.Annotations)
			}
			w.run(starves(100 * time.Hour))
			w.expect(Quarantined, deadTaint, true)
		})
	}
}

func TestANodeThatAnswersAgainIsReleasedAfterItsTime(t *testing.T) {
	for name, test := range map[string]struct{ boot string }{"the node was away": {"boot-1"}, "the node has rebooted": {"boot-2"}} {
		t.Run(name, func(t *testing.T) {
			w := newReadyWorld(t)
			w.run(passes(time.Hour), silent, decide, starves(2*time.Minute))
			w.expect(Quarantined, deadTaint, true)
			w.node.Status.NodeInfo.BootID = test.boot
			w.run(kubelet(corev1.ConditionTrue), decide, starves(5*time.Minute-time.Second))
			w.expect(Quarantined, deadTaint, true)
			w.run(starves(time.Second))
			w.expect(Released, "", false)
		})
	}
}
