package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apiresource "k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/remediator/policy"
	"github.com/pitcrew-dev/pitcrew/remediator/quarantine"
	"github.com/pitcrew-dev/pitcrew/remediator/repair"
)

const repairPolicy = `apiVersion: pitcrew.dev/v1alpha1
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

// quarantinedBy is a node that a rule has quarantined.
func quarantinedBy(t *testing.T, name, rule string, class conditions.Repair) *corev1.Node {
	t.Helper()
	n := nodeNamed(name)
	record := &quarantine.Record{V: 1, NodeUID: n.UID, Boot: quarantine.Boot{ID: "b1", Seen: testNow}, Quarantine: quarantine.Quarantine{
		ID: "q1", Phase: quarantine.Quarantined, QuarantinedAt: testNow,
		Causes: []quarantine.Cause{{Condition: "GPUXidError", Rule: rule, Repair: class, Message: lost, FirstSeen: testNow, Due: true, BootID: "b1"}},
		Taint:  &quarantine.Taint{Key: conditions.TaintUnhealthy, Value: "GPUXidError", Effect: corev1.TaintEffectNoSchedule, Rule: rule, Repair: class, Since: testNow},
	}}
	n.Annotations = map[string]string{conditions.AnnotationQuarantine: record.String()}
	n.Spec.Taints = []corev1.Taint{record.Taint.NodeTaint()}
	return n
}

func nodeNamed(name string) *corev1.Node {
	return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, UID: "u", Labels: map[string]string{"pool": "gpu"}}, Status: corev1.NodeStatus{
		NodeInfo:    corev1.NodeSystemInfo{BootID: "b1"},
		Allocatable: corev1.ResourceList{"nvidia.com/gpu": apiresource.MustParse("8"), corev1.ResourceCPU: apiresource.MustParse("9")},
	}}
}

func visited(n *corev1.Node, r *repair.Record) *corev1.Node {
	r.V, r.NodeUID = 1, n.UID
	metav1.SetMetaDataAnnotation(&n.ObjectMeta, conditions.AnnotationRepair, r.String())
	return n
}

// underRepair is a node in the second step of its repair.
func underRepair(t *testing.T, phase repair.Phase) *corev1.Node {
	t.Helper()
	ago := func(d time.Duration) time.Time { return testNow.Add(-d) }
	return visited(quarantinedBy(t, "gpu-1", "gpu", conditions.ResetGPU), &repair.Record{
		Current: &repair.Visit{
			ID: "v2", Kind: repair.Repair, Phase: phase, Quarantine: "q1", StartedAt: ago(30 * time.Minute), PhaseSince: ago(3 * time.Minute), Attempt: 2,
			Template: "reboot", Args: []string{"-boot-id=b1"}, Deadline: testNow.Add(17 * time.Minute), BootID: "b1", Outcome: "waits for pod ml/train-0\x1b[2J",
		},
		Request: &repair.Request{Kind: repair.RequestRepair, Quarantine: "q1", At: ago(31 * time.Minute), User: "ann", Reason: "night shift"},
		Checked: &repair.Checked{At: ago(72 * time.Hour), BootID: "b0", Template: "check", Args: []string{"-level", "3"}},
		Repairs: []repair.Action{
			{At: ago(200 * time.Hour), Template: "reboot", Quarantine: "older", Proven: true},
			{At: ago(25 * time.Minute), Template: "reset-gpu", Quarantine: "q1"}, {At: ago(3 * time.Minute), Template: "reboot", Quarantine: "q1"},
		},
		Advice: &repair.Advice{Quarantine: "q1", Do: repair.AdviseReboot, Why: "the reset has not helped", At: ago(4 * time.Minute)},
		Last: []repair.Visit{
			{ID: "v1", Kind: repair.Sweep, Sweep: "weekly", Phase: repair.Yielded, StartedAt: ago(80 * time.Hour), PhaseSince: ago(79 * time.Hour), EndedAt: ago(79 * time.Hour), Attempt: 1, Template: "check", Outcome: "pod ml/big-0 could run here"},
			{ID: "v0", Kind: repair.Sweep, Sweep: "weekly", Phase: repair.Passed, StartedAt: ago(90 * time.Hour), PhaseSince: ago(89 * time.Hour), EndedAt: ago(89 * time.Hour), Attempt: 1, Template: "check", Args: []string{"-level", "2"}},
		},
	})
}

func TestDescribeShowsEachStepOfAVisit(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "gpu-1-v2-2", Labels: map[string]string{conditions.LabelVisit: "v2"}}}
	other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "other", Labels: map[string]string{conditions.LabelVisit: "v9"}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "gpu-1-v2-2-x", Labels: map[string]string{batchv1.JobNameLabel: job.Name}},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}},
	}
	ago := func(at time.Time) string { return testNow.Sub(at).String() + " ago" }
	describe := func(n *corev1.Node, objects ...client.Object) string {
		t.Helper()
		var out bytes.Buffer
		if err := describeVisits(t.Context(), &out, fake.NewClientBuilder().WithObjects(objects...).Build(), n, ago); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	const rest = `Asked:    repair, by ann: night shift, 31m0s ago
