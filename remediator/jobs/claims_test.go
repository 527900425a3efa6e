package jobs

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/pitcrew-dev/pitcrew/remediator/devices"
	"github.com/pitcrew-dev/pitcrew/remediator/restart"
)

func TestAClaimThatCannotBeReadHoldsBackNoOtherPod(t *testing.T) {
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "held"}}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "gpu", Driver: "gpu.nvidia.com", Pool: "n", Device: "gpu-1"}},
	}}
	pod := func(name string, claims ...string) corev1.Pod {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: name}}
		for _, c := range claims {
			p.Spec.ResourceClaims = append(p.Spec.ResourceClaims, corev1.PodResourceClaim{Name: c, ResourceClaimName: ptr.To(c)})
		}
		return p
	}
	pods := []corev1.Pod{pod("unknown", "unreadable"), pod("victim", "held"), pod("both", "held", "unreadable"), pod("other", "gone"), pod("none")}
	api := fake.NewClientBuilder().WithObjects(claim).WithInterceptorFuncs(interceptor.Funcs{
		Get: func(ctx context.Context, api client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			if key.Name == "unreadable" {
				return apierrors.NewForbidden(schema.GroupResource{Group: resourceapi.GroupName, Resource: "resourceclaims"}, key.Name, nil)
			}
			return api.Get(ctx, key, o, opts...)
		},
	}).Build()
	c := &Controller{apiReader: api}
	q := restart.Quarantine{Node: "n", Devices: []devices.Device{{Driver: "gpu.nvidia.com", Pool: "n", Name: "gpu-1"}}}
	kept, unread, err := c.holders(t.Context(), q, pods)
	if !apierrors.IsForbidden(err) {
		t.Errorf("error %v", err)
	}
	if len(kept) != 2 || kept[0].Name != "victim" || kept[1].Name != "both" {
		t.Errorf("kept %v", kept)
	}
	if len(unread) != 1 || unread[0].Name != "unknown" {
		t.Errorf("unread %v", unread)
	}
}
