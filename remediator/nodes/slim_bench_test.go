package nodes

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// realistic is a GPU node as NFD, the GPU operator, the kubelet and the Node Problem Detector fill it.
func realistic(i int) *corev1.Node {
	at := metav1.NewTime(time.Date(2026, 11, 20, 12, 0, i%60, 0, time.UTC))
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: fmt.Sprintf("gpu-node-%05d", i), UID: types.UID(fmt.Sprintf("8f0e7a52-6d7c-4a2b-9d1c-%012d", i)), ResourceVersion: fmt.Sprint(1e6 + i),
		Labels: map[string]string{"kubernetes.io/hostname": fmt.Sprintf("gpu-node-%05d", i), "topology.kubernetes.io/rack": fmt.Sprintf("rack-%d", i/16)},
		Annotations: map[string]string{
			"nfd.node.kubernetes.io/feature-labels": strings.Repeat("cpu-cpuid.AVX512BW,", 80), "csi.volume.kubernetes.io/nodeid": fmt.Sprintf(`{"a":"i-%d"}`, i),
		},
	}}
	for k := range 88 {
		n.Labels[fmt.Sprintf("feature.node.kubernetes.io/cpu-cpuid.FEATURE_%d", k)] = "true"
	}
	for k := range 25 {
		n.Status.Conditions = append(n.Status.Conditions, corev1.NodeCondition{
			Type: corev1.NodeConditionType(fmt.Sprintf("ProblemOfKind%d", k)), Status: corev1.ConditionFalse, LastHeartbeatTime: at, LastTransitionTime: at,
			Reason: fmt.Sprintf("NoProblemOfKind%d", k), Message: fmt.Sprintf("the check of kind %d has found no problem", k),
		})
	}
	n.Status.Allocatable = corev1.ResourceList{}
	for _, name := range []corev1.ResourceName{"cpu", "memory", "pods", "ephemeral-storage", "hugepages-1Gi", "hugepages-2Mi", "nvidia.com/gpu", "rdma/hca"} {
		n.Status.Allocatable[name] = resource.MustParse("8")
	}
	for k := range 50 {
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("registry.example.com/team/image-%d@sha256:%064d", k, k), fmt.Sprintf("registry.example.com/team/image-%d:v1", k)}, SizeBytes: 1 << 30})
	}
	n.Status.NodeInfo.BootID = fmt.Sprintf("b1946ac9-2a4c-4d1b-8f0e-%012d", i)
	return n
}

// BenchmarkSlim says what the cache keeps of a node, decoded as the API server sends it.
func BenchmarkSlim(b *testing.B) {
	var kept []any
	var before, after runtime.MemStats
	raws := [][]byte{}
	for i := range 200 {
		raw, err := realistic(i).Marshal()
		if err != nil {
			b.Fatal(err)
		}
		raws = append(raws, raw)
	}
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := 0; b.Loop(); i++ {
		n := &corev1.Node{}
		if err := n.Unmarshal(raws[i%len(raws)]); err != nil {
			b.Fatal(err)
		}
		n.UID = types.UID(fmt.Sprint(i)) // each is another node
		slim, err := Slim(n)
		if err != nil {
			b.Fatal(err)
		}
		kept = append(kept, slim)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/float64(len(kept)), "kept-B/node")
	runtime.KeepAlive(kept)
}
