package node

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
	"github.com/pitcrew-dev/pitcrew/remediator/repair/visit"
)

func TestDescribeShowsEachStepOfAVisit(t *testing.T) {
	job := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "gpu-1-v2-2", Labels: map[string]string{conditions.LabelVisit: "v2"}}}
	other := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "other", Labels: map[string]string{conditions.LabelVisit: "v9"}}}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: "gpu-1-v2-2-x", Labels: map[string]string{batchv1.JobNameLabel: job.Name}},
		Status:     corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}},
	}
	ago := func(at time.Time) string { return clitest.Now.Sub(at).String() + " ago" }
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
	if diff := cmp.Diff(want, describe(clitest.UnderRepair(t, visit.Working), job, other, pod)); diff != "" {
		t.Error(diff)
	}

	want = `Visit:    repair, attempt 2, since 30m0s ago
          Emptying since 3m0s ago: waits for pod ml/train-0�[2J
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: the fault is still there
` + rest
	if diff := cmp.Diff(want, describe(clitest.UnderRepair(t, visit.Emptying))); diff != "" {
		t.Error(diff)
	}

	ending := clitest.UnderRepair(t, visit.Working)
	record, err := visit.RecordOf(ending)
	if err != nil {
		t.Fatal(err)
	}
	record.Current.Phase, record.Current.Then, record.Current.Outcome = visit.Ending, visit.Failed, "stopped by ann"
	want = `Visit:    repair, attempt 2, since 30m0s ago
          Ending since 3m0s ago: stopped by ann; then Failed
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: ends
          reboot -boot-id=b1, until 2026-11-20T12:17:00Z at the latest
` + rest
	if diff := cmp.Diff(want, describe(clitest.Visited(ending, record))); diff != "" {
		t.Error(diff)
	}

	proving := clitest.UnderRepair(t, visit.Proving)
	if record, err = visit.RecordOf(proving); err != nil {
		t.Fatal(err)
	}
	record.Current.JobEndedAt, record.Current.Outcome = clitest.Now.Add(-time.Minute), "waits for GPUXidError"
	want = `Visit:    repair, attempt 2, since 30m0s ago
          Proving since 3m0s ago: waits for GPUXidError
          1. reset-gpu, 25m0s ago: the fault is still there
          2. reboot, 3m0s ago: done; the conditions have to prove it
          its Job ended 1m0s ago
` + rest
	if diff := cmp.Diff(want, describe(clitest.Visited(proving, record))); diff != "" {
		t.Error(diff)
	}

	record.Advice.Quarantine = "older"
	if out := describe(clitest.Visited(proving, record)); strings.Contains(out, "Advice:") {
		t.Errorf("the advice for another quarantine:\n%s", out)
	}
	for range 9 {
		record.Last = append(record.Last, record.Last[0])
	}
	if out := describe(clitest.Visited(proving, record)); strings.Count(out, "Visited: ") != shownVisits {
		t.Errorf("more than the last visits:\n%s", out)
	}
	record.Current.ID = "no label!"
	describe(clitest.Visited(proving, record))
	if out := describe(clitest.NodeNamed("n")); out != "" {
		t.Errorf("of a node without a record: %s", out)
	}
	n := clitest.NodeNamed("n")
	n.Annotations = map[string]string{conditions.AnnotationRepair: "{"}
	if out := describe(n); !strings.HasPrefix(out, "Visits:   decode repair record: ") {
		t.Error(out)
	}
}
