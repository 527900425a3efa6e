package node

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/pitcrew-dev/pitcrew/e2e/cluster/clustertest"
	"github.com/pitcrew-dev/pitcrew/e2e/machine"
	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

// checkPolicy checks nodes that are not quarantined. CHECKS are the fields of spec that say which.
const checkPolicy = `
apiVersion: pitcrew.dev/v1alpha1
kind: RemediationPolicy
spec:
  mode: enforce
  budget: {maxPercent: 100}
  rules:
    gpu-xid: {match: {condition: GPUXidError, repair: [ResetGPU, Reboot]}, clearAfter: 1s}
    gpu-diag: {match: {condition: DCGMDiagFailed, repair: [Inspect, ResetGPU, Reboot, Replace]}, clearAfter: 1s}
  CHECKS
`

// sweeps has the node swept at once: it was never checked, and need not be idle for long. Once it is checked, it is not swept again in
// this test: the next look at idle nodes comes later.
var sweeps = strings.Replace(checkPolicy, "CHECKS", "sweeps: {idle: {every: 2s, idleFor: 0s, template: check, timeout: 4m}}", 1)

// gpu is the resource of the node's GPU. No device plugin runs here.
const gpu = corev1.ResourceName("nvidia.com/gpu")

// addGPUs has the node offer a GPU until the end of the test.
func (r *repairCase) addGPUs() {
	r.Helper()
	set := func(change func(corev1.ResourceList)) error {
		var node corev1.Node
		if err := r.m.Client.Get(context.WithoutCancel(r.Context()), client.ObjectKey{Name: machine.NodeName}, &node); err != nil {
			return err
		}
		changed := node.DeepCopy()
		change(changed.Status.Capacity)
		change(changed.Status.Allocatable)
		return r.m.Client.Status().Patch(context.WithoutCancel(r.Context()), changed, client.MergeFrom(&node))
	}
	if err := set(func(l corev1.ResourceList) { l[gpu] = resource.MustParse("1") }); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := set(func(l corev1.ResourceList) { delete(l, gpu) }); err != nil {
			r.Error(err)
		}
	})
}

// pod creates a pod that waits for the machine, with its GPU or without, and deletes it at the end of the test.
func (r *repairCase) pod(name string, gpus int64) *corev1.Pod {
	r.Helper()
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: name},
		Spec: corev1.PodSpec{
			NodeSelector: map[string]string{corev1.LabelHostname: machine.NodeName}, TerminationGracePeriodSeconds: new(int64(0)),
			Containers: []corev1.Container{{
				Name: "train", Image: "ghcr.io/pitcrew-dev/preflight:" + tag, ImagePullPolicy: corev1.PullNever,
				Command: []string{"/bin/busybox", "sleep", "3600"},
			}},
		},
	}
	if gpus > 0 {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{gpu: *resource.NewQuantity(gpus, resource.DecimalSI)}
	}
	if err := r.m.Client.Create(r.Context(), pod); err != nil {
		r.Fatal(err)
	}
	r.Cleanup(func() {
		if err := r.m.Client.Delete(context.Background(), pod); err != nil {
			r.Error(err)
		}
	})
	return pod
}

// runs waits until the pod runs on the machine.
func (r *repairCase) runs(pod *corev1.Pod) {
	r.Helper()
	clustertest.Until(r, patience, "pod "+pod.Name+" runs", func() error {
		if err := r.m.Client.Get(r.Context(), client.ObjectKeyFromObject(pod), pod); err != nil {
			return err
		}
		if pod.Status.Phase == corev1.PodRunning {
			return nil
		}
		node, err := r.m.Node(r.T) // it may be a new one, and not there yet
		return errors.Join(err, fmt.Errorf("it is %s, the node has taints %v, record %s, Events %q", pod.Status.Phase, node.Spec.Taints,
			node.Annotations[conditions.AnnotationRepair], r.notes()))
	})
}

