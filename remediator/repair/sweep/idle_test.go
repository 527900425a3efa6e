package sweep

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// requests makes a list of one of each resource.
func requests(names ...corev1.ResourceName) corev1.ResourceList {
	list := corev1.ResourceList{}
	for _, name := range names {
		list[name] = resource.MustParse("1")
	}
	return list
}

func TestHoldsAccelerator(t *testing.T) {
	gpu := []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests("cpu", "nvidia.com/gpu")}}}
	cpu := []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: requests("cpu", "memory")}}}
	tests := map[string]struct {
		spec   corev1.PodSpec
		status corev1.PodStatus
		want   bool
	}{
		"requests none":               {spec: corev1.PodSpec{Containers: cpu}},
		"requests nothing":            {spec: corev1.PodSpec{Containers: []corev1.Container{{}}}},
		"a container requests one":    {spec: corev1.PodSpec{Containers: append(cpu, gpu...)}, want: true},
		"an init container":           {spec: corev1.PodSpec{InitContainers: gpu, Containers: cpu}, want: true},
		"has a claim":                 {spec: corev1.PodSpec{Containers: cpu, ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu"}}}, want: true},
		"the scheduler made a claim":  {spec: corev1.PodSpec{Containers: cpu}, status: corev1.PodStatus{ExtendedResourceClaimStatus: &corev1.PodExtendedResourceClaimStatus{}}, want: true},
		"succeeded":                   {spec: corev1.PodSpec{Containers: gpu}, status: corev1.PodStatus{Phase: corev1.PodSucceeded}},
		"failed":                      {spec: corev1.PodSpec{Containers: gpu}, status: corev1.PodStatus{Phase: corev1.PodFailed}},
		"its node no longer answers":  {spec: corev1.PodSpec{Containers: gpu}, status: corev1.PodStatus{Phase: corev1.PodUnknown}, want: true},
		"requests 0, as templates do": {spec: corev1.PodSpec{Containers: []corev1.Container{{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("0")}}}}}},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := HoldsAccelerator(&corev1.Pod{Spec: tt.spec, Status: tt.status}); got != tt.want {
				t.Errorf("%v", got)
			}
		})
	}
}
