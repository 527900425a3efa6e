package evidence

import (
	"bytes"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/pitcrew-dev/pitcrew/internal/conditions"
	"github.com/pitcrew-dev/pitcrew/kubectl-pitcrew/internal/clitest"
)

func TestDescribeNamesTheBundlesOfANode(t *testing.T) {
	pod := func(name, node, bundle string, age time.Duration) client.Object {
		return &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: conditions.RepairNamespace, Name: name + "-x", Labels: map[string]string{batchv1.JobNameLabel: name},
				CreationTimestamp: metav1.NewTime(clitest.Now.Add(-age))},
			Spec: corev1.PodSpec{NodeName: node}, Status: corev1.PodStatus{ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Message: `{"result":"done","message":"m","bundle":"` + bundle + `"}`}}}}},
		}
	}
	const first, second = "gpu-1-20261128T033000Z.tar.gz", "gpu-1-20261128T043000Z.tar.gz"
	api := fake.NewClientBuilder().WithObjects(pod("collect-1", "gpu-1", first, 2*time.Hour), pod("collect-2", "gpu-1", second, time.Hour),
		pod("collect-3", "gpu-2", "gpu-2-20261128T033000Z.tar.gz", 0), pod("check-4", "gpu-1", first, 0), pod("collect-5", "gpu-1", "../x", 0)).Build()
	var out bytes.Buffer
	ago := func(at time.Time) string { return clitest.Now.Sub(at).String() + " ago" }
	if err := Describe(t.Context(), &out, api, clitest.NodeNamed("gpu-1"), ago); err != nil {
		t.Fatal(err)
	}
	want := "Bundle:   " + second + ", 1h0m0s ago, by Job pitcrew-repair/collect-2\nBundle:   " + first + ", 2h0m0s ago, by Job pitcrew-repair/collect-1\n"
	if out.String() != want {
		t.Errorf("%s\nwant\n%s", out.String(), want)
	}
}