// unmarked checks that the node has no taint of ours, and that no Job is left for it.
func (r *repairCase) unmarked() {
	r.Helper()
	if taints := r.node().Spec.Taints; slices.ContainsFunc(taints, func(t corev1.Taint) bool { return strings.HasPrefix(t.Key, conditions.Domain+"/") }) {
		r.Errorf("the node has taints %v", taints)
	}
	clustertest.Until(r, patience, "the end of the Job", func() error {
		var jobs batchv1.JobList
		if err := r.m.Client.List(r.Context(), &jobs, client.InNamespace(conditions.RepairNamespace)); err != nil || len(jobs.Items) > 0 {
			return errors.Join(err, fmt.Errorf("%d Jobs", len(jobs.Items)))
		}
		return nil
	})
}

// checked checks that the visit left what a check that has passed leaves: the note on the node, and the report of the diagnostics.
func (r *repairCase) checked(kind visit.Kind) {
	r.Helper()
	r.visit(kind, visit.Passed)
	boot := r.node().Status.NodeInfo.BootID
	if c := r.record().Checked; c == nil || c.Template != "check" || c.BootID != boot || c.Quarantine != "" {
		r.Errorf("record %s", r.record())
	}
	report, err := os.ReadFile("/run/pitcrew/dcgm-report.json")
	if err != nil || !strings.Contains(string(report), boot) {
		r.Errorf("the report of the diagnostics: %s, %v", report, err)
	}
}

func TestAnIdleNodeIsSwept(t *testing.T) {
	r := startRepairCase(t, sweeps, false)
	r.addGPUs()
	r.remediator()
	r.checked(visit.Sweep)
	if r.record().Swept["idle"].IsZero() {
		t.Errorf("record %s", r.record())
	}
	for _, reason := range []string{repair.SweepStarted, repair.NodeChecked} {
		r.event(reason, "")
	}
	r.unmarked()
}

// The diagnostics do not end by themselves. A pod comes that could run on the node.
func TestASweepMakesWayForAPod(t *testing.T) {
	r := startRepairCase(t, sweeps, false)
	r.addGPUs()
	r.diagnosis(t, "hang\n")
	r.remediator()
	clustertest.Until(t, patience, "the diagnostics run", func() error {
		programs, err := filepath.Glob("/proc/[0-9]*/cmdline")
		for _, program := range programs {
			if args, _ := os.ReadFile(program); strings.HasPrefix(string(args), "/opt/pitcrew/bin/dcgm\x00-run\x00") { // none if it has ended
				return nil
			}
		}
		return fmt.Errorf("%w, record %s, Events %q", err, r.record(), r.notes())
	})
	pod := r.pod("training", 1)
	r.runs(pod)
	r.visit(visit.Sweep, visit.Yielded)
	r.event(repair.SweepYielded, "pod default/training")
	r.unmarked()
	if record := r.record(); record.Checked != nil || len(record.Swept) > 0 {
		t.Errorf("the node counts as checked: %s", record)
	}
}

// The kubelet brings the taint. Each life of the remediator does one write.
func TestANewNodeGetsNoPodBeforeItsFirstCheck(t *testing.T) {
	r := startRepairCase(t, strings.Replace(checkPolicy, "CHECKS", "firstCheck: {template: check, timeout: 4m}", 1), false)
	stop := clustertest.Lives(t, r.m.Cluster, r.flags()...)
	r.m.PowerOff(t)
	if err := r.m.Client.Delete(t.Context(), r.node()); err != nil {
		t.Fatal(err)
	}
	pod := r.pod("first", 0)
	r.m.RegisterWithTaint = conditions.TaintUnchecked
	t.Cleanup(func() { r.m.RegisterWithTaint = "" })
	boot := r.m.PowerOn(t)
	r.runs(pod)
	writes := stop()
	if got := r.node().Status.NodeInfo.BootID; got != boot {
		t.Errorf("the node is in boot %s, want %s", got, boot)
	}
	r.checked(visit.FirstCheck)
	r.unmarked()
	for _, c := range pod.Status.Conditions {
		// It has whole seconds.
		if checked := r.record().Checked.At.Truncate(time.Second); c.Type == corev1.PodScheduled && c.LastTransitionTime.Time.Before(checked) {
			t.Errorf("the pod came to the node at %s, the check passed at %s", c.LastTransitionTime, checked)
		}
	}
	if jobs := created(writes); jobs != 1 {
		t.Errorf("%d Jobs were created, want a check: %q", jobs, writes)
	}
	t.Logf("%d writes, each the last one of a process", len(writes))
}
