// Package clitest has nodes and policies for the tests of the commands.
package clitest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine/causes"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

const RepairPolicy = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 9}
  repair:
    mode: approve
    actions:
      ResetGPU: [{template: reset-gpu, timeout: 10m}, {template: reboot}]
      Reboot: [{template: reboot}]
    validate: {template: check, args: [-level, "3"]}
  sweeps:
    weekly: {every: 168h, nodeSelector: {pool: gpu}, template: check, args: [-level, "2"]}
  firstCheck: {}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}, validate: true}
    plain: {match: {condition: HCAPortDown, repair: [Inspect]}}
`

// QuarantinedBy is a node that a rule has quarantined.
func QuarantinedBy(t *testing.T, name, rule string, class conditions.Repair) *corev1.Node {
	t.Helper()
	n := NodeNamed(name)
	record := &causes.Record{V: 1, NodeUID: n.UID, Boot: causes.Boot{ID: "b1", Seen: Now}, Quarantine: causes.Quarantine{
		ID: "q1", Phase: causes.Quarantined, QuarantinedAt: Now,
		Causes: []causes.Cause{{Condition: "GPUXidError", Rule: rule, Repair: class, Message: Lost, FirstSeen: Now, Due: true, BootID: "b1"}},
		Taint:  &causes.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: rule, Repair: class, Since: Now},
	}}
	n.Annotations = map[string]string{conditions.AnnotationQuarantine: record.String()}
	n.Spec.Taints = []corev1.Taint{record.Taint.NodeTaint()}
	return n
}

func NodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{"pool": "gpu"}}, Status: corev1.NodeStatus{
		NodeInfo:    corev1.NodeSystemInfo{BootID: "b1"},
		Allocatable: corev1.ResourceList{"nvidia.com/gpu": apiresource.MustParse("8"), corev1.ResourceCPU: apiresource.MustParse("9")},
	}}
}

func Visited(n *corev1.Node, r *visit.Record) *corev1.Node {
	r.V, r.NodeUID = 1, n.UID
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, conditions.AnnotationRepair, r.String())
	return n
}

// UnderRepair is a node in the second step of its repair.
func UnderRepair(t *testing.T, phase visit.Phase) *corev1.Node {
	t.Helper()
	ago := func(d time.Duration) time.Time { return Now.Add(-d) }
	return Visited(QuarantinedBy(t, "gpu-1", "gpu", conditions.ResetGPU), &visit.Record{
		Current: &visit.Visit{
			ID: "v2", Kind: visit.Repair, Phase: phase, Quarantine: "q1", StartedAt: ago(30 * time.Minute), PhaseSince: ago(3 * time.Minute), Attempt: 2,
			Template: "reboot", Args: []string{"-boot-id=b1"}, Deadline: Now.Add(17 * time.Minute), BootID: "b1", Outcome: "waits for pod ml/train-0\x1b[2J",
		},
		Request: &visit.Request{Kind: visit.RequestRepair, Quarantine: "q1", At: ago(31 * time.Minute), User: "ann", Reason: "night shift"},
		Checked: &visit.Checked{At: ago(72 * time.Hour), BootID: "b0", Template: "check", Args: []string{"-level", "3"}},
		Repairs: []visit.Action{
			{At: ago(200 * time.Hour), Template: "reboot", Quarantine: "older", Proven: true},
			{At: ago(25 * time.Minute), Template: "reset-gpu", Quarantine: "q1"}, {At: ago(3 * time.Minute), Template: "reboot", Quarantine: "q1"},
		},
		Advice: &visit.Advice{Quarantine: "q1", Do: visit.AdviseReboot, Why: "the reset has not helped", At: ago(4 * time.Minute)},
		Last: []visit.Visit{
			{ID: "v1", Kind: visit.Sweep, Sweep: "weekly", Phase: visit.Yielded, StartedAt: ago(80 * time.Hour), PhaseSince: ago(79 * time.Hour), EndedAt: ago(79 * time.Hour), Attempt: 1, Template: "check", Outcome: "pod ml/big-0 could run here"},
			{ID: "v0", Kind: visit.Sweep, Sweep: "weekly", Phase: visit.Passed, StartedAt: ago(90 * time.Hour), PhaseSince: ago(89 * time.Hour), EndedAt: ago(89 * time.Hour), Attempt: 1, Template: "check", Args: []string{"-level", "2"}},
		},
	})
}

var Now = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

// Lost is the message of a GPU that is gone.
const Lost = "Reboot gpu 0000:4e:00: Xid 79 GPU has fallen off the bus"

// Died is a node whose kubelet and detectors send no heartbeat any more.
func Died(at time.Time) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Message: "Kubelet stopped posting node status.", LastTransitionTime: metav1.NewTime(at)},
		{Type: conditions.GPUXidError, Status: corev1.ConditionFalse, Message: "no fault", LastHeartbeatTime: metav1.NewTime(at), LastTransitionTime: metav1.NewTime(at)},
	}}}
}

// JobPolicy has a rule that restarts jobs and one that does not.
const JobPolicy = `apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxNodes: 9}
  rules:
    gpu: {match: {condition: GPUXidError, repair: [Reboot]}, restartJobs: true}
    plain: {match: {condition: HCAPortDown, repair: [Inspect]}}
`

// PolicyFile writes a policy into a file of its own.
func PolicyFile(t *testing.T, text string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "policy.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}
