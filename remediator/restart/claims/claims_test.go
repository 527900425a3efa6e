package claims

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// A claim is named by a template's status, by the pod itself, or by the status of an extended resource.
func TestTheClaimsOfAPod(t *testing.T) {
	pod := &corev1.Pod{}
	if got := Of(pod); len(got) != 0 {
		t.Errorf("%q of a pod without claims", got)
	}
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "a", ResourceClaimName: ptr.To("shared")}, {Name: "b", ResourceClaimTemplateName: ptr.To("template")}}
	pod.Status.ResourceClaimStatuses = []corev1.PodResourceClaimStatus{{Name: "b", ResourceClaimName: ptr.To("made")}, {Name: "c"}, {Name: "a", ResourceClaimName: ptr.To("shared")}}
	pod.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: "extended"}
	if got := Of(pod); !slices.Equal(got, []string{"extended", "made", "shared"}) {
		t.Errorf("%q", got)
	}
}
