package podreader

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// A node that does not answer takes any number of pods that name it.
func TestPodsThatNoKubeletCouldRunHideNoOthers(t *testing.T) {
	on := func(namespace string, n int, phase corev1.PodPhase) (pods []corev1.Pod) {
		for i := range n {
			pods = append(pods, corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprint("p", i)}, Status: corev1.PodStatus{Phase: phase}})
		}
		return pods
	}
	all := slices.Concat(on("alice", 1, corev1.PodRunning), on("ended", 600, corev1.PodFailed), on("ended", 512, corev1.PodPending), on("mallory", 513, corev1.PodPending))
	api := fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		List: func(_ context.Context, _ client.WithWatch, list client.ObjectList, _ ...client.ListOption) error {
			list.(*corev1.PodList).Items = slices.Clone(all)
			return nil
		},
	}).Build()
	active, leftOut, err := Reader{API: api}.OnNode(t.Context(), "a", api)
	of := map[string]int{}
	for _, p := range active {
		of[p.Namespace]++
	}
	if err != nil || !slices.Equal(leftOut, []string{"mallory"}) || of["alice"] != 1 || of["ended"] != 512 || len(of) != 2 {
		t.Errorf("left out %q, active %v, %v", leftOut, of, err)
	}
}