Advice:   reboot: the reset has not helped, 4m0s ago
Checked:  passed check -level 3, before its present boot, 72h0m0s ago
Visited:  sweep weekly, 79h0m0s ago: Yielded: pod ml/big-0 could run here
Visited:  sweep weekly, 89h0m0s ago: Passed: check -level 2
`
	want := `Visit:    repair, attempt 2, since 30m0s ago
          Working since 3m0s ago: waits for pod ml/train-0�[2J
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: under way
          reboot -boot-id=b1, until 2026-11-20T12:17:00Z at the latest
          Job pitcrew-repair/gpu-1-v2-2: under way; pod gpu-1-v2-2-x: ImagePullBackOff: no such image
` + rest
	if diff := cmp.Diff(want, describe(underRepair(t, repair.Working), job, other, pod)); diff != "" {
		t.Error(diff)
	}

	want = `Visit:    repair, attempt 2, since 30m0s ago
          Emptying since 3m0s ago: waits for pod ml/train-0�[2J
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: the fault is still there
` + rest
	if diff := cmp.Diff(want, describe(underRepair(t, repair.Emptying))); diff != "" {
		t.Error(diff)
	}

	ending := underRepair(t, repair.Working)
	record, err := repair.RecordOf(ending)
	if err != nil {
		t.Fatal(err)
	}
	record.Current.Phase, record.Current.Then, record.Current.Outcome = repair.Ending, repair.Failed, "stopped by ann"
	want = `Visit:    repair, attempt 2, since 30m0s ago
          Ending since 3m0s ago: stopped by ann; then Failed
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: ends
          reboot -boot-id=b1, until 2026-11-20T12:17:00Z at the latest
` + rest
	if diff := cmp.Diff(want, describe(visited(ending, record))); diff != "" {
		t.Error(diff)
	}

	proving := underRepair(t, repair.Proving)
	if record, err = repair.RecordOf(proving); err != nil {
		t.Fatal(err)
	}
	record.Current.JobEndedAt, record.Current.Outcome = testNow.Add(-time.Minute), "waits for GPUXidError"
	want = `Visit:    repair, attempt 2, since 30m0s ago
          Proving since 3m0s ago: waits for GPUXidError
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: done; the conditions have to prove it
          its Job ended 1m0s ago
` + rest
	if diff := cmp.Diff(want, describe(visited(proving, record))); diff != "" {
		t.Error(diff)
	}

	record.Advice.Quarantine = "older"
	if out := describe(visited(proving, record)); strings.Contains(out, "Advice:") {
		t.Errorf("the advice for another quarantine:\n%s", out)
	}
	for range 9 {
		record.Last = append(record.Last, record.Last[0])
	}
	if out := describe(visited(proving, record)); strings.Count(out, "Visited: ") != shownVisits {
		t.Errorf("more than the last visits:\n%s", out)
	}
	record.Current.ID = "no label!"
	describe(visited(proving, record))
	if out := describe(nodeNamed("n")); out != "" {
		t.Errorf("of a node without a record: %s", out)
	}
	n := nodeNamed("n")
	n.Annotations = map[string]string{conditions.AnnotationRepair: "{"}
	if out := describe(n); !strings.HasPrefix(out, "Visits:   decode repair record: ") {
		t.Error(out)
	}
}

func TestStatusShowsWhatIsUnderWay(t *testing.T) {
	p, err := policy.Parse([]byte(repairPolicy))
	if err != nil {
		t.Fatal(err)
	}
	checked := func(name string, ago time.Duration) *corev1.Node {
		return visited(nodeNamed(name), &repair.Record{Checked: &repair.Checked{At: testNow.Add(-ago), BootID: "b1", Template: "check", Args: []string{"-level", "2"}}})
	}
	busy := checked("gpu-3", 200*time.Hour)
	record, _ := repair.RecordOf(busy)
	record.Swept = map[string]time.Time{"weekly": testNow.Add(-2 * time.Hour)} // it has found a fault
	record.Current = &repair.Visit{ID: "s", Kind: repair.Sweep, Sweep: "weekly", Phase: repair.Working, StartedAt: testNow.Add(-time.Minute), PhaseSince: testNow, Attempt: 1, Template: "check"}
	visited(busy, record)
	unchecked := nodeNamed("gpu-4")
	unchecked.Spec.Taints = []corev1.Taint{{Key: conditions.TaintUnchecked, Effect: corev1.TaintEffectNoSchedule}}
	plain, skipped := nodeNamed("cpu-1"), nodeNamed("gpu-9")
	plain.Status.Allocatable, skipped.Labels[conditions.LabelSkip] = nil, "true"
	elsewhere := nodeNamed("gpu-8")
	elsewhere.Labels = nil

	var nodes []corev1.Node
	var f fleet
	waiting := quarantinedBy(t, "gpu-5", "gpu", conditions.Reboot)
	waiting.Status.Conditions = []corev1.NodeCondition{{Type: "GPUXidError", Status: corev1.ConditionTrue, Message: lost, LastHeartbeatTime: metav1.NewTime(testNow), LastTransitionTime: metav1.NewTime(testNow)}}
	for _, n := range []*corev1.Node{underRepair(t, repair.Emptying), waiting, checked("gpu-2", time.Hour), busy, unchecked, plain, skipped, elsewhere} {
		nodes = append(nodes, *n)
		r := rowOf(n, testNow)
		r.addVisit(n)
		r.addApproval(p, n, testNow)
		f.Nodes = append(f.Nodes, r)
	}
	f.addVisits(p, nodes, testNow)
	var out strings.Builder
	printFacts(&out, f.Pitcrew.Facts, false)
	want := `VISITS      gpu-1: repair, 30m, Emptying: waits for pod ml/train-0�[2J
            gpu-3: sweep weekly, check, 60s, Working
APPROVAL    gpu-5 waits for approval (Reboot): kubectl pitcrew repair gpu-5 --approve
SWEEPS      weekly: 2 of 5 nodes checked within 7d, 3 never; now: gpu-3
NEW NODES   1 wait for their first check: gpu-4
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	if got := f.Nodes[0].cells(true, testNow); got[8] != "3d, level 3" {
		t.Errorf("the column CHECKED: %q", got)
	}
	if f.Nodes[0].Advice == nil {
		t.Error("the advice is missing")
	}
	text, err := json.Marshal(f)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{`"sweeps":[{"name":"weekly","every":"7d","nodes":5,"checked":2,"never":3,"underWay":["gpu-3"]}]`, `"visit":{"id":"v2","kind":"repair","phase":"Emptying"`, `"checked":{"at":`, `"advice":{`} {
		if !strings.Contains(string(text), part) {
			t.Errorf("no %s in %s", part, text)
		}
	}
}

func TestStatusNamesSomeVisitsOnly(t *testing.T) {
	var f fleet
	for i := range linesOfVisits + 5 {
		f.Nodes = append(f.Nodes, row{Node: fmt.Sprintf("n%d", i), Visit: &repair.Visit{Kind: repair.Sweep, Phase: repair.Working, StartedAt: testNow}})
	}
	f.addVisits(nil, nil, testNow)
	if got := f.Pitcrew.Facts; len(got) != linesOfVisits+1 || got[linesOfVisits].Seen != "and 5 more" {
		t.Errorf("%d lines, the last one %q", len(got), got[len(got)-1].Seen)
	}
}

func TestHowHardANodeWasChecked(t *testing.T) {
	for want, c := range map[string]*repair.Checked{
		"":            nil,
		"3d, level 3": {At: testNow.Add(-72 * time.Hour), Template: "check", Args: []string{"-x", "-level", "3"}},
		"3d, level 2": {At: testNow.Add(-72 * time.Hour), Template: "check", Args: []string{"-level=2"}},
		"3d, ours":    {At: testNow.Add(-72 * time.Hour), Template: "ours", Args: []string{"-level"}},
		"3d":          {At: testNow.Add(-72 * time.Hour)},
	} {
		if got := checkedText(c, testNow); got != want {
			t.Errorf("%+v: %q, want %q", c, got, want)
		}
	}
}
