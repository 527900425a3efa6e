// Package nodetest makes Nodes for tests.
package nodetest

import (
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Realistic is a GPU node as NFD, the GPU operator, the kubelet and the Node Problem Detector fill it.
func Realistic(i int) *corev1.Node {
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
		name := fmt.Sprintf("registry.example.com/team/image-%d", k)
		n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprintf("%s@sha256:%064d", name, k), name + ":v1"}, SizeBytes: 1 << 30})
	}
	n.Status.NodeInfo.BootID = fmt.Sprintf("b1946ac9-2a4c-4d1b-8f0e-%012d", i)
	return n
}
